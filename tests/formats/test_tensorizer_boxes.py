"""What a header tells of encryption: read as tensorizer writes it, else refused."""

from __future__ import annotations

import struct
from typing import ClassVar

import pytest

from warmshelf.errors import MalformedArtifact, UnsupportedFormat, WarmshelfError
from warmshelfd.formats.base import Boxes, Derivation, FormatLimits
from warmshelfd.formats.tensorizer_boxes import NO_BOXES, CryptParser

LIMITS = FormatLimits(box_bytes_max=1 << 20, argon2_memory_bytes_max=1 << 20, argon2_passes_max=4)
NONCE, MACS, SALT = bytes(range(24)), bytes(range(100, 132)), b"sixteen byte old"
SIZE = 3000


def derivation(
    passes: int = 3, memory: int = 1 << 20, algorithm: int = 2, salt: bytes = SALT, method: int = 1
) -> bytes:
    return struct.pack("<HHQQiH", 1, method, passes, memory, algorithm, len(salt)) + salt


def boxes(size: int = 2048, count: int = 2, nonce: bytes = NONCE, macs: bytes = MACS) -> bytes:
    return struct.pack("<HQ24sQ", 2, size, nonce, count) + macs


def joined(*parts: bytes) -> bytes:
    return struct.pack("<H", len(parts)) + b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def parse(raw: bytes, size: int = SIZE) -> Boxes:
    return CryptParser("m.tensors", LIMITS).boxes("w", size, raw)


def test_a_random_key_leaves_only_boxes() -> None:
    parser = CryptParser("m.tensors", LIMITS)
    assert parser.boxes("w", SIZE, joined(boxes())) == Boxes(NONCE, MACS)
    assert (parser.box_bytes, parser.derivation) == (2048, None)


def test_a_passphrase_leaves_how_the_key_comes_from_it() -> None:
    parser = CryptParser("m.tensors", LIMITS)
    assert parser.boxes("w", SIZE, joined(derivation(), boxes())) == Boxes(NONCE, MACS)
    assert parser.derivation == Derivation(3, 1 << 20, SALT)


def test_a_tensor_without_bytes_has_no_boxes_and_says_nothing_of_the_key() -> None:
    parser = CryptParser("m.tensors", LIMITS)
    assert parser.boxes("none", 0, joined()) == NO_BOXES
    assert parser.boxes("w", SIZE, joined(derivation(), boxes())) == Boxes(NONCE, MACS)


class Hostile:
    """What must be refused."""

    raw: ClassVar[bytes]
    says: ClassVar[str]
    size: ClassVar[int] = SIZE
    error: ClassVar[type[WarmshelfError]] = MalformedArtifact


class NothingForATensorWithBytes(Hostile):
    raw, says, error = joined(), "another way", UnsupportedFormat


class BoxesOfNothing(Hostile):
    raw, says, size = joined(boxes(count=0, macs=b"")), "though it has no bytes", 0


class OneBoxForAll(Hostile):
    raw, says, error = joined(struct.pack("<H", 3) + NONCE + MACS[:16]), r"types \[3\]", UnsupportedFormat


class BoxesTwice(Hostile):
    raw, says, error = joined(boxes(), boxes()), "another way", UnsupportedFormat


class TheKeyAlone(Hostile):
    raw, says, error = joined(derivation()), "another way", UnsupportedFormat


class PartsThatAreNotThere(Hostile):
    raw, says = struct.pack("<H", 65535), "would end at byte"


class APartLongerThanAll(Hostile):
    raw, says = struct.pack("<HQ", 1, 1 << 62), "would end at byte"


class BytesBehind(Hostile):
    raw, says = joined(boxes()) + b"x", "goes on after its parts"


class BytesBehindTheMacs(Hostile):
    raw, says = joined(boxes(macs=MACS + b"x")), "goes on after its MACs"


class TooFewMacs(Hostile):
    raw, says = joined(boxes(macs=MACS[:-1])), "would end at byte"


class MoreBoxesThanBytes(Hostile):
    raw, says = joined(boxes(count=3, macs=MACS + MACS[:16])), "has 3 boxes of 2048 bytes, its 3000 bytes take 2"


class FewerBoxesThanBytes(Hostile):
    raw, says = joined(boxes(count=1, macs=MACS[:16])), "has 1 boxes"


class BoxesWithoutEnd(Hostile):
    raw, says = joined(boxes(count=(1 << 64) - 1)), "has 18446744073709551615 boxes"


class BoxesOfLengthZero(Hostile):
    raw, says = joined(boxes(size=0)), "boxes of 0 bytes"


class BoxesBelowWhatReadersTake(Hostile):
    raw, says = joined(boxes(size=960)), "boxes of 960 bytes; 1024 to 1048576"


class BoxesOfAnOddLength(Hostile):
    raw, says = joined(boxes(size=2049)), "in steps of 64"


class BoxesAboveTheLimit(Hostile):
    raw, says = joined(boxes(size=(1 << 20) + 64, count=1, macs=MACS[:16])), "1024 to 1048576 are allowed"


class MemoryAboveTheLimit(Hostile):
    raw, says = joined(derivation(memory=1 << 50), boxes()), "asks for 1125899906842624 bytes of memory"


class MemoryBelowWhatThereIs(Hostile):
    raw, says = joined(derivation(memory=8191), boxes()), "asks for 8191 bytes of memory"


class PassesAboveTheLimit(Hostile):
    raw, says = joined(derivation(passes=1 << 63), boxes()), "asks for 9223372036854775808 passes"


class NoPass(Hostile):
    raw, says = joined(derivation(passes=0), boxes()), "asks for 0 passes"


class AnotherAlgorithm(Hostile):
    raw, says = joined(derivation(algorithm=1), boxes()), "not come from a passphrase by Argon2id"


class ANegativeAlgorithm(Hostile):
    raw, says = joined(derivation(algorithm=-1), boxes()), "not come from a passphrase by Argon2id"


class AnotherMethod(Hostile):
    raw, says = joined(derivation(method=2), boxes()), "not come from a passphrase by Argon2id"


class AShortSalt(Hostile):
    raw, says = joined(derivation(salt=SALT[:-1]), boxes()), "not come from a passphrase by Argon2id"


class BytesBehindTheSalt(Hostile):
    raw, says = joined(derivation() + b"\0", boxes()), "not come from a passphrase by Argon2id"


@pytest.mark.parametrize("hostile", Hostile.__subclasses__(), ids=lambda cls: cls.__name__)
def test_what_a_hostile_header_tells_is_refused(hostile: type[Hostile]) -> None:
    """B20: typed, with the tensor, before anything is allocated or derived."""
    with pytest.raises(hostile.error, match=hostile.says) as caught:
        parse(hostile.raw, hostile.size)
    assert "'w'" in caught.value.message or hostile.says == "would end at byte"


def test_all_tensors_have_one_length_of_boxes_and_one_key() -> None:
    others = (boxes(size=1024, count=3, macs=MACS + MACS[:16]),), (derivation(), boxes())
    for other in others:
        parser = CryptParser("m.tensors", LIMITS)
        parser.boxes("w", SIZE, joined(boxes()))
        with pytest.raises(MalformedArtifact, match="differs from that of the tensors before it"):
            parser.boxes("v", SIZE, joined(*other))
