"""What a worker that was taken over tries. A program: it reads what to try, tries it, and says what came of it.

It uses nothing but the standard library, so that it starts in any user's hands, and nothing of ours.
One line in: the attack, the segment's path, the daemon's process, the number of the daemon's descriptor of
the segment, the address of its mapping, the path of its socket. One line out: ``done``, or ``refused`` and why.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

EVIL = b"EVIL" * 4
PLACE = 3 * mmap.PAGESIZE
"""Where it writes: among the tensors."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_SEIZE, _DETACH, _INTERRUPT = 0x4206, 17, 0x4207  # of ptrace.h
_MADV_REMOVE = 9
_PUNCH_HOLE = 3  # and keep the size
_ADD_SEALS, _SEAL_WRITE = 1033, 8


class Target(NamedTuple):
    """What is attacked."""

    path: str
    pid: int
    fd: int
    address: int
    socket: str


HELD: list[mmap.mmap] = []
"""Mappings that it keeps."""


def _called(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")


def _readable(target: Target) -> int:
    return os.open(target.path, os.O_RDONLY)


def _writable(path: str) -> int:
    """Open for writing by any means."""
    try:
        return os.open(path, os.O_RDWR)
    except PermissionError:
        os.chmod(path, 0o660)
        return os.open(path, os.O_RDWR)


def _address(mapping: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))


def _mapped(fd: int, *, writable: bool) -> mmap.mmap:
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    return mmap.mmap(fd, os.fstat(fd).st_size, mmap.MAP_SHARED, prot)


def _raw_mapped(fd: int) -> int:
    """Map for reading and return the address, which Python does not tell of what it cannot write to."""
    _LIBC.mmap.restype = ctypes.c_void_p
    _LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    return int(_LIBC.mmap(None, 4 * mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0))


# --- with what every worker has: a descriptor and a mapping for reading ---------------


def write(target: Target) -> None:
    os.pwrite(_readable(target), EVIL, PLACE)


def map_for_writing(target: Target) -> None:
    _mapped(_readable(target), writable=True)[PLACE : PLACE + len(EVIL)] = EVIL


def protect(target: Target) -> None:
    address = ctypes.c_void_p(_raw_mapped(_readable(target)))
    _called(_LIBC.mprotect(address, 4 * mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE))


def cut_descriptor(target: Target) -> None:
    os.ftruncate(_readable(target), mmap.PAGESIZE)


def punch_descriptor(target: Target) -> None:
    _called(_LIBC.fallocate(_readable(target), _PUNCH_HOLE, ctypes.c_long(PLACE), ctypes.c_long(mmap.PAGESIZE)))


def remove_mapped(target: Target) -> None:
    _called(_LIBC.madvise(ctypes.c_void_p(_raw_mapped(_readable(target))), mmap.PAGESIZE, _MADV_REMOVE))


def seal(target: Target) -> None:
    fcntl.fcntl(_readable(target), _ADD_SEALS, _SEAL_WRITE)


# --- after opening it once more, for writing, with a change of its mode if need be ----


def reopen(target: Target) -> None:
    os.pwrite(_writable(f"/proc/self/fd/{_readable(target)}"), EVIL, PLACE)


def reopen_of_daemon(target: Target) -> None:
    os.pwrite(_writable(f"/proc/{target.pid}/fd/{target.fd}"), EVIL, PLACE)


def cut(target: Target) -> None:
    os.ftruncate(_writable(target.path), mmap.PAGESIZE)


def grow(target: Target) -> None:
    os.ftruncate(_writable(target.path), os.stat(target.path).st_size + mmap.PAGESIZE)


def punch(target: Target) -> None:
    _called(_LIBC.fallocate(_writable(target.path), _PUNCH_HOLE, ctypes.c_long(PLACE), ctypes.c_long(mmap.PAGESIZE)))


def remove(target: Target) -> None:
    mapping = _mapped(_writable(target.path), writable=True)
    _called(_LIBC.madvise(ctypes.c_void_p(_address(mapping) + PLACE), mmap.PAGESIZE, _MADV_REMOVE))


def store_slyly(target: Target) -> None:
    """Store through a mapping whose page was read before, which the file's times do not show; then let go."""
    store_and_hold(target)
    HELD.pop().close()


def store_and_hold(target: Target) -> None:
    """The same, and keep the mapping."""
    fd = _writable(target.path)
    mapping = _mapped(fd, writable=True)
    os.close(fd)
    if mapping[PLACE : PLACE + len(EVIL)] != EVIL:
        mapping[PLACE : PLACE + len(EVIL)] = EVIL
    HELD.append(mapping)


# --- the daemon itself ----------------------------------------------------------------


def daemon_memory(target: Target) -> None:
    fd = os.open(f"/proc/{target.pid}/mem", os.O_RDWR)
    os.pwrite(fd, EVIL, target.address + PLACE)


def trace(target: Target) -> None:
    nothing = ctypes.c_void_p(0)
    _called(_LIBC.ptrace(_SEIZE, target.pid, nothing, nothing))
    _called(_LIBC.ptrace(_INTERRUPT, target.pid, nothing, nothing))
    os.waitpid(target.pid, 0x40000000)  # also of what is no child
    _called(_LIBC.ptrace(_DETACH, target.pid, nothing, nothing))


# --- names ----------------------------------------------------------------------------


def unlink(target: Target) -> None:
    os.unlink(target.path)


def rename(target: Target) -> None:
    os.rename(target.path, target.path + ".away")


def replace(target: Target) -> None:
    """Put a copy with other bytes under its name."""
    shutil.copyfile(target.path, target.path + ".copy")
    with open(target.path + ".copy", "r+b") as file:
        file.seek(PLACE)
        file.write(EVIL)
    os.chmod(target.path + ".copy", 0o440)
    os.rename(target.path + ".copy", target.path)


def link_and_chmod(target: Target) -> None:
    other = target.path + ".link"
    os.link(target.path, other)
    os.chmod(other, 0o666)
    with open(other, "r+b") as file:
        file.seek(PLACE)
        file.write(EVIL)
    os.unlink(other)


def plant_socket(target: Target) -> None:
    os.rename(target.socket, target.socket + ".away")
    with socket.socket(socket.AF_UNIX) as false:
        false.bind(target.socket)


ATTACKS: Mapping[str, Callable[[Target], None]] = {
    act.__name__: act
    for act in (
        *(write, map_for_writing, protect, cut_descriptor, punch_descriptor, remove_mapped, seal),
        *(reopen, reopen_of_daemon, cut, grow, punch, remove, store_slyly, store_and_hold),
        *(daemon_memory, trace, unlink, rename, replace, link_and_chmod, plant_socket),
    )
}


def _outcome(name: str, target: Target) -> str:
    try:
        ATTACKS[name](target)
    except OSError as error:
        return f"refused {errno.errorcode.get(error.errno or 0, 'none')}"
    return "done"


def main() -> None:
    for line in sys.stdin:
        name, path, pid, fd, address, its_socket = line.split()
        print(_outcome(name, Target(path, int(pid), int(fd), int(address), its_socket)), flush=True)


if __name__ == "__main__":
    main()
