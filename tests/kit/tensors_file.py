"""Writes ``.tensors`` files by hand and knows where each field stands, so that tests can lie in any of them."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

WRITERS_INDEX_BYTES = 256 << 10
"""How long tensorizer makes every index."""

_Parts = list[tuple[str, bytes]]


@dataclass(frozen=True)
class Written:
    """One tensor as it is written."""

    name: bytes
    dtype: bytes
    shape: tuple[int, ...]
    data: bytes
    kind: int = 2
    module: int = 0


@dataclass(frozen=True)
class TensorsFile:
    """A file, and where each of its fields stands.

    ``places`` are offset and size by label, such as ``index_length``, ``row0.name_length``
    or ``header1.crc32``; rows and headers are numbered in the file's order.
    """

    content: bytes
    places: dict[str, tuple[int, int]] = field(repr=False)

    def patched(self, label: str, value: int | bytes) -> bytes:
        """Return the content with another value in one field, of the same length."""
        offset, size = self.places[label]
        raw = value if isinstance(value, bytes) else value.to_bytes(size, "little")
        assert len(raw) == size, f"{label} has {size} bytes"
        return self.content[:offset] + raw + self.content[offset + size :]

    def get(self, label: str) -> bytes:
        """Return the bytes of a field."""
        offset, size = self.places[label]
        return self.content[offset : offset + size]


def tensors_file(
    tensors: Sequence[Written],
    *,
    version: int = 1,
    flags: int | None = None,
    index_bytes: int | None = None,
    spare_bytes: int = 16,
) -> TensorsFile:
    """Write a file; without ``index_bytes`` its index has only so many spare bytes."""
    rows_have_versions = version == 5
    rows: _Parts = []
    size = sum(_row_bytes(t, rows_have_versions) for t in tensors)
    index_bytes = size + spare_bytes if index_bytes is None else index_bytes
    blocks: _Parts = []
    end = 73 + index_bytes
    for i, tensor in enumerate(tensors):
        header = _header(f"header{i}.", tensor)
        data_offset = end + sum(len(raw) for _, raw in header)
        rows += _row(f"row{i}.", tensor, end, data_offset, rows_have_versions)
        blocks += [*header, (f"data{i}", tensor.data)]
        end = data_offset + len(tensor.data)
    front: _Parts = [
        ("magic", b"|TZR|"),
        ("version", struct.pack("<I", version)),
        ("flags", (2 * rows_have_versions if flags is None else flags).to_bytes(32, "little")),
        ("size", struct.pack("<Q", sum(len(t.data) for t in tensors))),
        ("unused", bytes(8)),
        ("tensor_count", struct.pack("<Q", len(tensors))),
        ("index_length", struct.pack("<Q", index_bytes)),
    ]
    return _joined([*front, *rows, ("spare", bytes(index_bytes - size)), *blocks, ("end", bytes(8))])


def _joined(parts: Iterable[tuple[str, bytes]]) -> TensorsFile:
    content = bytearray()
    places = {}
    for label, raw in parts:
        places[label] = (len(content), len(raw))
        content += raw
    return TensorsFile(bytes(content), places)


def _is_long(tensor: Written) -> bool:
    return any(dim >> 32 for dim in tensor.shape)


def _dims(tensor: Written) -> bytes:
    return struct.pack(f"<{len(tensor.shape)}{'Q' if _is_long(tensor) else 'I'}", *tensor.shape)


def _described(prefix: str, tensor: Written) -> tuple[_Parts, _Parts]:
    """Return the name's fields and those of dtype and shape: between them only one of the two tables has the kind."""
    name = [
        (prefix + "name_length", struct.pack("<H", len(tensor.name))),
        (prefix + "name", tensor.name),
    ]
    rest = [
        (prefix + "dtype_length", bytes([len(tensor.dtype)])),
        (prefix + "dtype", tensor.dtype),
        (prefix + "rank", bytes([len(tensor.shape)])),
        (prefix + "dims", _dims(tensor)),
    ]
    return name, rest


def _row(prefix: str, tensor: Written, header_offset: int, data_offset: int, has_version: bool) -> _Parts:
    name, rest = _described(prefix, tensor)
    version = [(prefix + "version", struct.pack("<I", 5 if _is_long(tensor) else 1))] if has_version else []
    return [
        *version,
        *name,
        (prefix + "kind", bytes([tensor.kind])),
        *rest,
        (prefix + "header_offset", struct.pack("<Q", header_offset)),
        (prefix + "data_offset", struct.pack("<Q", data_offset)),
        (prefix + "data_length", struct.pack("<Q", len(tensor.data))),
    ]


def _row_bytes(tensor: Written, has_version: bool) -> int:
    return 4 * has_version + 2 + len(tensor.name) + 2 + len(tensor.dtype) + 1 + len(_dims(tensor)) + 24


def _header(prefix: str, tensor: Written) -> _Parts:
    blank = _header_parts(prefix, tensor, 0, bytes(32))
    hashed = b"".join(raw for _, raw in blank) + tensor.data
    return _header_parts(prefix, tensor, zlib.crc32(hashed), hashlib.sha256(hashed).digest())


def _header_parts(prefix: str, tensor: Written, crc32: int, sha256: bytes) -> _Parts:
    name, rest = _described(prefix, tensor)
    parts = [
        (prefix + "module", struct.pack("<H", tensor.module)),
        (prefix + "kind", bytes([tensor.kind])),
        *name,
        *rest,
        (prefix + "hashes_length", struct.pack("<H", 41)),
        (prefix + "hash_count", b"\2"),
        (prefix + "crc32_type", b"\0"),
        (prefix + "crc32_length", b"\4"),
        (prefix + "crc32", struct.pack("<I", crc32)),
        (prefix + "sha256_type", b"\1"),
        (prefix + "sha256_length", b"\x20"),
        (prefix + "sha256", sha256),
        (prefix + "data_length", struct.pack("<q", len(tensor.data))),
    ]
    return [(prefix + "length", struct.pack("<Q", 8 + sum(len(raw) for _, raw in parts))), *parts]
