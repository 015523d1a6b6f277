#!/bin/sh
# Mounts the arena's tmpfs on a node, or unmounts it. May run again and again.
#
#   prepare-node.sh mount ROOT SIZE_BYTES UID GID OPTIONS [CONTEXT]
#   prepare-node.sh unmount ROOT STATE      STATE is keep or remove
#
# Below ROOT:
#   memory/           the tmpfs; memory/shelf has the socket and the arena
#   workers/          the same, read-only: what workers are offered
#   state/            registry and pushed files, on the node's disk
#
# Workers are offered workers/shelf. It is not there before the tmpfs is, so that a
# worker that starts before the daemon waits, and never sees an empty directory.
set -eu

is_mounted() { grep -q " $1 " /proc/self/mountinfo; }

mount_memory() { # SIZE_BYTES UID GID OPTIONS CONTEXT
  base="size=$1,mode=0755,uid=$2,gid=$3${5:+,context=\"$5\"}"
  mount -t tmpfs -o "$base${4:+,$4}" warmshelf "$root/memory" && return
  # noswap is known from Linux 6.4 on
  rest=$(echo "$4" | sed 's/noswap//; s/,,*/,/g; s/^,//; s/,$//')
  echo "this kernel does not know all of '$4', mounting with '$rest'" >&2
  mount -t tmpfs -o "$base${rest:+,$rest}" warmshelf "$root/memory"
}

prepare() { # SIZE_BYTES UID GID OPTIONS CONTEXT
  install -d -m 0755 "$root/memory" "$root/workers"
  install -d -m 0700 -o "$2" -g "$3" "$root/state"
  if is_mounted "$root/memory"; then
    # Another budget; what is in it stays. The kernel refuses less than is in it: the daemon keeps to its budget anyhow.
    mount -o "remount,size=$1" "$root/memory" || echo "the tmpfs holds more than $1 bytes: it keeps its size" >&2
  else
    mount_memory "$@"
  fi
  [ -d "$root/memory/shelf" ] || install -d -m 0755 -o "$2" -g "$3" "$root/memory/shelf"
  if ! is_mounted "$root/workers"; then
    mount --bind "$root/memory" "$root/workers"
    mount -o remount,bind,ro "$root/workers"
  fi
}

clean() { # STATE
  for path in "$root/workers" "$root/memory"; do
    while is_mounted "$path"; do umount -l "$path"; done
  done
  [ "$1" = keep ] || rm -rf "$root/state"
  rm -rf --one-file-system "$root/workers" "$root/memory"
}

what=$1 root=$2
shift 2
case $what in
  mount) prepare "$1" "$2" "$3" "${4-}" "${5-}" ;;
  unmount) clean "$1" ;;
  *) echo "prepare-node.sh: $what is neither mount nor unmount" >&2; exit 2 ;;
esac
