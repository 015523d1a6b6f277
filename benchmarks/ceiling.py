"""The fastest way known from a cached file into memory: what a cold load is measured against.

Allocates a part of a fresh file, reads the same part of the source into its mapping,
and goes on to the next; several threads share the parts. No check, no CRC, no daemon.
"""

from __future__ import annotations

import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PART_BYTES = 32 << 20


def fetch_memory(directory: Path, size_bytes: int) -> None:
    """Fill a file of the directory and drop it, so that the next one gets memory that is there.

    What peers gave back, a virtual machine gives back to its host within seconds, and it comes back slowly: some
    seconds for 2 GB. Neither side of a ratio shall pay that for the other.
    """
    piece = memoryview(bytes(PART_BYTES))
    target = directory / "fetched"
    try:
        with target.open("xb", buffering=0) as file:
            for start in range(0, size_bytes, PART_BYTES):
                file.write(piece[: size_bytes - start])
    finally:
        target.unlink()


def load(source: Path, directory: Path, thread_count: int) -> float:
    """Bring the file's bytes into a fresh file of the directory, which is removed again.

    Returns the seconds until the last byte was there; removing is not among them.
    """
    target = directory / "ceiling"
    source_fd = os.open(source, os.O_RDONLY)
    began = time.perf_counter()
    target_fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        size = os.fstat(source_fd).st_size
        os.ftruncate(target_fd, size)
        with (
            mmap.mmap(target_fd, size) as mapping,
            memoryview(mapping) as view,
            ThreadPoolExecutor(thread_count) as pool,
        ):
            parts = [(start, min(start + PART_BYTES, size)) for start in range(0, size, PART_BYTES)]
            for reading in [pool.submit(_read, source_fd, target_fd, view, *part) for part in parts]:
                reading.result()
            return time.perf_counter() - began
    finally:
        os.close(source_fd)
        os.close(target_fd)
        target.unlink()


def _read(source_fd: int, target_fd: int, view: memoryview, start: int, end: int) -> None:
    os.posix_fallocate(target_fd, start, end - start)
    while start < end:
        with view[start:end] as rest:
            count = os.preadv(source_fd, [rest], start)
        if count == 0:
            raise RuntimeError(f"the source ended at byte {start}")
        start += count
