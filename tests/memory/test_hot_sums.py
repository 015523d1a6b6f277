"""What is computed while a segment is filled is what would be computed afterwards."""

from __future__ import annotations

import itertools
import random
import zlib
from concurrent.futures import ThreadPoolExecutor

import blake3
from hypothesis import given
from hypothesis import strategies as st

from warmshelf.layout import TensorSpec
from warmshelfd.digesting import content_digest
from warmshelfd.hot_sums import TensorCrcs, TensorHashes


def laid_out(sizes: list[int], *, tied: bool) -> list[TensorSpec]:
    """Return tensors one after the other, with gaps between some."""
    tensors, at = [], 3
    for number, size in enumerate(sizes):
        tensors.append(TensorSpec(f"t{number}", "U8", (size,), at, size))
        at += size + number % 3
    if tensors and tied:
        tensors.append(TensorSpec("tied", "U8", tensors[0].shape, tensors[0].offset_bytes, tensors[0].size_bytes))
    return tensors


@given(
    sizes=st.lists(st.integers(0, 40), max_size=12),
    cuts=st.lists(st.integers(0, 500), max_size=6),
    tied=st.booleans(),
)
def test_whatever_ranges_are_told_the_digest_is_the_same(sizes: list[int], cuts: list[int], tied: bool) -> None:
    tensors = laid_out(sizes, tied=tied)
    data = memoryview(bytes(range(256)) * 3)
    hashes = TensorHashes(tensors)
    edges = sorted({0, *cuts, len(data)})
    for start, end in itertools.pairwise(edges):
        hashes.take(data, start, end)
    whole = {(t.offset_bytes, t.end_bytes) for t in tensors if not _is_cut(t, edges)}
    assert hashes.known.keys() == whole
    for (start, end), found in hashes.known.items():
        assert found == blake3.blake3(data[start:end]).digest()

    def read(start: int, end: int) -> memoryview:
        assert (start, end) not in hashes.known  # those are not hashed again
        return data[start:end]

    plain = content_digest(tensors, lambda start, end: data[start:end], b"config", lambda: False)
    assert content_digest(tensors, read, b"config", lambda: False, hashes) == plain


@given(
    sizes=st.lists(st.integers(0, 40), max_size=12),
    cuts=st.lists(st.integers(0, 500), max_size=20),
    order=st.randoms(use_true_random=False),
    missing=st.booleans(),
)
def test_crc32s_are_put_together_from_ranges_in_any_order(
    sizes: list[int], cuts: list[int], order: random.Random, missing: bool
) -> None:
    tensors, data = laid_out(sizes, tied=True), memoryview(random.Random(1).randbytes(768))
    crcs = TensorCrcs(tensors)
    ranges = list(itertools.pairwise(sorted({0, *cuts, len(data)})))
    order.shuffle(ranges)
    left_out = ranges.pop() if missing else (0, 0)
    for start, end in ranges:
        crcs.take(data, start, end)
    for tensor in tensors:
        start, end = tensor.offset_bytes, tensor.end_bytes
        is_told = max(start, left_out[0]) >= min(end, left_out[1])
        assert crcs.crc32((start, end)) == (zlib.crc32(data[start:end]) if is_told else None)


def test_many_threads_tell_the_ranges_of_one_tensor() -> None:
    data = memoryview(random.Random(2).randbytes(1 << 20))
    crcs = TensorCrcs([TensorSpec("t", "U8", (len(data),), 0, len(data))])
    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(lambda start: crcs.take(data, start, start + 64), range(0, len(data), 64)):
            pass
    assert crcs.crc32((0, len(data))) == zlib.crc32(data)


def _is_cut(tensor: TensorSpec, edges: list[int]) -> bool:
    return any(tensor.offset_bytes < edge < tensor.end_bytes for edge in edges)
