"""How much memory a range of addresses really takes in this process, page by page.

The kernel says of each page whether it is in memory and whether it belongs to a file
(/proc/self/pagemap). A page of a file is there once, however many processes map it; any
other is this process's own copy.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_ENTRY_BYTES = 8
_PRESENT = 1 << 63
_OF_FILE = 1 << 61


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the pages that ranges touch.

    Attributes:
        own_bytes: pages that this process has for itself.
        shared_bytes: pages of files, or of memory shared like files.
    """

    own_bytes: int
    shared_bytes: int


def measure(ranges: Iterable[tuple[int, int]]) -> Memory:
    """Return what the pages of these ranges (first address, bytes) take."""
    own, shared = set[int](), set[int]()
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        for address, size in ranges:
            first = address // mmap.PAGESIZE
            last = -(-(address + size) // mmap.PAGESIZE)
            pagemap.seek(first * _ENTRY_BYTES)
            entries = array("Q", pagemap.read((last - first) * _ENTRY_BYTES))
            for page, entry in enumerate(entries, first):
                if entry & _PRESENT:
                    (shared if entry & _OF_FILE else own).add(page)
    return Memory(len(own) * mmap.PAGESIZE, len(shared) * mmap.PAGESIZE)
