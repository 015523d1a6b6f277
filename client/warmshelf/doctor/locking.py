"""Whether so much memory as the budget could be page-locked, asked of the kernel.

What the daemon says of itself counts more: its rights may be others than this process's.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
from dataclasses import dataclass

from warmshelf._sizes import show_size
from warmshelf.doctor.finding import Finding, Level

_LIBC = ctypes.CDLL(None, use_errno=True)
_MLOCK_ONFAULT = 1
_PAGE_LOCKED = frozenset({"mlock", "hugetlb"})


@dataclass(frozen=True, slots=True)
class Locking:
    """What this process may lock.

    Attributes:
        limit_bytes: RLIMIT_MEMLOCK; None without one.
        refusal: why the budget could not be locked, in the kernel's word; "" if it could.
    """

    limit_bytes: int | None
    refusal: str


def look(budget_bytes: int) -> Locking:
    """Ask whether so many bytes could be locked; no memory is touched."""
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Locking(None if limit_bytes == resource.RLIM_INFINITY else limit_bytes, _refusal(budget_bytes))


def _refusal(size_bytes: int) -> str:
    """Lock an empty mapping "as pages come", which counts in full against limit and capability."""
    try:
        probe = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # MAP_NORESERVE
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    with probe:
        first = ctypes.c_char.from_buffer(probe)
        address = ctypes.c_void_p(ctypes.addressof(first))
        status = _LIBC.mlock2(address, ctypes.c_size_t(size_bytes), _MLOCK_ONFAULT)
        number = ctypes.get_errno()
        del first  # or the mapping cannot be undone
    return "" if status == 0 else errno.errorcode.get(number, os.strerror(number))


def judge(locking: Locking, budget_bytes: int, daemon_pinning: str = "") -> Finding:
    """Return what there is to say; ``daemon_pinning`` is what a running daemon does, or "" without one."""
    limit = "no limit" if locking.limit_bytes is None else f"a limit of {show_size(locking.limit_bytes)}"
    numbers = {} if locking.limit_bytes is None else {"memlock_limit_bytes": locking.limit_bytes}
    if daemon_pinning in _PAGE_LOCKED:
        return Finding("page-locking", Level.OK, f"the daemon locks pages: {daemon_pinning}", numbers=numbers)
    if not locking.refusal and daemon_pinning:
        text = f"this process could lock {show_size(budget_bytes)}, but the daemon does not (pinning {daemon_pinning})"
        return Finding(
            "page-locking", Level.NOTE, text, "start it with --pin prefer, and with this user's rights", numbers
        )
    if not locking.refusal:
        text = f"{show_size(budget_bytes)} can be locked ({limit})"
        return Finding("page-locking", Level.OK, text, numbers=numbers)
    text = f"{show_size(budget_bytes)} cannot be locked: {locking.refusal}, with {limit}"
    advice = (
        "LimitMEMLOCK=infinity in the unit, --ulimit memlock=-1 of a container, or the capability IPC_LOCK; "
        "without it weights are served as fast, but may be swapped unless the arena is mounted noswap"
    )
    return Finding("page-locking", Level.WARNING, text, advice, numbers)
