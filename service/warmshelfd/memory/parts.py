"""Work on a segment in parts: which ranges, which reads fill them, and threads that take them in turn.

Arithmetic and threads; knows neither files nor memory.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from warmshelf.segment import BLOCK_BYTES, Section, block_count, block_range
from warmshelfd.domain.extents import Extent, SegmentPlan

PART_BYTES = 32 * BLOCK_BYTES
"""What a thread takes at a time: allocated in one call, small enough that two threads end together."""

T = TypeVar("T")


def ranges(start: int, end: int, step: int) -> Iterator[tuple[int, int]]:
    """Cut a range at the multiples of ``step``."""
    while start < end:
        stop = min((start // step + 1) * step, end)
        yield start, stop
        start = stop


def pieces(plan: SegmentPlan, start: int, end: int, step: int) -> Iterator[tuple[int, int]]:
    """Cut a range near the multiples of ``step``: at the first place behind each at which the plan may be cut."""
    while start < end:
        stop = min(plan.cut((start // step + 1) * step), end)
        yield start, stop
        start = stop


def file_pieces(extents: Iterable[Extent], end: int, step: int) -> Iterator[tuple[int, int]]:
    """Cut a segment from 0 to its end where its bytes come from another stretch of ``step`` bytes of a file.

    Object stores keep what was uploaded in parts whose lengths are powers of two: a read that ends where they do
    touches no part twice.
    """
    start, before = 0, None
    for extent in extents:
        for first, _ in ranges(extent.file_offset, extent.file_offset + extent.size, step):
            stretch = extent.file_index, first // step
            at = extent.segment_offset + first - extent.file_offset
            if before not in (None, stretch):
                yield start, at
                start = at
            before = stretch
    if start < end:
        yield start, end


def extents_in(extents: Sequence[Extent], start: int, end: int) -> Iterator[Extent]:
    """Return what of the extents lies in a range of the segment, each cut to it."""
    at = max(bisect_right(extents, start, key=lambda e: e.segment_offset) - 1, 0)
    while at < len(extents) and extents[at].segment_offset < end:
        extent = extents[at]
        first, last = max(start, extent.segment_offset), min(end, extent.segment_offset + extent.size)
        if first < last:
            skipped = first - extent.segment_offset
            yield Extent(extent.file_index, extent.file_offset + skipped, first, last - first)
        at += 1


ALONE_BYTES = BLOCK_BYTES
"""So much is worth a read of its own: it goes straight to its place, and what is read together is copied there."""


def gathered(extents: Iterable[Extent], gap_bytes: int) -> Iterator[list[Extent]]:
    """Group extents that one read of a file brings in, with less than so much between them; 0 joins none.

    A long one stays alone.
    """
    group: list[Extent] = []
    for extent in extents:
        if group and not (0 <= _gap(group[-1], extent) < gap_bytes and _are_short(group[-1], extent)):
            yield group
            group = []
        group.append(extent)
    if group:
        yield group


def _are_short(*extents: Extent) -> bool:
    return all(extent.size < ALONE_BYTES for extent in extents)


def _gap(one: Extent, other: Extent) -> int:
    """Return how many bytes of their file lie between two extents; below 0 if they are not in order."""
    return other.file_offset - one.file_offset - one.size if one.file_index == other.file_index else -1


def blocks_in(data: Section, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Return index and range of every block that begins in a range of the segment, which is cut at blocks."""
    first = data.offset // BLOCK_BYTES
    for index in range(max(start // BLOCK_BYTES - first, 0), min(-(-end // BLOCK_BYTES) - first, block_count(data))):
        yield index, *block_range(data, index)


def take_in_turn(items: Sequence[T], work: Callable[[T, Callable[[], bool]], None], threads: int) -> None:
    """Do the work for every item; the first error stops all and is raised.

    Args:
        items: what there is to do.
        work: gets an item, and a predicate that says whether another thread has failed.
        threads: how many take items at once; the calling thread is one of them.
    """
    errors: list[BaseException] = []
    pending = iter(items)
    turn = threading.Lock()  # guards pending

    def run() -> None:
        while not errors:
            with turn:
                item = next(pending, None)
            if item is None:
                return
            try:
                work(item, lambda: bool(errors))
            except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
                errors.append(error)

    others = [threading.Thread(target=run) for _ in range(min(threads, len(items)) - 1)]
    for thread in others:
        thread.start()
    run()
    for thread in others:
        thread.join()
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # or the error's own traceback would keep it, and views in its frames, alive
