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
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from warmshelf.errors import PinningFailed

_LIBC = ctypes.CDLL(None, use_errno=True)
for _name in ("mlock", "munlock"):
    getattr(_LIBC, _name).argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.mlock2.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MLOCK_ONFAULT = 1


class PinPolicy(Enum):
    """Whether segments are to be page-locked."""

    PREFER = "prefer"
    REQUIRE = "require"
    OFF = "off"


class _PyBuffer(ctypes.Structure):
    """``Py_buffer`` of the stable ABI."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_POINTER = ctypes.POINTER(_PyBuffer)
_get_buffer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, _POINTER, ctypes.c_int)(
    ("PyObject_GetBuffer", ctypes.pythonapi)
)
_release_buffer = ctypes.PYFUNCTYPE(None, _POINTER)(("PyBuffer_Release", ctypes.pythonapi))


@contextmanager
def _address(buffer: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Give the address and size of a mapping, also of a read-only one, which ``from_buffer`` refuses."""
    raw = _PyBuffer()
    _get_buffer(buffer, ctypes.byref(raw), 0)
    try:
        yield raw.buf or 0, raw.len
    finally:
        _release_buffer(ctypes.byref(raw))


def lock_pages(buffer: mmap.mmap) -> None:
    """Lock all pages of a mapping into memory, or none.

    Raises:
        PinningFailed: the kernel refused; has the bytes, its reason and the limit.
    """
    with _address(buffer) as (address, size):
        if size and _LIBC.mlock(address, size) != 0:
            error_number = ctypes.get_errno()
            _LIBC.munlock(address, size)
            raise _refused(size, error_number)


def unlock_pages(buffer: mmap.mmap) -> None:
    """Let the pages of a mapping go; those that are not locked stay as they are."""
    with _address(buffer) as (address, size):
        if size:
            _LIBC.munlock(address, size)


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
    with probe, _address(probe) as (address, size):
        if _LIBC.mlock2(address, size, _MLOCK_ONFAULT) != 0:
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
