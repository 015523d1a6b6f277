"""Filling a segment whose reads may only be cut at certain places, as encrypted ones."""

from __future__ import annotations

import random
from itertools import pairwise

import crc32c
import pytest

from warmshelf.segment import BLOCK_BYTES, Section
from warmshelfd.domain.extents import SegmentPlan, TensorEntry, plan_segment
from warmshelfd.memory.filling import Filling
from warmshelfd.memory.parts import PART_BYTES, pieces

MIB = 1 << 20
SETS = [
    [100],
    [3 * MIB + 1],
    [PART_BYTES],
    [5, 36 * MIB + 3, 999, 33 * MIB],
    [MIB + i for i in range(40)],
]


def plan_of(sizes: list[int], step: int, *, packed: bool = False) -> SegmentPlan:
    entries, offset = [], 77
    for i, size in enumerate(sizes):
        entries.append(TensorEntry(f"t{i}", "U8", (size,), 0, offset, size))
        offset += size + 150  # a header is between them
    return plan_segment(entries, packed=packed, step_bytes=step)


class WholeSteps:
    """A file of known bytes, of which only whole steps of a tensor can be read."""

    def __init__(self, plan: SegmentPlan, step: int) -> None:
        self.step = step
        self.ends = {e.file_offset + e.size for e in plan.extents}
        self.starts = sorted(e.file_offset for e in plan.extents)
        self.data = random.Random(1).randbytes(max(self.ends))
        self.read_bytes = 0

    def read(self, file_index: int, offset: int, view: memoryview) -> None:
        start = max(at for at in self.starts if at <= offset)
        assert (offset - start) % self.step == 0
        assert len(view) % self.step == 0 or offset + len(view) in self.ends
        view[:] = self.data[offset : offset + len(view)]
        self.read_bytes += len(view)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("step", [1984, 4 * MIB - 64])
@pytest.mark.parametrize("sizes", SETS, ids=["one step", "some", "a part", "several parts", "many"])
def test_each_step_is_read_once_and_whole_and_every_block_has_its_crc(
    sizes: list[int], step: int, packed: bool
) -> None:
    plan = plan_of(sizes, step, packed=packed)
    file = WholeSteps(plan, step)
    size = plan.data_end + 5000  # what is behind the data
    allocated: list[tuple[int, int]] = []
    with memoryview(bytearray(size)) as view:
        data = Section(4096, plan.data_end - 4096)
        filling = Filling(
            view, plan, data, lambda *part: allocated.append(part), file.read, lambda: False, lambda _: None
        )
        filling.run(3)
        assert file.read_bytes == sum(sizes)
        for extent in plan.extents:
            place = slice(extent.segment_offset, extent.segment_offset + extent.size)
            assert view[place] == file.data[extent.file_offset : extent.file_offset + extent.size]
        cuts = [4096, *range(BLOCK_BYTES, plan.data_end, BLOCK_BYTES), plan.data_end]
        assert list(filling.crcs) == [crc32c.crc32c(view[a:b]) for a, b in pairwise(cuts)]
    allocated.sort()
    assert allocated[0][0] == 0
    assert [at + length for at, length in allocated] == [*(at for at, _ in allocated[1:]), size]


def test_without_steps_a_range_is_cut_at_its_multiples() -> None:
    plan = plan_of([3 * MIB], 0)
    assert list(pieces(plan, 100, 3 * MIB, MIB)) == [(100, MIB), (MIB, 2 * MIB), (2 * MIB, 3 * MIB)]
    assert plan.cut(12345) == 12345


def test_a_cut_is_put_off_to_the_end_of_its_step_or_tensor() -> None:
    plan = plan_of([2500, 10], 1024)
    first, second = plan.extents
    at = first.segment_offset
    assert [plan.cut(at + i) - at for i in (0, 1, 1024, 1025, 2049, 2500)] == [0, 1024, 1024, 2048, 2500, 2500]
    assert plan.cut(at - 1) == at - 1
    assert plan.cut(second.segment_offset + 3) == second.segment_offset + 10
    assert plan.cut(plan.data_end + 7) == plan.data_end + 7
    assert plan_segment([], packed=False, step_bytes=64).cut(5000) == 5000
