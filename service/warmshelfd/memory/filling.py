"""Bringing a segment's data in: each part is allocated, read and given its CRCs while it is hot.

The order is what is fastest on a memory file system: the source reads straight
into the mapping, and a block's CRC is computed right after it was read. Nothing is
copied, but small tensors of a source to which each read is a round trip: those are
read together. Knows neither sources nor the arena.

Parts end at blocks, unless the plan may not be cut there. Then two parts share a
block, and its CRC waits until both are in.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import crc32c

from warmshelf.errors import LoadCancelled
from warmshelf.layout import round_up
from warmshelf.segment import BLOCK_BYTES, Section, block_count
from warmshelfd import failpoints
from warmshelfd.domain.extents import Extent, SegmentPlan
from warmshelfd.memory.parts import PART_BYTES, blocks_in, extents_in, file_pieces, gathered, pieces, take_in_turn

READ_BYTES = 4 * BLOCK_BYTES
"""What is asked of a source at once: little enough that the CRC still finds it in the processor's cache."""

REMOTE_READ_BYTES = 8 * BLOCK_BYTES
"""The same where a read costs a round trip, unless threads would be left without work: a tenth faster from S3."""

Read = Callable[[int, int, memoryview], None]
"""Fills the view with a file's bytes: file index, offset in the file, view."""

Hot = Callable[[memoryview, int, int], None]
"""Sees bytes while they are in the processor's cache: the segment, and the range's start and end."""


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
        gap_bytes: bytes of a file that are rather read along than left out, where each read costs a round trip; 0
            where it costs none.
        hot: told each range when it is in, by the thread that read it.
        crcs: the CRC of each block, as far as they are known.
    """

    view: memoryview
    plan: SegmentPlan
    data: Section
    allocate: Callable[[int, int], None]
    read: Read
    cancelled: Callable[[], bool]
    progress: Callable[[int], None]
    gap_bytes: int = 0
    hot: Hot | None = None
    crcs: array[int] = field(init=False)
    _spans: threading.local = field(default_factory=threading.local)  # ``bytes``: see _span_of
    _read_bytes: int = READ_BYTES  # set before the threads begin
    _done_bytes: int = 0
    _counting: threading.Lock = field(default_factory=threading.Lock)  # guards _done_bytes and the order of progress

    def __post_init__(self) -> None:
        self.crcs = array("I", bytes(4 * block_count(self.data)))

    def run(self, threads: int) -> None:
        """Fill the segment; the first error of any thread is raised when all have stopped."""
        share_bytes = round_up(-(-len(self.view) // threads), BLOCK_BYTES)
        part_bytes = min(PART_BYTES, max(share_bytes, READ_BYTES))  # what is small is shared out too
        parts = list(self._remote_parts(threads) or pieces(self.plan, 0, len(self.view), part_bytes))
        take_in_turn(parts, self.fill_part, threads)
        for start, _ in parts:
            if start % BLOCK_BYTES:
                self._note_crcs(start - start % BLOCK_BYTES, round_up(start, BLOCK_BYTES))

    def _remote_parts(self, threads: int) -> Iterable[tuple[int, int]]:
        """Return parts that are one read each, where reads cost round trips."""
        if not self.gap_bytes:
            return ()
        is_small = len(self.view) < 2 * threads * REMOTE_READ_BYTES
        step = READ_BYTES if is_small else REMOTE_READ_BYTES
        if self.plan.step_bytes:
            self._read_bytes = step
            return pieces(self.plan, 0, len(self.view), step)
        self._read_bytes = len(self.view)
        return file_pieces(self.plan.extents, len(self.view), step)

    def fill_part(self, part: tuple[int, int], failed: Callable[[], bool]) -> None:
        """Fill one range of the segment, unless another thread has failed."""
        start, end = part
        failpoints.hit("load.part")
        self.allocate(start, end - start)
        failpoints.hit("load.allocated")
        noted = round_up(start, BLOCK_BYTES)
        for first, last in pieces(self.plan, start, end, self._read_bytes):
            if failed():
                return
            if self.cancelled():
                raise LoadCancelled(f"the load was stopped at byte {first} of {len(self.view)}")
            self._read(first, last)
            noted = max(noted, self._note_crcs(noted, last))
            if self.hot is not None:
                self.hot(self.view, first, last)

    def _read(self, start: int, end: int) -> None:
        done = 0
        gap_bytes = 0 if self.plan.step_bytes else self.gap_bytes  # what may not be cut is not joined either
        for group in gathered(extents_in(self.plan.extents, start, end), gap_bytes):
            if len(group) == 1:
                self._read_one(group[0])
            else:
                self._read_group(group)
            done += sum(extent.size for extent in group)
        if done:
            with self._counting:
                self._done_bytes += done
                self.progress(self._done_bytes)

    def _read_one(self, extent: Extent) -> None:
        with self.view[extent.segment_offset : extent.segment_offset + extent.size] as view:
            self.read(extent.file_index, extent.file_offset, view)

    def _read_group(self, group: Sequence[Extent]) -> None:
        """Read what spans the extents, and copy each to its place."""
        first, last = group[0], group[-1]
        with self._span_of(last.file_offset + last.size - first.file_offset) as span:
            self.read(first.file_index, first.file_offset, span)
            for extent in group:
                start = extent.file_offset - first.file_offset
                end = extent.segment_offset + extent.size
                self.view[extent.segment_offset : end] = span[start : start + extent.size]

    def _span_of(self, size: int) -> memoryview:
        """Return this thread's memory for what is read together: new memory for each read costs its pages anew."""
        spans: bytearray = getattr(self._spans, "bytes", bytearray())
        if len(spans) < size:
            self._spans.bytes = spans = bytearray(size)
        return memoryview(spans)[:size]

    def _note_crcs(self, start: int, end: int) -> int:
        """Compute the CRCs of the blocks from ``start`` on that end by ``end``; return where the next block begins."""
        end = round_up(end, BLOCK_BYTES) if end >= self.data.end else end - end % BLOCK_BYTES
        for index, first, last in blocks_in(self.data, start, end):
            with self.view[first:last] as block:
                self.crcs[index] = crc32c.crc32c(block)
        return end
