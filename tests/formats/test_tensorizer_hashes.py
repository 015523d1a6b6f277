"""The hashes of a `.tensors` file against the bytes that were read."""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

import pytest

from kit.tensors_file import TensorsFile, Written, tensors_file
from warmshelf.errors import DigestMismatch
from warmshelfd.formats.base import Check, FormatLimits, Inspected
from warmshelfd.formats.tensorizer import TensorizerFormat
from warmshelfd.formats.tensorizer_hashes import HashedTensor

TENSORS = [
    Written(b"a", b"<f4", (16,), bytes(range(64)), kind=0, module=3),
    Written(b"empty", b"<f4", (0,), b""),
    Written(b"\x1e[0]", b"<V2\0torch.bfloat16", (3,), b"odd!!!"),
]


@pytest.fixture
def file() -> TensorsFile:
    return tensors_file(TENSORS, version=2)


@pytest.fixture
def inspected(file: TensorsFile, memory_files: Any) -> Inspected:
    return TensorizerFormat().inspect(memory_files({"m.tensors": file.content}), FormatLimits())


def views(file: TensorsFile, inspected: Inspected) -> list[tuple[Check, memoryview]]:
    whole = memoryview(file.content)
    return [
        (check, whole[e.offset_bytes : e.offset_bytes + e.size_bytes])
        for e, check in zip(inspected.entries, inspected.checks, strict=True)
    ]


def test_every_entry_has_its_hashes(file: TensorsFile, inspected: Inspected) -> None:
    for i, (entry, hashed) in enumerate(zip(inspected.entries, inspected.checks, strict=True)):
        assert isinstance(hashed, HashedTensor)
        assert hashed.name == entry.name
        assert hashed.crc32 == zlib.crc32(hashed.prefix + TENSORS[i].data)
        assert hashed.sha256 == hashlib.sha256(hashed.prefix + TENSORS[i].data).digest()
        assert (hashed.crc32.to_bytes(4, "little"), hashed.sha256) == (
            file.get(f"header{i}.crc32"),
            file.get(f"header{i}.sha256"),
        )


def test_hashes_can_be_looked_at_more_than_once(inspected: Inspected) -> None:
    assert list(inspected.checks) == list(inspected.checks)


def test_right_bytes_pass(file: TensorsFile, inspected: Inspected) -> None:
    for check, view in views(file, inspected):
        check.check_crc32(zlib.crc32(view), len(view))
        check.check_sha256([view])


@pytest.mark.parametrize("number", [0, 2])
def test_wrong_bytes_are_refused_with_both_values(number: int, file: TensorsFile, inspected: Inspected) -> None:
    """B19: a flipped byte of the data."""
    check, view = views(file, inspected)[number]
    assert isinstance(check, HashedTensor)
    wrong = bytearray(view)
    wrong[-1] ^= 0x10
    prefix = check.prefix
    with pytest.raises(DigestMismatch) as crc32:
        check.check_crc32(zlib.crc32(wrong), len(wrong))
    with pytest.raises(DigestMismatch) as sha256:
        check.check_sha256([memoryview(wrong)])
    name = ("a", "", "[0]")[number]
    assert crc32.value.details == {
        "tensor": name,
        "expected": f"{zlib.crc32(prefix + view):08x}",
        "actual": f"{zlib.crc32(prefix + wrong):08x}",
    }
    assert sha256.value.details == {
        "tensor": name,
        "expected": hashlib.sha256(prefix + view).hexdigest(),
        "actual": hashlib.sha256(prefix + wrong).hexdigest(),
    }
    assert name in crc32.value.message
    assert name in sha256.value.message


def test_bytes_of_another_tensor_or_length_are_refused(file: TensorsFile, inspected: Inspected) -> None:
    (first, data), (empty, nothing), _ = views(file, inspected)
    for check, view in ((first, nothing), (first, data[:-1]), (empty, data)):
        with pytest.raises(DigestMismatch):
            check.check_crc32(zlib.crc32(view), len(view))
        with pytest.raises(DigestMismatch):
            check.check_sha256([view])
