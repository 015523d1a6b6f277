"""Hostile safetensors files, each a small class named for what is wrong with it."""

from __future__ import annotations

import json
from typing import ClassVar

from warmshelf.errors import MalformedArtifact, SourceTruncated, UnsupportedDtype, UnsupportedFormat, WarmshelfError
from warmshelfd.formats.base import FormatLimits

LIMITS = FormatLimits(header_bytes_max=1 << 16, tensor_count_max=100, metadata_bytes_max=1000)


def blob(header: object, data: bytes = b"") -> bytes:
    """Return a file with this header: an object, or the bytes themselves."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def tensor(dtype: str = "F32", shape: object = (1,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


GOOD = tensor()
GOOD_TEXT = json.dumps(GOOD).encode()


class Hostile:
    """A file that must be refused."""

    header: ClassVar[object] = None
    data: ClassVar[bytes] = bytes(4)
    error: ClassVar[type[WarmshelfError]] = MalformedArtifact
    says: ClassVar[str]

    def content(self) -> bytes:
        return blob(self.header, self.data)


class LengthOfTwoTo63(Hostile):
    says = "says that its header has 9223372036854775808 bytes"

    def content(self) -> bytes:
        return (1 << 63).to_bytes(8, "little") + b'{"a":1}'


class LengthJustOverTheLimit(Hostile):
    says = "says that its header has 65537 bytes, at most 65536"

    def content(self) -> bytes:
        return (LIMITS.header_bytes_max + 1).to_bytes(8, "little") + b"{"


class LengthOfZero(Hostile):
    says = "has no header"

    def content(self) -> bytes:
        return bytes(8) + b"abcd"


class LengthBeyondTheFile(Hostile):
    error = SourceTruncated
    says = "has 10 bytes, needs at least 108"

    def content(self) -> bytes:
        return (100).to_bytes(8, "little") + b"{}"


class SpaceBeforeTheHeader(Hostile):
    header = b' {"a":' + GOOD_TEXT + b"}"
    says = "has no header"


class ByteOrderMark(Hostile):
    header = b"\xef\xbb\xbf" + b'{"a":' + GOOD_TEXT + b"}"
    says = "has no header"


class NoJson(Hostile):
    header = b"{this is no JSON}"
    says = "a string should begin at byte 1"


class HeaderCutShort(Hostile):
    header = b'{"a":' + GOOD_TEXT
    says = "'}' should stand"


class NulPadding(Hostile):
    header = b'{"a":' + GOOD_TEXT + b"}\0\0"
    says = "something follows the JSON"


class SecondObject(Hostile):
    header = b'{"a":' + GOOD_TEXT + b"}{}"
    says = "something follows the JSON"


class OneNameTwice(Hostile):
    header = b'{"a":' + GOOD_TEXT + b',"a":' + GOOD_TEXT + b"}"
    says = "the key 'a' stands there twice"


class OneNameTwiceInDisguise(Hostile):
    header = b'{"a":' + GOOD_TEXT + b',"\\u0061":' + GOOD_TEXT + b"}"
    says = "the key 'a' stands there twice"


class OneMemberTwice(Hostile):
    header = b'{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    says = "a key stands there twice"


class MetadataTwice(Hostile):
    header = b'{"__metadata__":{},"__metadata__":{},"a":' + GOOD_TEXT + b"}"
    says = "has __metadata__ twice"


class MetadataKeyTwice(Hostile):
    header = b'{"__metadata__":{"k":"1","k":"2"},"a":' + GOOD_TEXT + b"}"
    says = "the key 'k' stands there twice"


class MetadataThatIsNoText(Hostile):
    header: ClassVar[object] = {"__metadata__": {"k": 1}, "a": GOOD}
    says = "a string should begin"


class MetadataThatIsATensor(Hostile):
    header: ClassVar[object] = {"__metadata__": GOOD}
    says = "a string should begin"


class LongMetadata(Hostile):
    header: ClassVar[object] = {"__metadata__": {"k": "x" * 1001}, "a": GOOD}
    says = "a string has 1001 bytes, at most 1000"


class MuchMetadata(Hostile):
    header: ClassVar[object] = {"__metadata__": {str(i): "x" * 90 for i in range(11)}, "a": GOOD}
    says = "a value has more than 1000 bytes"


class UnknownMember(Hostile):
    header: ClassVar[object] = {"a": {**GOOD, "extra": 1}}
    says = "other members"


class MissingMember(Hostile):
    header: ClassVar[object] = {"a": {"dtype": "F32", "shape": [1]}}
    says = "other members"


class TensorThatIsAList(Hostile):
    header: ClassVar[object] = {"a": ["F32", [1], [0, 4]]}
    says = "an object of at most 1024 bytes should begin"


class TensorWithALongDescription(Hostile):
    header: ClassVar[object] = {"a": tensor(shape=[1] * 500)}
    says = "an object of at most 1024 bytes should begin"


class DeepNesting(Hostile):
    header = b'{"a":' + b"[" * 30000 + b"]" * 30000 + b"}"
    says = "an object of at most 1024 bytes should begin"


class DeepNestingInside(Hostile):
    header = b'{"a":{"dtype":' + b"[" * 990 + b"}}"
    says = "an object cannot be read"


class UnknownDtype(Hostile):
    """B23."""

    header: ClassVar[object] = {"w": tensor("X9")}
    error = UnsupportedDtype
    says = "tensor 'w' has dtype 'X9'"


class UnknownDtypeWithWildOffsets(Hostile):
    header: ClassVar[object] = {"w": tensor("X9", offsets=[1 << 62, 1 << 63])}
    error = UnsupportedDtype
    says = "tensor 'w' has dtype 'X9'"


class DtypeOfOtherFormats(Hostile):
    header: ClassVar[object] = {"w": tensor("C128", offsets=[0, 16])}
    data = bytes(16)
    error = UnsupportedDtype
    says = "'C128'"


class DtypeThatIsNoText(Hostile):
    header = b'{"w":{"dtype":[7],"shape":[1],"data_offsets":[0,4]}}'
    error = UnsupportedDtype
    says = "dtype '[7]'"


class NegativeDimension(Hostile):
    header: ClassVar[object] = {"a": tensor(shape=[-1])}
    says = "-1 is no natural number"


class MinusZero(Hostile):
    header = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[-0,4]}}'
    says = "-0 is no natural number"


class FloatOffset(Hostile):
    header: ClassVar[object] = {"a": tensor(offsets=[0, 4.0])}
    says = "4.0 is no natural number"


class NanOffset(Hostile):
    header = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,NaN]}}'
    says = "NaN is no natural number"


class BooleanDimension(Hostile):
    header: ClassVar[object] = {"a": tensor(shape=[True])}
    says = "tensor 'a' has no shape"


class ShapeThatIsNoList(Hostile):
    header: ClassVar[object] = {"a": tensor(shape=1)}
    says = "tensor 'a' has no shape"


class ShapeThatHoldsLists(Hostile):
    header: ClassVar[object] = {"a": tensor(shape=[[1]])}
    says = "tensor 'a' has no shape"


class RankOverTheLimit(Hostile):
    header: ClassVar[object] = {"a": tensor(shape=[1] * 9)}
    says = "at most 8 dimensions"


class ProductThatOverflows(Hostile):
    header: ClassVar[object] = {"a": tensor(shape=[1 << 32, 1 << 32])}
    says = "tensor 'a' has no shape"


class HugeProductHiddenByAZero(Hostile):
    header: ClassVar[object] = {"a": tensor(shape=[0, 1 << 62], offsets=[0, 0])}
    says = "tensor 'a' has no shape"


class NumberOfAThousandDigits(Hostile):
    header = b'{"a":{"dtype":"F32","shape":[' + b"9" * 900 + b'],"data_offsets":[0,4]}}'
    says = "tensor 'a' has no shape"


class ThreeOffsets(Hostile):
    header: ClassVar[object] = {"a": tensor(offsets=[0, 4, 8])}
    says = "tensor 'a' has no range of bytes"


class OffsetsBackwards(Hostile):
    header: ClassVar[object] = {"a": tensor(offsets=[4, 0])}
    says = "tensor 'a' has no range of bytes"


class ShapeThatIsNotTheRange(Hostile):
    header: ClassVar[object] = {"a": tensor(shape=[2])}
    says = "takes 8 bytes, its range has 4"


class HalfAByte(Hostile):
    header: ClassVar[object] = {"a": tensor("F4", [1], [0, 1])}
    data = bytes(1)
    says = "4 bits do not fill whole bytes"


class PartialOverlap(Hostile):
    header: ClassVar[object] = {"a": tensor(), "b": tensor(offsets=[2, 6])}
    data = bytes(6)
    says = "tensor 'b' overlaps another"


class SameRangeTwice(Hostile):
    header: ClassVar[object] = {"a": tensor(), "b": tensor()}
    says = "overlaps another"


class HoleInFront(Hostile):
    header: ClassVar[object] = {"a": tensor(offsets=[4, 8])}
    data = bytes(8)
    says = "tensor 'a' lies behind a hole"


class HoleBetween(Hostile):
    header: ClassVar[object] = {"a": tensor(), "b": tensor(offsets=[8, 12])}
    data = bytes(12)
    says = "tensor 'b' lies behind a hole"


class EmptyTensorInsideAnother(Hostile):
    header: ClassVar[object] = {"a": tensor(), "e": tensor(shape=[0], offsets=[2, 2])}
    says = "overlaps another"


class EmptyTensorPastTheEnd(Hostile):
    header: ClassVar[object] = {"a": tensor(), "e": tensor(shape=[0], offsets=[400, 400])}
    says = "lies behind a hole"


class TrailingBytes(Hostile):
    header: ClassVar[object] = {"a": GOOD}
    data = bytes(5)
    says = "its tensors end at byte"


class EndPastTheFile(Hostile):
    header: ClassVar[object] = {"a": tensor(shape=[1000], offsets=[0, 4000])}
    error = SourceTruncated
    says = "needs at least"


class TooManyTensors(Hostile):
    header: ClassVar[object] = {str(i): tensor(shape=[0], offsets=[0, 0]) for i in range(101)}
    data = b""
    says = "more than 100 tensors"


class NoTensors(Hostile):
    header: ClassVar[object] = {}
    data = b""
    says = "no tensors"


class LongName(Hostile):
    header: ClassVar[object] = {"n" * 513: GOOD}
    says = "a string has 513 bytes, at most 512"


class LongNameOfShortCharacters(Hostile):
    header = b'{"' + "\u00e9".encode() * 257 + b'":' + GOOD_TEXT + b"}"
    says = "a string has 514 bytes, at most 512"


class EndlessName(Hostile):
    header = b'{"' + b"n" * 60000 + b'":' + GOOD_TEXT + b"}"
    says = "a string does not end, is too long"


class NameWithNul(Hostile):
    header: ClassVar[object] = {"a\0b": GOOD}
    says = "control character"


class NameWithNewline(Hostile):
    header: ClassVar[object] = {"a\nb": GOOD}
    says = "control character"


class NameWithRawNewline(Hostile):
    header = b'{"a\nb":' + GOOD_TEXT + b"}"
    says = "holds a control character"


class NameThatIsNotUtf8(Hostile):
    header = b'{"a\xff":' + GOOD_TEXT + b"}"
    says = "a string is not JSON in UTF-8"


class NameOfHalfASurrogatePair(Hostile):
    header = b'{"\\ud800":' + GOOD_TEXT + b"}"
    says = "a string is not JSON in UTF-8"


class NameWithAnEscapeThatIsNone(Hostile):
    header = b'{"\\x41":' + GOOD_TEXT + b"}"
    says = "a string is not JSON in UTF-8"


class TextInstead(Hostile):
    says = "at most 65536 are allowed"

    def content(self) -> bytes:
        return b"version https://git-lfs.github.com/spec/v1\n"


class TorchZipUnderAnotherName(Hostile):
    error = UnsupportedFormat
    says = "is a pickle"

    def content(self) -> bytes:
        return b"PK\x03\x04" + bytes(100)


class PickleUnderAnotherName(Hostile):
    error = UnsupportedFormat
    says = "is a pickle"

    def content(self) -> bytes:
        return b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
