"""What the kernel is told of a mapping's pages: its address, to bring pages in, to forbid writing.

Knows mappings, neither files nor limits.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MADV_POPULATE_WRITE = 23
"""Linux 5.14; not among Python's names."""


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
def address_of(buffer: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Give the address and size of a mapping, also of a read-only one, which ``from_buffer`` refuses."""
    raw = _PyBuffer()
    _get_buffer(buffer, ctypes.byref(raw), 0)
    try:
        yield raw.buf or 0, raw.len
    finally:
        _release_buffer(ctypes.byref(raw))


def populate(buffer: mmap.mmap, start: int, size: int) -> None:
    """Map the pages of a range for writing, all at once: a fault for each costs more than what is copied into it.

    Where the kernel cannot, pages come one by one as before.
    """
    lead = start % mmap.PAGESIZE
    with address_of(buffer) as (address, _):
        LIBC.madvise(address + start - lead, lead + size, _MADV_POPULATE_WRITE)


def forbid_writing(buffer: mmap.mmap) -> None:
    """Make a mapping read-only: from now on writing to it ends the process.

    Raises:
        OSError: the kernel refused.
    """
    with address_of(buffer) as (address, size):
        if LIBC.mprotect(address, size, mmap.PROT_READ) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
