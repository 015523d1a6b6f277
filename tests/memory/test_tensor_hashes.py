"""Hashes that are taken while a segment is filled are those that are taken afterwards."""

from __future__ import annotations

import itertools

import blake3
from hypothesis import given
from hypothesis import strategies as st

from warmshelf.layout import TensorSpec
from warmshelfd.digesting import TensorHashes, content_digest


@given(
    sizes=st.lists(st.integers(0, 40), max_size=12),
    cuts=st.lists(st.integers(0, 500), max_size=6),
    tied=st.booleans(),
)
def test_whatever_ranges_are_told_the_digest_is_the_same(sizes: list[int], cuts: list[int], tied: bool) -> None:
    tensors, at = [], 3
    for number, size in enumerate(sizes):
        tensors.append(TensorSpec(f"t{number}", "U8", (size,), at, size))
        at += size + number % 3
    if tensors and tied:
        tensors.append(TensorSpec("tied", "U8", tensors[0].shape, tensors[0].offset_bytes, tensors[0].size_bytes))
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


def _is_cut(tensor: TensorSpec, edges: list[int]) -> bool:
    return any(tensor.offset_bytes < edge < tensor.end_bytes for edge in edges)
