"""Page-locking: whether it can be had, and doing it.

Knows addresses and limits, neither segments nor the arena. The lock is the
daemon's own: it keeps pages in memory for everybody, but registers nothing with
a device.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
from enum import Enum

from warmshelf.errors import PinningFailed
from warmshelfd.memory.pages import LIBC, address_of
from warmshelfd.memory.parts import PART_BYTES, ranges, take_in_turn

for _name in ("mlock", "munlock"):
    getattr(LIBC, _name).argtypes = (ctypes.c_void_p, ctypes.c_size_t)
LIBC.mlock2.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MLOCK_ONFAULT = 1


class PinPolicy(Enum):
    """Whether segments are to be page-locked."""

    PREFER = "prefer"
    REQUIRE = "require"
    OFF = "off"


def lock_pages(buffer: mmap.mmap, threads: int = 1) -> None:
    """Lock all pages of a mapping into memory, or none; on 4 KiB pages two threads take half the time of one.

    Raises:
        PinningFailed: the kernel refused; has the bytes, its reason and the limit.
    """
    with address_of(buffer) as (address, size):

        def lock(part: tuple[int, int], _: object) -> None:
            if LIBC.mlock(address + part[0], part[1] - part[0]) != 0:
                raise _refused(size, ctypes.get_errno())

        try:
            take_in_turn(list(ranges(0, size, PART_BYTES)), lock, threads)
        except PinningFailed:
            LIBC.munlock(address, size)
            raise


def check_lockable(size_bytes: int) -> None:
    """Ask the kernel whether so many bytes could be locked, without touching any memory.

    An empty mapping of that size is locked "as pages come", which counts in full
    against limit and capability. So no rule of the kernel's is imitated here.

    Raises:
        PinningFailed: they could not.
    """
    try:
        probe = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
    except OSError as error:
        raise _refused(size_bytes, error.errno or errno.ENOMEM) from error
    with probe, address_of(probe) as (address, size):
        if LIBC.mlock2(address, size, _MLOCK_ONFAULT) != 0:
            raise _refused(size_bytes, ctypes.get_errno())


def choose_pinning(policy: PinPolicy, budget_bytes: int, *, is_hugetlb: bool) -> str:
    """Return how pages are kept in memory: ``hugetlb``, ``mlock`` or ``none``.

    ``mlock`` only if the whole budget can be locked: half a promise is none.

    Raises:
        PinningFailed: the policy requires it and it cannot be had.
    """
    if is_hugetlb:
        return "hugetlb"
    if policy is PinPolicy.OFF:
        return "none"
    try:
        check_lockable(budget_bytes)
    except PinningFailed:
        if policy is PinPolicy.REQUIRE:
            raise
        return "none"
    return "mlock"


def _refused(size_bytes: int, error_number: int) -> PinningFailed:
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "unlimited" if limit_bytes == resource.RLIM_INFINITY else f"{limit_bytes} bytes"
    name = errno.errorcode.get(error_number, str(error_number))
    return PinningFailed(
        f"cannot page-lock {size_bytes} bytes: {name} ({os.strerror(error_number)}); RLIMIT_MEMLOCK is {limit}",
        size_bytes=size_bytes,
        limit_bytes=limit_bytes,
        errno=name,
    )
