"""Where each tensor of a source will lie in its segment, and which reads bring it there.

Pure arithmetic between a format, which says where tensors lie in files, and the
memory, which fills a segment. Knows neither files nor memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from warmshelf.dtypes import DTYPES
from warmshelf.layout import TensorSpec, round_up
from warmshelf.segment import HEADER_BYTES

FILE_BLOCK_BYTES = 4096
"""Runs keep the file's offset modulo this, so that reads may be direct."""

PACK_BYTES = 64
"""Alignment of tensors that are placed one by one: a cache line."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor and where its bytes lie in the source.

    Entries with the same file and range are tied names of one tensor.
    ``file_index`` counts the inspection's ``file_names``; ``offset_bytes`` is from
    the start of that file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file_index: int
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Extent:
    """A contiguous run of bytes to bring from a file to a place in the segment."""

    file_index: int
    file_offset: int
    segment_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """The tensors of a segment and the reads that fill it.

    ``extents`` rise in ``segment_offset`` and never overlap; ``data_end`` is the
    first byte after the last of them. An extent is read in pieces of any length, or,
    unless ``step_bytes`` is 0, only cut at multiples of that from its start.
    """

    tensors: tuple[TensorSpec, ...]
    extents: tuple[Extent, ...]
    data_end: int
    step_bytes: int = 0

    def cut(self, offset: int) -> int:
        """Return the first place of the segment, from an offset on, at which its reads may be cut."""
        if not self.step_bytes:
            return offset
        at = bisect_right(self.extents, offset, key=lambda e: e.segment_offset) - 1
        extent = self.extents[max(at, 0)] if self.extents else None
        if extent is None or not 0 < offset - extent.segment_offset < extent.size:
            return offset
        return extent.segment_offset + min(round_up(offset - extent.segment_offset, self.step_bytes), extent.size)


def plan_segment(entries: Sequence[TensorEntry], *, packed: bool, step_bytes: int = 0) -> SegmentPlan:
    """Lay tensors out in a segment whose data begin after its header.

    ``packed`` (adapters): each range by itself, at 64 bytes. Otherwise (bases): what
    is contiguous in a file stays one run at the same offset modulo 4096, and only
    tensors that would be misaligned for their dtype are taken out of it and packed
    behind the runs. ``step_bytes``: a tensor is only read in pieces of that length.
    """
    align = _alignments(entries)
    ranges = sorted(align)
    kept = [] if packed else [r for r in ranges if r[1] % align[r] == 0]
    alone = ranges if packed else [r for r in ranges if r[1] % align[r]]
    extents: list[Extent] = []
    places: dict[_Range, int] = {}
    end = _run(kept, extents, places)
    end = _pack(alone, extents, places, end)
    return SegmentPlan(_specs(entries, places), tuple(_merge(extents)), end, step_bytes)


_Range = tuple[int, int, int]  # file index, offset, size


def _alignments(entries: Iterable[TensorEntry]) -> dict[_Range, int]:
    """Return every range that has bytes, with the strictest alignment its names need."""
    align: dict[_Range, int] = {}
    for e in entries:
        if e.size_bytes:
            key = (e.file_index, e.offset_bytes, e.size_bytes)
            align[key] = max(align.get(key, 1), DTYPES[e.dtype].align_bytes)
    return align


def _run(ranges: Iterable[_Range], extents: list[Extent], places: dict[_Range, int]) -> int:
    """Place each maximal contiguous run of a file at its offset modulo 4096."""
    end = HEADER_BYTES
    for members in _runs(ranges):
        file_index, start, _ = members[0]
        stop = max(offset + size for _, offset, size in members)
        place = end + (start - end) % FILE_BLOCK_BYTES
        extents.append(Extent(file_index, start, place, stop - start))
        places.update((r, place + r[1] - start) for r in members)
        end = place + stop - start
    return end


def _runs(ranges: Iterable[_Range]) -> Iterator[list[_Range]]:
    """Group sorted ranges that touch or overlap in one file."""
    run: list[_Range] = []
    stop = 0
    for r in ranges:
        file_index, offset, size = r
        if run and (file_index != run[0][0] or offset > stop):
            yield run
            run = []
        stop = max(stop, offset + size) if run else offset + size
        run.append(r)
    if run:
        yield run


def _pack(ranges: Iterable[_Range], extents: list[Extent], places: dict[_Range, int], end: int) -> int:
    """Place each range by itself behind ``end``."""
    for r in ranges:
        file_index, offset, size = r
        places[r] = round_up(end, PACK_BYTES)
        extents.append(Extent(file_index, offset, places[r], size))
        end = places[r] + size
    return end


def _merge(extents: Sequence[Extent]) -> list[Extent]:
    """Join neighbours that touch both in the file and in the segment."""
    merged: list[Extent] = []
    for extent in extents:
        last = merged[-1] if merged else None
        if (
            last
            and last.file_index == extent.file_index
            and last.file_offset + last.size == extent.file_offset
            and last.segment_offset + last.size == extent.segment_offset
        ):
            merged[-1] = Extent(last.file_index, last.file_offset, last.segment_offset, last.size + extent.size)
        else:
            merged.append(extent)
    return merged


def _specs(entries: Sequence[TensorEntry], places: dict[_Range, int]) -> tuple[TensorSpec, ...]:
    specs = []
    for e in entries:
        place = places.get((e.file_index, e.offset_bytes, e.size_bytes), HEADER_BYTES)
        specs.append(TensorSpec(e.name, e.dtype, e.shape, place, e.size_bytes))
    return tuple(sorted(specs, key=lambda s: (s.offset_bytes, s.size_bytes, s.name)))
