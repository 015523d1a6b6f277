"""plan_segment, against an oracle that copies bytes and looks where they ended up."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmshelfd.domain.extents import SegmentPlan, TensorEntry, plan_segment

# Written down anew: the oracle shares nothing with what it judges.
SEGMENT_HEADER = 4096
BLOCK = 4096
CACHE_LINE = 64
ALIGN = {"U8": 1, "BOOL": 1, "F8_E4M3": 1, "F4": 1, "BF16": 2, "I16": 2, "F32": 4, "I64": 8, "C64": 8, "C128": 16}
BITS = {"U8": 8, "BOOL": 8, "F8_E4M3": 8, "F4": 4, "BF16": 16, "I16": 16, "F32": 32, "I64": 64, "C64": 64, "C128": 128}


def entry(name: str, dtype: str, count: int, file_index: int, offset: int) -> TensorEntry:
    return TensorEntry(name, dtype, (count,), file_index, offset, count * BITS[dtype] // 8)


def fill(plan: SegmentPlan, files: Sequence[bytes]) -> bytes:
    """Carry out the plan; fail if two extents touch one byte or one lies out of place."""
    segment = bytearray(plan.data_end)
    end = SEGMENT_HEADER
    for extent in plan.extents:
        assert extent.segment_offset >= end
        assert extent.size > 0
        data = files[extent.file_index][extent.file_offset : extent.file_offset + extent.size]
        assert len(data) == extent.size
        segment[extent.segment_offset : extent.segment_offset + extent.size] = data
        end = extent.segment_offset + extent.size
    assert end == plan.data_end
    return bytes(segment)


@st.composite
def sources(
    draw: st.DrawFn, *, overlapping: bool, dtypes: Sequence[str] = tuple(sorted(ALIGN))
) -> tuple[list[TensorEntry], list[bytes]]:
    """Up to three files and the tensors in them, in any order, some names tied."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    entries: list[TensorEntry] = []
    files = []
    for file_index in range(draw(st.integers(1, 3))):
        offset = draw(st.integers(0, 5000))
        for _ in range(draw(st.integers(0, 6))):
            dtype = draw(st.sampled_from(dtypes))
            count = draw(st.integers(0, 3) | st.integers(0, 700)) * 2
            begin = draw(st.integers(0, offset)) if overlapping else offset
            one = entry(f"t{len(entries)}", dtype, count, file_index, begin)
            entries.append(one)
            if draw(st.booleans()):
                tied = draw(st.sampled_from(dtypes))
                if one.size_bytes * 8 % BITS[tied] == 0:
                    entries.append(entry(f"t{len(entries)}", tied, one.size_bytes * 8 // BITS[tied], file_index, begin))
            offset = max(offset, begin + one.size_bytes) + draw(st.sampled_from([0, 0, 0, 1, 7, 64, 5000]))
        files.append(rng.randbytes(offset))
    rng.shuffle(entries)
    return entries, files


any_source = sources(overlapping=False) | sources(overlapping=True)


@given(any_source, st.booleans())
def test_every_tensor_finds_its_bytes_at_its_place(source: tuple[list[TensorEntry], list[bytes]], packed: bool) -> None:
    entries, files = source
    plan = plan_segment(entries, packed=packed)
    segment = fill(plan, files)
    by_name = {spec.name: spec for spec in plan.tensors}
    assert len(plan.tensors) == len(by_name) == len(entries)
    for e in entries:
        spec = by_name[e.name]
        assert (spec.dtype, spec.shape, spec.size_bytes) == (e.dtype, e.shape, e.size_bytes)
        assert SEGMENT_HEADER <= spec.offset_bytes <= spec.end_bytes <= plan.data_end
        expected = files[e.file_index][e.offset_bytes : e.offset_bytes + e.size_bytes]
        assert segment[spec.offset_bytes : spec.end_bytes] == expected


@given(any_source, st.booleans())
def test_every_tensor_is_aligned_for_its_dtype(source: tuple[list[TensorEntry], list[bytes]], packed: bool) -> None:
    for spec in plan_segment(source[0], packed=packed).tensors:
        assert spec.offset_bytes % ALIGN[spec.dtype] == 0


@given(any_source)
def test_packed_tensors_begin_at_cache_lines(source: tuple[list[TensorEntry], list[bytes]]) -> None:
    for spec in plan_segment(source[0], packed=True).tensors:
        assert spec.offset_bytes % CACHE_LINE == 0


def bytes_wanted(entries: Sequence[TensorEntry]) -> int:
    return len({(e.file_index, e.offset_bytes + i) for e in entries for i in range(e.size_bytes)})


@given(sources(overlapping=False), st.booleans())
def test_no_byte_is_brought_twice(source: tuple[list[TensorEntry], list[bytes]], packed: bool) -> None:
    plan = plan_segment(source[0], packed=packed)
    assert sum(extent.size for extent in plan.extents) == bytes_wanted(source[0])


@given(sources(overlapping=True, dtypes=["U8"]))
def test_aligned_tensors_of_a_base_share_the_bytes_that_they_share_in_the_file(
    source: tuple[list[TensorEntry], list[bytes]],
) -> None:
    plan = plan_segment(source[0], packed=False)
    assert sum(extent.size for extent in plan.extents) == bytes_wanted(source[0])


@given(any_source)
def test_a_base_keeps_the_offset_in_its_block_of_all_that_is_aligned(
    source: tuple[list[TensorEntry], list[bytes]],
) -> None:
    entries, _ = source
    strictest: dict[tuple[int, int, int], int] = {}
    for e in entries:
        key = (e.file_index, e.offset_bytes, e.size_bytes)
        strictest[key] = max(strictest.get(key, 1), ALIGN[e.dtype])
    places = {spec.name: spec.offset_bytes for spec in plan_segment(entries, packed=False).tensors}
    for e in entries:
        if e.size_bytes and e.offset_bytes % strictest[e.file_index, e.offset_bytes, e.size_bytes] == 0:
            assert places[e.name] % BLOCK == e.offset_bytes % BLOCK


@given(any_source, st.booleans())
def test_tied_names_share_one_place(source: tuple[list[TensorEntry], list[bytes]], packed: bool) -> None:
    entries, _ = source
    places = {spec.name: spec.offset_bytes for spec in plan_segment(entries, packed=packed).tensors}
    by_range: dict[tuple[int, int, int], set[int]] = {}
    for e in entries:
        by_range.setdefault((e.file_index, e.offset_bytes, e.size_bytes), set()).add(places[e.name])
    assert all(len(found) == 1 for found in by_range.values())


@given(any_source, st.booleans(), st.randoms())
def test_the_order_of_the_entries_does_not_matter(
    source: tuple[list[TensorEntry], list[bytes]], packed: bool, rng: random.Random
) -> None:
    entries, _ = source
    shuffled = list(entries)
    rng.shuffle(shuffled)
    assert plan_segment(shuffled, packed=packed) == plan_segment(entries, packed=packed)


@given(any_source, st.booleans())
def test_tensors_are_listed_as_they_lie(source: tuple[list[TensorEntry], list[bytes]], packed: bool) -> None:
    tensors = plan_segment(source[0], packed=packed).tensors
    assert list(tensors) == sorted(tensors, key=lambda s: (s.offset_bytes, s.size_bytes, s.name))


def test_an_aligned_file_is_one_run() -> None:
    plan = plan_segment([entry(f"t{i}", "F32", 100, 0, 1000 + 400 * i) for i in range(50)], packed=False)
    (extent,) = plan.extents
    assert (extent.file_offset, extent.size) == (1000, 20000)
    assert extent.segment_offset == SEGMENT_HEADER + 1000


def test_only_the_misaligned_tensor_leaves_its_run() -> None:
    entries = [entry("odd", "U8", 3, 0, 4096), entry("wide", "F32", 4, 0, 4099), entry("last", "U8", 9, 0, 4115)]
    plan = plan_segment(entries, packed=False)
    places = {spec.name: spec.offset_bytes for spec in plan.tensors}
    assert places["odd"] % BLOCK == 0
    assert places["last"] % BLOCK == 19
    assert places["wide"] % CACHE_LINE == 0
    assert places["wide"] > places["last"]


def test_a_file_whose_every_tensor_is_misaligned_takes_its_size_once() -> None:
    entries = [entry(f"t{i}", "BF16", 32, 0, 1 + 64 * i) for i in range(1000)]
    assert plan_segment(entries, packed=False).data_end == SEGMENT_HEADER + 64 * 1000


@pytest.mark.parametrize("packed", [True, False])
def test_a_tensor_inside_another_gets_its_own_alignment(packed: bool) -> None:
    plan = plan_segment([entry("outer", "U8", 64, 0, 0), entry("inner", "I64", 4, 0, 4)], packed=packed)
    inner = next(spec for spec in plan.tensors if spec.name == "inner")
    assert inner.offset_bytes % 8 == 0


@pytest.mark.parametrize("packed", [True, False])
def test_a_source_of_empty_tensors_has_no_extents(packed: bool) -> None:
    """B25: nothing is waited for, and the tensors lie where data could be."""
    plan = plan_segment([TensorEntry("e", "BF16", (0, 4), 0, 80, 0)], packed=packed)
    assert plan.extents == ()
    assert plan.data_end == SEGMENT_HEADER
    assert plan.tensors[0].offset_bytes == SEGMENT_HEADER


def test_no_entries_make_an_empty_plan() -> None:
    assert plan_segment([], packed=False) == SegmentPlan((), (), SEGMENT_HEADER)
