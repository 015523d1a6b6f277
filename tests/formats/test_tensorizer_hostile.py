"""Hostile, broken and sloppy `.tensors` files: each is refused, and says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

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


class Hostile:
    """A file that must be refused."""

    tensors: ClassVar[list[Written]] = [A, B]
    options: ClassVar[dict[str, int]] = {}
    patch: ClassVar[tuple[str, int | bytes] | None] = None
    error: ClassVar[type[WarmshelfError]] = MalformedArtifact
    says: ClassVar[str]

    def content(self) -> bytes:
        file = tensors_file(self.tensors, **self.options)
        return file.patched(*self.patch) if self.patch else file.content


class AnotherMagic(Hostile):
    patch = ("magic", b"|TZZ|")
    says = "does not begin as a .tensors file does"


class TextInstead(Hostile):
    says = "does not begin as a .tensors file does"

    def content(self) -> bytes:
        return b"version https://git-lfs.github.com/spec/v1\n"


class PickleUnderAnotherName(Hostile):
    error = UnsupportedFormat
    says = "is a pickle"

    def content(self) -> bytes:
        return b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


class TorchZipUnderAnotherName(Hostile):
    error = UnsupportedFormat
    says = "is a pickle"

    def content(self) -> bytes:
        return b"PK\x03\x04" + bytes(100)


class VersionZero(Hostile):
    patch = ("version", 0)
    error = UnsupportedFormat
    says = "of version 0; read are 1, 2, 4, 5"


class VersionOfTheFuture(Hostile):
    patch = ("version", 6)
    error = UnsupportedFormat
    says = "of version 6"


class EncryptedVersion(Hostile):
    patch = ("version", 3)
    error = UnsupportedFormat
    says = "is encrypted"


class EncryptedByFlag(Hostile):
    options: ClassVar[dict[str, int]] = {"version": 4, "flags": 1}
    error = UnsupportedFormat
    says = "is encrypted"


class EncryptedWithLongDimensions(Hostile):
    options: ClassVar[dict[str, int]] = {"version": 5, "flags": 3}
    error = UnsupportedFormat
    says = "is encrypted"


class FlagsBeforeTheyWere(Hostile):
    options: ClassVar[dict[str, int]] = {"version": 2, "flags": 1}
    says = "has flags 0x1"


class UnknownFlag(Hostile):
    options: ClassVar[dict[str, int]] = {"version": 4, "flags": 1 << 255}
    says = "has flags 0x8"


class RowVersionsInVersionFour(Hostile):
    options: ClassVar[dict[str, int]] = {"version": 4, "flags": 2}
    says = "has flags 0x2, in version 4 they are 0x0"


class VersionFiveWithoutRowVersions(Hostile):
    options: ClassVar[dict[str, int]] = {"version": 5, "flags": 0}
    says = "has flags 0x0, in version 5 they are 0x2"


class NoTensors(Hostile):
    tensors: ClassVar[list[Written]] = []
    says = "no tensors"


class OneTensorLess(Hostile):
    """What a reader that believes the number would silently leave out."""

    patch = ("tensor_count", 1)
    says = "its index goes on after its 1 tensors"


class NoTensorsCounted(Hostile):
    patch = ("tensor_count", 0)
    says = "its index goes on after its 0 tensors"


class OneTensorMore(Hostile):
    patch = ("tensor_count", 3)
    says = "tensor number 2 of its index has no name"


class TooManyTensors(Hostile):
    tensors: ClassVar[list[Written]] = [Written(b"%d" % i, b"|u1", (0,), b"") for i in range(101)]
    says = "says that it has 101 tensors, at most 100"


class IndexOverTheLimit(Hostile):
    options: ClassVar[dict[str, int]] = {"index_bytes": (1 << 16) + 1}
    says = "says that its index has 65537 bytes, at most 65536"


class IndexOfNothing(Hostile):
    patch = ("index_length", 0)
    says = "its index has 0 bytes"


class SomethingBehindTheRows(Hostile):
    patch = ("spare", bytes(15) + b"x")
    says = "its index goes on after its 2 tensors"


class NameTwice(Hostile):
    tensors: ClassVar[list[Written]] = [A, A]
    says = "has two tensors 'aa'"


class NameThatIsAPathTwice(Hostile):
    tensors: ClassVar[list[Written]] = [
        Written(b"\x1e[0]", b"|u1", (0,), b""),
        Written(b"[0]", b"|u1", (0,), b""),
    ]
    says = "has two tensors '[0]'"


class NoName(Hostile):
    tensors: ClassVar[list[Written]] = [Written(b"", b"|u1", (0,), b"")]
    says = "tensor number 0 of its index has no name"


class LongName(Hostile):
    tensors: ClassVar[list[Written]] = [Written(b"n" * 513, b"|u1", (0,), b"")]
    says = "has a name of 513 bytes, at most 512"


class NameThatIsNotUtf8(Hostile):
    tensors: ClassVar[list[Written]] = [Written(b"a\xff", b"|u1", (0,), b"")]
    says = "has a name that is not UTF-8"


class NameOfHalfASurrogatePair(Hostile):
    tensors: ClassVar[list[Written]] = [Written(b"\xed\xa0\x80", b"|u1", (0,), b"")]
    says = "has a name that is not UTF-8"


class NameWithNul(Hostile):
    tensors: ClassVar[list[Written]] = [Written(b"a\0b", b"|u1", (0,), b"")]
    says = "control character"


class NameWithEscape(Hostile):
    tensors: ClassVar[list[Written]] = [Written("a\x9bb".encode(), b"|u1", (0,), b"")]
    says = "control character"


class UnknownKind(Hostile):
    tensors: ClassVar[list[Written]] = [Written(b"w", b"|u1", (0,), b"", kind=3)]
    says = "tensor 'w' is of kind 3"


class PathOfAParameter(Hostile):
    tensors: ClassVar[list[Written]] = [Written(b'\x1e["a",0]', b"|u1", (0,), b"", kind=0)]
    says = "is of kind 0"


class RankOverTheLimit(Hostile):
    tensors: ClassVar[list[Written]] = [Written(b"w", b"|u1", (1,) * 9, b"x")]
    says = "at most 8 dimensions"


class ProductThatOverflows(Hostile):
    tensors: ClassVar[list[Written]] = [Written(b"w", b"|u1", (1 << 31, 1 << 31, 4), b"")]
    says = "tensor 'w' has no shape"


class HugeProductHiddenByAZero(Hostile):
    tensors: ClassVar[list[Written]] = [Written(b"w", b"|u1", (0, 1 << 62), b"")]
    options: ClassVar[dict[str, int]] = {"version": 5}
    says = "tensor 'w' has no shape"


class MetaTensor(Hostile):
    tensors: ClassVar[list[Written]] = [A, Written(b"m", b"<f4", (8192, 8192), b"")]
    options: ClassVar[dict[str, int]] = {"version": 4}
    error = UnsupportedFormat
    says = "tensor 'm' has a shape of 268435456 bytes, but none of them"


class ShapeThatIsNotTheData(Hostile):
    tensors: ClassVar[list[Written]] = [Written(b"w", b"<f4", (3,), bytes(8))]
    says = "takes 12 bytes, the index says 8"


class HalfAByte(Hostile):
    tensors: ClassVar[list[Written]] = [Written(b"w", b"|V1\0torch.float4_e2m1fn_x2", (), b"x")]
    says = "4 bits do not fill whole bytes"


class HeadersSwapped(Hostile):
    """Index and headers are sound, but of each other's tensor."""

    says = "the header of tensor 'aa' has not the name that it should"

    def content(self) -> bytes:
        other = tensors_file([B, A])
        start = GOOD.places["header0.length"][0]
        return GOOD.content[:start] + other.content[start:]


class RowsSwapped(Hostile):
    says = "would begin at byte"

    def content(self) -> bytes:
        first, second = (GOOD.places[f"row{i}.name_length"][0] for i in range(2))
        end = GOOD.places["spare"][0]
        whole = GOOD.content
        return whole[:first] + whole[second:end] + whole[first:second] + whole[end:]


class TwoTensorsOfOneData(Hostile):
    says = "the header of tensor 'bb' would begin at byte"

    def content(self) -> bytes:
        start, end = GOOD.places["row1.header_offset"][0], GOOD.places["spare"][0]
        place = b"".join(GOOD.get(f"row0.{field}") for field in ("header_offset", "data_offset", "data_length"))
        return GOOD.content[:start] + place + GOOD.content[end:]


class CrcTwice(Hostile):
    patch = ("header1.sha256_type", 0)
    says = "the header of tensor 'bb' has not the SHA-256"


class HashOfAnUnknownType(Hostile):
    patch = ("header0.crc32_type", 2)
    says = "the header of tensor 'aa' has not the CRC32"


class NoHashes(Hostile):
    patch = ("header0.hash_count", 0)
    says = "has not the CRC32"


class ThreeHashes(Hostile):
    patch = ("header0.hash_count", 3)
    says = "has not the CRC32"


class HashesOfAnotherLength(Hostile):
    patch = ("header0.hashes_length", 40)
    says = "has not the CRC32"


class CrcOfAnotherLength(Hostile):
    patch = ("header0.crc32_length", 0)
    says = "has not the CRC32"


class ShaOfAnotherLength(Hostile):
    patch = ("header0.sha256_length", 31)
    says = "has not the SHA-256"


class CompressedData(Hostile):
    """A negative length was once meant to say so."""

    patch = ("header0.data_length", (1 << 64) - 16)
    says = "has not the data's length"


class NoEnd(Hostile):
    patch = ("end", 1)
    says = "does not end with 8 zeros"


class TrailingBytes(Hostile):
    says = "its tensors end at byte"

    def content(self) -> bytes:
        return GOOD.content + b"\0"


@pytest.mark.parametrize("hostile", Hostile.__subclasses__(), ids=lambda cls: cls.__name__)
def test_a_hostile_file_is_refused(hostile: type[Hostile], inspect: Inspect) -> None:
    """B20, T28: a typed error that names the file and what is wrong with it."""
    with pytest.raises(WarmshelfError) as caught:
        inspect(hostile().content())
    assert type(caught.value) is hostile.error
    assert hostile.says in caught.value.message
    assert "model.tensors" in caught.value.message
    assert len(caught.value.message) < 1000


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
            check.check_crc32(memoryview(content)[e.offset_bytes : e.offset_bytes + e.size_bytes])
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
