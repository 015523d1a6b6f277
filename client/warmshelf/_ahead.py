"""Maps a segment's pages ahead of whoever reads them, in a second thread.

A resident page costs a fault when it is first touched, and a base on plain tmpfs has one for each few
of its 4 KiB pages. The kernel does the same for many pages at once, on another core, while the first ones are
copied. It only saves time: where the kernel cannot, nothing is done.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator

from warmshelf.lease import Lease

_MADV_POPULATE_READ = 22
"""Linux's, since 5.14: maps pages for reading as if each were read, and breaks no sharing."""

_STEP_BYTES = 16 << 20
"""For each call, so that a reader who is done waits for no more than this."""

_PAGE_BYTES = 4096


@contextlib.contextmanager
def mapped_ahead(lease: Lease) -> Iterator[None]:
    """Map the lease's pages while the body runs; by its end nothing here holds them."""
    done = threading.Event()
    thread = threading.Thread(target=_map, args=(lease.segment_view, done), name="warmshelf-ahead", daemon=True)
    if lease.transport == "mapped" and not lease.segment_view.readonly:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if thread.ident is not None:
            thread.join()


def _map(view: memoryview, done: threading.Event) -> None:
    advise = ctypes.CDLL(None).madvise
    start = ctypes.addressof(ctypes.c_char.from_buffer(view))
    for offset in range(0, len(view), _STEP_BYTES):
        size = min(_STEP_BYTES, len(view) - offset) // _PAGE_BYTES * _PAGE_BYTES
        if done.is_set() or advise(ctypes.c_void_p(start + offset), ctypes.c_size_t(size), _MADV_POPULATE_READ):
            return
