"""Cutting a segment into parts, and threads that take them in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmshelf.errors import SourceUnavailable
from warmshelf.segment import BLOCK_BYTES, Section, block_count, block_range
from warmshelfd.domain.extents import Extent
from warmshelfd.memory.parts import ALONE_BYTES, blocks_in, extents_in, file_pieces, gathered, ranges, take_in_turn


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 20))
def test_ranges_are_whole_and_cut_at_multiples(start: int, end: int, step: int) -> None:
    cut = list(ranges(start, end, step))
    assert [i for a, b in cut for i in range(a, b)] == list(range(start, end))
    assert all(b % step == 0 for _, b in cut[:-1])
    assert all(0 < b - a <= step for a, b in cut)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=8), st.integers(0, 70), st.integers(0, 70))
def test_extents_are_cut_to_a_range_byte_for_byte(gaps: list[tuple[int, int]], start: int, end: int) -> None:
    extents, at = [], 0
    for index, (gap, size) in enumerate(gaps):
        extents.append(Extent(index, 100 * index, at + gap, size))
        at += gap + size
    every = {e.segment_offset + i: (e.file_index, e.file_offset + i) for e in extents for i in range(e.size)}
    found = {}
    for e in extents_in(extents, start, end):
        assert e.size > 0
        found.update({e.segment_offset + i: (e.file_index, e.file_offset + i) for i in range(e.size)})
    assert found == {place: byte for place, byte in every.items() if start <= place < end}


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(1, 5)), max_size=12), st.integers(0, 6))
def test_extents_are_grouped_by_what_lies_between_them(places: list[tuple[int, int, int]], gap: int) -> None:
    extents = [Extent(file, offset, 100 * i, size) for i, (file, offset, size) in enumerate(places)]
    groups = list(gathered(extents, gap))
    assert [extent for group in groups for extent in group] == extents
    for one, other, is_joined in (
        (a, b, any(a in group and b in group for group in groups)) for a, b in pairwise(extents)
    ):
        between = other.file_offset - one.file_offset - one.size
        assert is_joined is (one.file_index == other.file_index and 0 <= between < gap)


@settings(max_examples=50)
@given(st.integers(0, 3 * BLOCK_BYTES), st.integers(0, 4 * BLOCK_BYTES), st.integers(1, 3))
def test_blocks_come_once_each_however_the_file_is_cut(offset: int, size: int, step: int) -> None:
    data = Section(offset, size)
    cut = [b for part in ranges(0, data.end, step * BLOCK_BYTES) for b in blocks_in(data, *part)]
    assert cut == [(i, *block_range(data, i)) for i in range(block_count(data))]


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_items_are_taken_in_turn_once_each(threads: int) -> None:
    taken: list[int] = []
    take_in_turn(range(100), lambda item, _: taken.append(item), threads)
    assert sorted(taken) == list(range(100))


def test_after_an_error_no_item_is_taken() -> None:
    taken: list[int] = []

    def fail(item: int, failed: Callable[[], bool]) -> None:
        taken.append(item)
        raise SourceUnavailable("gone")

    with pytest.raises(SourceUnavailable):
        take_in_turn([1, 2, 3], fail, 1)
    assert taken == [1]


def test_a_thread_is_told_that_another_has_failed() -> None:
    both = threading.Barrier(2)
    told: list[bool] = []

    def work(item: int, failed: Callable[[], bool]) -> None:
        both.wait()
        if item == 0:
            raise SourceUnavailable("gone")
        told.append(any(failed() for _ in range(10_000_000)))

    with pytest.raises(SourceUnavailable):
        take_in_turn([0, 1], work, 2)
    assert told == [True]


def test_a_long_extent_is_read_alone_and_short_ones_with_their_neighbours() -> None:
    long, short = ALONE_BYTES, 4096
    sizes, extents, at = [long, short, short, long, long, short], [], 0
    for size in sizes:
        extents.append(Extent(0, at, at, size))
        at += size + 8
    groups = [[extent.size for extent in group] for group in gathered(extents, 64)]
    assert groups == [[long], [short, short], [long], [long], [short]]


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40), st.integers(1, 30)), max_size=8),
    st.integers(1, 16),
    st.integers(0, 9),
)
def test_what_is_cut_by_stretches_of_files_is_whole_and_reads_no_two_of_them(
    places: list[tuple[int, int, int]], step: int, tail: int
) -> None:
    extents, at = [], 3
    for file, offset, size in places:
        extents.append(Extent(file, offset, at, size))
        at += size + 2
    cut = list(file_pieces(extents, at + tail, step))
    assert [i for a, b in cut for i in range(a, b)] == list(range(at + tail))
    for a, b in cut:
        stretches = {
            (e.file_index, (e.file_offset + i) // step) for e in extents_in(extents, a, b) for i in range(e.size)
        }
        assert len(stretches) <= 1
