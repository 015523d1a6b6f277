"""Bringing a segment's data in: each part is allocated, read and given its CRCs while it is hot.

The order is what is fastest on a memory file system: the source reads straight
into the mapping, and a block's CRC is computed right after it was read. Nothing is
copied. Knows neither sources nor the arena.

Parts end at blocks, unless the plan may not be cut there. Then two parts share a
block, and its CRC waits until both are in.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import crc32c

from warmshelf.errors import LoadCancelled
from warmshelf.layout import round_up
from warmshelf.segment import BLOCK_BYTES, Section, block_count
from warmshelfd import failpoints
from warmshelfd.domain.extents import SegmentPlan
from warmshelfd.memory.parts import PART_BYTES, blocks_in, extents_in, pieces, take_in_turn

READ_BYTES = 4 * BLOCK_BYTES
"""What is asked of a source at once: enough for a remote one to be worth its round trip, little
enough that the CRC still finds it in the processor's cache."""

Read = Callable[[int, int, memoryview], None]
"""Fills the view with a file's bytes: file index, offset in the file, view."""


@dataclass
class Filling:
    """One segment being filled.

    Attributes:
        view: the whole segment, writable.
        plan: what to read.
        data: the segment's data section.
        allocate: makes the file system give a range (start, size); called before the range is touched.
        read: reads from the source.
        cancelled: asked before every read.
        progress: told the bytes read so far.
        crcs: the CRC of each block, as far as they are known.
    """

    view: memoryview
    plan: SegmentPlan
    data: Section
    allocate: Callable[[int, int], None]
    read: Read
    cancelled: Callable[[], bool]
    progress: Callable[[int], None]
    crcs: array[int] = field(init=False)
    _done_bytes: int = 0
    _counting: threading.Lock = field(default_factory=threading.Lock)  # guards _done_bytes and the order of progress

    def __post_init__(self) -> None:
        self.crcs = array("I", bytes(4 * block_count(self.data)))

    def run(self, threads: int) -> None:
        """Fill the segment; the first error of any thread is raised when all have stopped."""
        parts = list(pieces(self.plan, 0, len(self.view), PART_BYTES))
        take_in_turn(parts, self.fill_part, threads)
        for start, _ in parts:
            if start % BLOCK_BYTES:
                self._note_crcs(start - start % BLOCK_BYTES, round_up(start, BLOCK_BYTES))

    def fill_part(self, part: tuple[int, int], failed: Callable[[], bool]) -> None:
        """Fill one range of the segment, unless another thread has failed."""
        start, end = part
        failpoints.hit("load.part")
        self.allocate(start, end - start)
        noted = round_up(start, BLOCK_BYTES)
        for first, last in pieces(self.plan, start, end, READ_BYTES):
            if failed():
                return
            if self.cancelled():
                raise LoadCancelled(f"the load was stopped at byte {first} of {len(self.view)}")
            self._read(first, last)
            noted = max(noted, self._note_crcs(noted, last))

    def _read(self, start: int, end: int) -> None:
        done = 0
        for extent in extents_in(self.plan.extents, start, end):
            with self.view[extent.segment_offset : extent.segment_offset + extent.size] as view:
                self.read(extent.file_index, extent.file_offset, view)
            done += extent.size
        if done:
            with self._counting:
                self._done_bytes += done
                self.progress(self._done_bytes)

    def _note_crcs(self, start: int, end: int) -> int:
        """Compute the CRCs of the blocks from ``start`` on that end by ``end``; return where the next block begins."""
        end = round_up(end, BLOCK_BYTES) if end >= self.data.end else end - end % BLOCK_BYTES
        for index, first, last in blocks_in(self.data, start, end):
            with self.view[first:last] as block:
                self.crcs[index] = crc32c.crc32c(block)
        return end
