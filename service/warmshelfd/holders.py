"""Who has what we cannot have: a lock or a port, as /proc tells.

For the text of a refusal, so it never fails: in a container other processes may not be
visible, and then nobody is named. Of a command only its beginning is shown: the rest may
hold secrets. Knows no lock, port or file by name.

The descriptors of a daemon, by which /proc tells who has a port, its own user cannot read. So
it puts up a sign for each: an abstract Unix socket with the number of the port's own socket
in its name. The kernel tells whoever connects to it which process listens there.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress

UNSEEN = "a process that cannot be seen from here"

_SIGN_READERS_MAX = 64
"""How often a sign can be read in all: the daemon accepts none of the connections, and the kernel keeps as many.

Whoever connects may leave some 200 KiB with each.
"""
_CREDENTIALS = struct.Struct("iII")
"""What the kernel tells of a peer: process, user, group."""

_COMMAND_WORDS_MAX = 3
_LISTENING = "0A"
"""How the kernel's tables of sockets write that state."""


def lock_holder(stat: os.stat_result) -> int:
    """Return which process has locked a file, whatever the kind of lock; 0 if none can be seen."""
    place = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    for fields in _lines("/proc/locks"):
        if "->" not in fields and len(fields) > 5 and fields[5] == place and fields[4].isdigit():  # noqa: PLR2004
            return int(fields[4])
    return 0


def file_holder(path: str) -> int:
    """Return which process has locked the file at a path; 0 if none can be seen."""
    with suppress(OSError):
        return lock_holder(os.stat(path))
    return 0


def port_holder(port: int) -> tuple[int, str]:
    """Return which process listens on a TCP port, and it in words; 0 if none can be seen."""
    users = dict(_listening(port))
    pid = _by_descriptor(users) or _by_sign(users)
    if pid or not users:
        return pid, describe(pid)
    return 0, f"a process of user {next(iter(users.values()))} that cannot be seen from here"


def put_up_signs(port: int) -> list[socket.socket]:
    """Put up a sign for each of our sockets that listen on a TCP port; they stand for as long as they are open."""
    ours = _sockets_of("self")
    signs = []
    for inode in (inode for inode, _ in _listening(port) if inode in ours):
        with suppress(OSError):  # somebody else has the name, or there is no descriptor: then we are not named
            signs.append(_put_up(_sign(inode)))
    return signs


def _put_up(name: str) -> socket.socket:
    sign = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sign.bind(name)
        sign.listen(_SIGN_READERS_MAX)
    except OSError:
        sign.close()
        raise
    return sign


def describe(pid: int) -> str:
    """Return a process in words: its number, and how its command begins."""
    command = _command(pid) if pid else ""
    if not pid:
        return UNSEEN
    return f"process {pid} ({command})" if command else f"process {pid}"


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(4096).decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    shown: list[str] = []
    for word in words[:_COMMAND_WORDS_MAX]:
        if not word or word.startswith("--") or any(mark in word for mark in ("=", "@", "://")):
            break
        shown.append(os.path.basename(word))
    return "".join(c for c in " ".join(shown) if c.isprintable())


def _by_descriptor(users: Mapping[str, int]) -> int:
    """Return which process has one of these sockets."""
    for pid in filter(str.isdigit, os.listdir("/proc")) if users else ():
        if not users.keys().isdisjoint(_sockets_of(pid)):
            return int(pid)
    return 0


def _by_sign(users: Mapping[str, int]) -> int:
    """Return which process says that it has one of these sockets, and is of the user that they belong to."""
    for inode, user in users.items():
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as reader:
            reader.setblocking(False)
            reader.connect(_sign(inode))
            told = reader.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid, its_user, _ = _CREDENTIALS.unpack(told)
            if its_user == user:
                return int(pid)
    return 0


def _sign(inode: str) -> str:
    return f"\0warmshelf/socket/{inode}"


def _sockets_of(pid: str) -> set[str]:
    """Return the inodes of a process's sockets, as far as we may know."""
    found = set()
    with suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                kind, _, inode = os.readlink(f"/proc/{pid}/fd/{fd}").partition(":")
                if kind == "socket":
                    found.add(inode.strip("[]"))
    return found


def _listening(port: int) -> Iterator[tuple[str, int]]:
    """Yield the inodes of the sockets that listen on a port, and the users they belong to."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for fields in _lines(table):
            if len(fields) > 9 and fields[3] == _LISTENING and fields[1].endswith(f":{port:04X}"):  # noqa: PLR2004
                yield fields[9], int(fields[7])


def _lines(path: str) -> Iterator[list[str]]:
    with suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        for line in file:
            yield line.split()
