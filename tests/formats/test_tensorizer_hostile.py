"""Hostile, broken and sloppy `.tensors` files: each is refused, and says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from kit.tensors_file import Written, tensors_file
from warmshelf.errors import MalformedArtifact, UnsupportedFormat, WarmshelfError
from warmshelfd.formats.base import FormatLimits, Inspected
from warmshelfd.formats.tensorizer import TensorizerFormat

Inspect = Callable[..., Inspected]

LIMITS = FormatLimits(header_bytes_max=1 << 16, tensor_count_max=100)

A = Written(b"aa", b"<f4", (2, 2), bytes(range(16)))
B = Written(b"bb", b"<i4", (2, 2), bytes(range(16, 32)))
GOOD = tensors_file([A, B])


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
    says = "of version 0; read are 1, 2, 3, 4, 5"


class VersionOfTheFuture(Hostile):
    patch = ("version", 6)
    error = UnsupportedFormat
    says = "of version 6"


class PlainTensorsInTheEncryptedVersion(Hostile):
    patch = ("version", 3)
    says = "the data of tensor 'aa' would begin at byte"


class PlainTensorsAndTheFlagOfEncryption(Hostile):
    options: ClassVar[dict[str, int]] = {"version": 4, "flags": 1}
    says = "the data of tensor 'aa' would begin at byte"


class PlainTensorsAndTheFlagInVersionFive(Hostile):
    options: ClassVar[dict[str, int]] = {"version": 5, "flags": 3}
    says = "the data of tensor 'aa' would begin at byte"


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
    options: ClassVar[dict[str, int]] = {"spare_bytes": 64}
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
