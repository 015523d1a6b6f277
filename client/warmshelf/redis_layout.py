"""How a directory of files lies in Redis: its keys, and the manifest that says what is there.

Pure: makes and reads names and bytes, and knows no connection. What it reads it
distrusts: every number is held against what is there before anything is made for it.
docs/redis-layout.md has the same in words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import quote

import crc32c

from warmshelf.errors import MalformedArtifact, UnsupportedFormat

FORMAT = b"1"
"""Version of the layout. A reader refuses any other."""

CHUNK_BYTES = 1 << 20
"""Size of a chunk as it is written: large enough to be worth a round trip, small enough to hold a few."""

CHUNK_BYTES_MIN, CHUNK_BYTES_MAX = 64 << 10, 4 << 20
"""A chunk that is read in part is held whole until its CRC has been compared; powers of two between these."""

FILES_MAX = 4096
"""Most files; the largest public models have some hundred shards."""

FILE_NAME_BYTES_MAX = 255
"""As long as a file's name can be on Linux."""

TABLE_BYTES_MAX = 16 << 20
"""Longest table of files: four million CRCs, of four terabytes."""

SIZE_BYTES_MAX = 1 << 47
"""All that a process can address."""

FIELDS = (b"format", b"etag", b"chunk_bytes", b"size_bytes", b"files", b"files_crc32c")
"""Fields of the manifest, in the order in which they are asked for."""

FIELD_BYTES_MAX = 64
"""Longest field but the table."""

_CRC_BYTES = 4
_ETAG = re.compile(rb"[0-9a-f]{32}")
_NUMBER = re.compile(rb"0|[1-9][0-9]{0,18}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f/]")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file. ``crcs`` has the CRC32C of each chunk, four bytes each, little-endian."""

    name: str
    size_bytes: int
    crcs: bytes

    def crc(self, index: int) -> int:
        """Return the CRC32C of one chunk."""
        return int.from_bytes(self.crcs[_CRC_BYTES * index : _CRC_BYTES * (index + 1)], "little")


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """What is there. ``etag`` is new with each writing and stands in the chunks' keys."""

    etag: str
    chunk_bytes: int
    files: tuple[StoredFile, ...]

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)


def manifest_key(name: str) -> bytes:
    """Return the key of a directory's manifest. All its keys have one hash tag, and so one slot of a cluster."""
    return f"warmshelf:{{{quote(name)}}}:manifest".encode()


def chunk_key(name: str, etag: str, file: str, index: int) -> bytes:
    """Return the key of one chunk of a file."""
    return f"warmshelf:{{{quote(name)}}}:{etag}:{quote(file, safe='')}:{index}".encode()


def chunk_count(size_bytes: int, chunk_bytes: int) -> int:
    """Return how many chunks a file has; the last may be short, an empty file has none."""
    return -(-size_bytes // chunk_bytes)


def chunk_keys(name: str, manifest: StoredManifest) -> list[bytes]:
    """Return the keys of all chunks."""
    return [
        chunk_key(name, manifest.etag, file.name, index)
        for file in manifest.files
        for index in range(chunk_count(file.size_bytes, manifest.chunk_bytes))
    ]


# --- the manifest -----------------------------------------------------------


def encode_manifest(manifest: StoredManifest) -> dict[bytes, bytes]:
    """Return the manifest's fields.

    Raises:
        MalformedArtifact: it is none that a reader takes.
    """
    table = b"".join(map(_encode_file, manifest.files))
    fields = {
        b"format": FORMAT,
        b"etag": manifest.etag.encode(),
        b"chunk_bytes": b"%d" % manifest.chunk_bytes,
        b"size_bytes": b"%d" % manifest.size_bytes,
        b"files": table,
        b"files_crc32c": b"%08x" % crc32c.crc32c(table),
    }
    decode_manifest("the manifest", fields)  # what would be refused is not written
    return fields


def _encode_file(file: StoredFile) -> bytes:
    name = file.name.encode()
    return len(name).to_bytes(2, "little") + name + file.size_bytes.to_bytes(8, "little") + file.crcs


def decode_manifest(where: str, fields: Mapping[bytes, bytes | None]) -> StoredManifest:
    """Return the manifest that these fields are.

    Args:
        where: what errors name.
        fields: by name; one that is missing is None or not there.

    Raises:
        MalformedArtifact: they are none; says why.
        UnsupportedFormat: it is of another version.
    """
    if fields.get(b"format") not in (FORMAT, None):
        raise UnsupportedFormat(f"{where}: is in another version of the layout than {FORMAT.decode()}")
    missing = next((field for field in FIELDS if fields.get(field) is None), None)
    if missing is not None:
        _refuse(where, f"has no field {missing.decode()!r}")
    known = {field: value for field, value in fields.items() if value is not None}
    if not _ETAG.fullmatch(known[b"etag"]):
        _refuse(where, "has an etag that is not 32 hexadecimal digits")
    chunk_bytes = _number(where, known, b"chunk_bytes", CHUNK_BYTES_MAX)
    if chunk_bytes < CHUNK_BYTES_MIN or chunk_bytes & (chunk_bytes - 1):
        _refuse(where, f"has chunks of {chunk_bytes} bytes", chunk_bytes=chunk_bytes)
    table = known[b"files"]
    if known[b"files_crc32c"] != b"%08x" % crc32c.crc32c(table):
        _refuse(where, "has a table of files with another CRC32C than it says")
    manifest = StoredManifest(known[b"etag"].decode(), chunk_bytes, _decode_table(where, table, chunk_bytes))
    size_bytes = _number(where, known, b"size_bytes", SIZE_BYTES_MAX)
    if size_bytes != manifest.size_bytes:
        _refuse(where, f"has files of {manifest.size_bytes} bytes and says {size_bytes}", size_bytes=size_bytes)
    return manifest


def _number(where: str, fields: Mapping[bytes, bytes], field: bytes, at_most: int) -> int:
    text = fields[field]
    if not _NUMBER.fullmatch(text) or int(text) > at_most:
        _refuse(where, f"has a {field.decode()} that is no number up to {at_most}")
    return int(text)


def _decode_table(where: str, table: bytes, chunk_bytes: int) -> tuple[StoredFile, ...]:
    if len(table) > TABLE_BYTES_MAX:
        _refuse(where, f"has a table of files of {len(table)} bytes, at most {TABLE_BYTES_MAX} are allowed")
    files: list[StoredFile] = []
    at = 0
    while at < len(table):
        file, at = _decode_file(where, table, at, chunk_bytes)
        files.append(file)
        if len(files) > FILES_MAX:
            _refuse(where, f"has more than {FILES_MAX} files")
    if len({file.name for file in files}) < len(files):
        _refuse(where, "has a file twice")
    return tuple(files)


def _decode_file(where: str, table: bytes, at: int, chunk_bytes: int) -> tuple[StoredFile, int]:
    name_end = at + 2 + int.from_bytes(table[at : at + 2], "little")
    crcs_at = name_end + 8
    if crcs_at > len(table):
        _refuse(where, f"has a table of files of {len(table)} bytes that ends inside a file", size_bytes=len(table))
    name = _file_name(where, table[at + 2 : name_end])
    size = int.from_bytes(table[name_end:crcs_at], "little")
    end = crcs_at + _CRC_BYTES * chunk_count(size, chunk_bytes)
    if end > len(table):
        _refuse(
            where,
            f"says that file {name!r} has {size} bytes, and has not as many CRCs",
            file=name,
            size_bytes=size,
        )
    return StoredFile(name, size, table[crcs_at:end]), end


def _file_name(where: str, raw: bytes) -> str:
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        _refuse(where, "has a file whose name is not UTF-8")
    if name in ("", ".", "..") or len(raw) > FILE_NAME_BYTES_MAX or _CONTROL.search(name):
        _refuse(where, f"has a file whose name is none: {name[:64]!a}")
    return name


def as_fields(values: Sequence[bytes | None]) -> dict[bytes, bytes | None]:
    """Return the answer to a question for all fields, by their names."""
    return dict(zip(FIELDS, values, strict=True))


def _refuse(where: str, what: str, **details: str | int) -> NoReturn:
    raise MalformedArtifact(f"{where}: {what}", **details)
