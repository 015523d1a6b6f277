"""How the C library keeps memory that was freed.

Left alone, glibc gives a freed chunk back and faults it in anew for the next one, which
doubles what a stream costs; and it keeps a freed header of many megabytes, once for each
thread that ever read one. Both are set here. Knows nothing of the arena, which is not
allocated but mapped.
"""

from __future__ import annotations

import ctypes

MMAP_BYTES_MIN = 4 << 20
"""Blocks from this size on are mapped for themselves and leave with their last use: headers,
small files. Above the largest chunk, which is to be reused."""

KEPT_BYTES_MAX = 8 << 20
"""Most free memory at the end of a heap before it is given back: some chunks."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def tune_allocator() -> None:
    """Set both limits; does nothing where the C library has no such thing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES_MIN)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX)
