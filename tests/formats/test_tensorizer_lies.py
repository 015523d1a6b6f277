"""`.tensors` files of which one field lies, a byte is missing or a bit is flipped."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest

from kit.tensors_file import TensorsFile, Written, tensors_file
from warmshelf.errors import (
    DigestMismatch,
    MalformedArtifact,
    SourceTruncated,
    UnsupportedDtype,
    UnsupportedFormat,
    WarmshelfError,
)
from warmshelfd.formats.base import FormatLimits, Inspected
from warmshelfd.formats.tensorizer import TensorizerFormat

Inspect = Callable[..., Inspected]

LIMITS = FormatLimits(header_bytes_max=1 << 16, tensor_count_max=100)

A = Written(b"aa", b"<f4", (2, 2), bytes(range(16)))
B = Written(b"bb", b"<i4", (2, 2), bytes(range(16, 32)))
GOOD = tensors_file([A, B])
LONG = tensors_file([A, Written(b"cc", b"<i4", (0, 1 << 40), b"")], version=5)


@pytest.fixture
def inspect(memory_files: Any) -> Inspect:
    def run(content: bytes) -> Inspected:
        return TensorizerFormat().inspect(memory_files({"model.tensors": content}), LIMITS)

    return run


NUMBERS = [0, 1, 100, 101, (1 << 16), (1 << 16) + 1, 1 << 31, (1 << 63) - 1, (1 << 64) - 1]

FIELDS = [
    label
    for label in LONG.places
    if label.endswith(("version", "tensor_count", "_length", ".length", ".kind", ".rank", "_offset", "_type", "_count"))
]


@pytest.mark.parametrize("label", FIELDS)
def test_no_number_of_a_header_is_believed(label: str, inspect: Inspect) -> None:
    """B20, T28: lengths, counts, kinds, offsets and versions at and around every limit."""
    right = LONG.get(label)
    assert len(inspect(LONG.content).entries) == 2
    for number in NUMBERS:
        value = (number & ((1 << 8 * len(right)) - 1)).to_bytes(len(right), "little")
        if value != right:
            with pytest.raises((MalformedArtifact, SourceTruncated, UnsupportedFormat)):
                inspect(LONG.patched(label, value))


@pytest.mark.parametrize("label", ["row1.dims", "header1.dims"])
@pytest.mark.parametrize("number", NUMBERS)
def test_no_dimension_is_believed(label: str, number: int, inspect: Inspect) -> None:
    raw = number.to_bytes(8, "little")
    for dims in (raw + LONG.get(label)[8:], LONG.get(label)[:8] + raw):
        changed = LONG.patched(label, dims)
        if changed != LONG.content:
            with pytest.raises((MalformedArtifact, UnsupportedFormat)):
                inspect(changed)


UNKNOWN_DTYPES = [
    *(b"", b"O", b"|O", b"|O8", b">f4", b"=f4", b"f4", b"<f3", b"<f16", b"|S4", b"<U1", b"<M8[ns]", b"|V4", b"<V4"),
    *(b"<V4\0", b"<V4\0float32", b"<V4\0torch.", b"<V4\0torch.int1", b"<V4\0torch.quint4x2", b"<V4\0torch.nn", b"F32"),
    *(b"<V2\0torch.float32", b"<V4\0torch.bfloat16", b"<f4\0torch.float32", b"<V4\0torch.float32\0torch.float32"),
    *(b"<V4\0os.system", b"[('a','<f4')]", b"<f4,<f4", b"\xff\xfe", b"<f4 ", b"<F4", b"x" * 255),
]


@pytest.mark.parametrize("dtype", UNKNOWN_DTYPES)
def test_an_unknown_dtype_is_named_with_its_tensor(dtype: bytes, inspect: Inspect) -> None:
    """B23, T28."""
    with pytest.raises(UnsupportedDtype) as caught:
        inspect(tensors_file([A, Written(b"layer.w", dtype, (1,), bytes(4))]).content)
    assert caught.value.details["tensor"] == "layer.w"
    shown = str(caught.value.details["dtype"])
    assert shown.isprintable()
    assert repr("layer.w") in caught.value.message
    assert repr(shown) in caught.value.message


@pytest.mark.parametrize("where", ["row0.dtype", "header0.dtype"])
@pytest.mark.parametrize("dtype", [b"<i4", b"<u4", b"<f8", b"<f2", b"<c8"])
def test_a_dtype_that_only_one_of_the_two_tells_is_refused(where: str, dtype: bytes, inspect: Inspect) -> None:
    with pytest.raises(MalformedArtifact, match="tensor 'aa'"):
        inspect(GOOD.patched(where, dtype))


@pytest.mark.parametrize(
    "path",
    [
        *(b"", b"[", b"[]", b"{}", b"0", b'"a"', b'["a"]', b'["a",]', b'["a", 0]', b'["a",0] ', b'["a",-1]', b"[-0]"),
        *(b'["a",true]', b'["a",null]', b'["a",1.0]', b'["a",1e2]', b'["a",NaN]', b'["a",["b"]]', b'["a",{"b":0}]'),
        *(b'["\\u0061",0]', b'["\xc3\xa9",0]', b'["\\/",0]', b"[" * 500, b"[" + b"9" * 500, b"[00]"),
    ],
)
def test_a_path_that_no_writer_writes_is_refused(path: bytes, inspect: Inspect) -> None:
    with pytest.raises(MalformedArtifact, match="has a path that no writer writes"):
        inspect(tensors_file([Written(b"\x1e" + path, b"|u1", (0,), b"")]).content)


def test_a_file_cut_anywhere_is_refused_with_both_sizes(inspect: Inspect) -> None:
    """B19, B20, S1: inside the front, the index, every header and tensor, and the end."""
    whole = GOOD.content
    for size in range(len(whole)):
        with pytest.raises(SourceTruncated) as caught:
            inspect(whole[:size])
        assert caught.value.details["size_bytes"] == size
        assert size < int(caught.value.details["expected_bytes"]) <= len(whole)


def meaning(inspected: Inspected, content: bytes) -> list[object]:
    return [
        (e.name, e.dtype, e.shape, content[e.offset_bytes : e.offset_bytes + e.size_bytes]) for e in inspected.entries
    ]


def pass_crc32(inspected: Inspected, content: bytes) -> bool:
    try:
        for e, check in zip(inspected.entries, inspected.checks, strict=True):
            check.check_crc32(zlib.crc32(content[e.offset_bytes : e.offset_bytes + e.size_bytes]), e.size_bytes)
    except DigestMismatch:
        return False
    return True


@pytest.mark.parametrize("file", [GOOD, LONG], ids=["version 1", "version 5"])
def test_one_flipped_bit_anywhere_is_noticed_where_it_matters(file: TensorsFile, inspect: Inspect) -> None:
    """B19: what is not refused, by the headers or by the CRC32, means the same as before."""
    right = meaning(inspect(file.content), file.content)
    unnoticed = set()
    for label, (offset, size) in file.places.items():
        for bit in range(8 * size):
            content = bytearray(file.content)
            content[offset + bit // 8] ^= 1 << bit % 8
            try:
                inspected = inspect(bytes(content))
            except WarmshelfError:
                continue
            if pass_crc32(inspected, bytes(content)):
                assert meaning(inspected, bytes(content)) == right
                unnoticed.add(label)
    assert unnoticed == {"size", "unused", "header0.sha256", "header1.sha256"}
