"""What is fuzzed: each target reads bytes of one kind, and has some good ones to begin with.

A target raises where something that must hold does not. Where a reference exists it
is the judge: what we accept it accepts, and means the same.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache

import crc32c
import safetensors

from fuzz.mutators import of_json, of_safetensors
from fuzz.oracle import Target
from kit.adapters import adapter_files, pair
from kit.models import filled, safetensors_bytes
from kit.segments import write_segment
from kit.tensors_file import Written, tensors_file
from warmshelf._frame import parse_frame
from warmshelf.dtypes import DTYPES
from warmshelf.errors import InvalidSpec, WarmshelfError
from warmshelf.image import SegmentImage
from warmshelf.redis_layout import (
    FIELDS,
    StoredFile,
    StoredManifest,
    chunk_keys,
    decode_manifest,
    encode_manifest,
)
from warmshelf.segment import parse_header
from warmshelf.v1 import artifact_pb2, transfer_pb2
from warmshelfd.formats.base import FormatLimits, Inspected
from warmshelfd.formats.detect import detect
from warmshelfd.memo import prepare
from warmshelfd.memory.segment import SEALED_MODE, Segment
from warmshelfd.registry.fields import BadRecord
from warmshelfd.registry.records import registration_from_json, registration_to_json
from warmshelfd.sources.file import FileOpener

LIMITS = FormatLimits()


class MemoryFiles:
    """Files in memory. Reading past an end is a failure: formats must not."""

    def __init__(self, content: Mapping[str, bytes]) -> None:
        self._content = content

    def files(self) -> Mapping[str, int]:
        return {name: len(data) for name, data in self._content.items()}

    def read(self, name: str, offset: int, size: int) -> bytes:
        data = self._content[name][offset : offset + size]
        assert offset >= 0, offset
        assert len(data) == size >= 0, (offset, size)
        return data


def inspect(content: Mapping[str, bytes]) -> Inspected:
    """Return what the files hold, after everything that follows from it has been made too."""
    inspected = detect(MemoryFiles(content), LIMITS)
    for entry in inspected.entries:
        size = len(content[inspected.file_names[entry.file_index]])
        assert 0 <= entry.offset_bytes <= entry.offset_bytes + entry.size_bytes <= size, entry
    prepare(inspected)
    return inspected


# --- formats ----------------------------------------------------------------


def safetensors_file(data: bytes) -> None:
    inspected = inspect({"m.safetensors": data})
    ours = {e.name: (e.dtype, e.shape, data[e.offset_bytes : e.offset_bytes + e.size_bytes]) for e in inspected.entries}
    theirs = {n: (i["dtype"], tuple(i["shape"]), bytes(i["data"])) for n, i in safetensors.deserialize(data)}
    assert ours == theirs


def safetensors_seeds() -> list[bytes]:
    tensors = {name: (name, (2, 8), bytes(row.bits * 16 // 8)) for name, row in DTYPES.items() if name != "C128"}
    odd = {"ä\n".strip(): ("F32", (), bytes(4)), "": ("U8", (0, 3), b""), "x" * 40: ("BOOL", (1,) * 8, b"\1")}
    return [safetensors_bytes(tensors), safetensors_bytes(odd, {"format": "pt"}), safetensors_bytes(filled(1))]


def tensorizer_file(data: bytes) -> None:
    for check in inspect({"model.tensors": data}).checks:
        with_error(check.check_crc32, zlib.crc32(data), len(data))
        with_error(check.check_sha256, [data])


def tensorizer_seeds() -> list[bytes]:
    rows = [Written(b"a.b", b"<f4", (2, 1), bytes(8)), Written(b"c", b"|u1", (3,), b"abc", kind=0)]
    return [
        tensors_file(rows).content,
        tensors_file(rows, version=5, flags=2).content,
        tensors_file(rows[:1], version=2).content,
    ]


def adapter_config(data: bytes) -> None:
    inspect({**_adapter(), "adapter_config.json": data})


def adapter_config_seeds() -> list[bytes]:
    every = {"use_rslora": True, "rank_pattern": {"q": 4}, "alpha_pattern": {"q": 0.5}, "init_lora_weights": "pissa"}
    return [adapter_files(pair("q_proj"), **fields)["adapter_config.json"] for fields in ({}, every, {"new": [None]})]


def adapter_weights(data: bytes) -> None:
    inspect({**_adapter(), "adapter_model.safetensors": data})


def adapter_weights_seeds() -> list[bytes]:
    return [_adapter()["adapter_model.safetensors"], adapter_files(pair("q") | pair("k"))["adapter_model.safetensors"]]


@cache
def _adapter() -> Mapping[str, bytes]:
    return adapter_files(pair("layers.0.q_proj"))


def weights_index(data: bytes) -> None:
    inspect({"model.safetensors.index.json": data, **_shards()})


def weights_index_seeds() -> list[bytes]:
    weight_map = {"w": "1.safetensors", "v": "2.safetensors"}
    return [json.dumps({"metadata": {"a": [1, {}, None, 1.5e3]}, "weight_map": weight_map}).encode()]


@cache
def _shards() -> Mapping[str, bytes]:
    other = {"v": ("U8", (2,), b"xy")}
    return {"1.safetensors": safetensors_bytes(filled(1)), "2.safetensors": safetensors_bytes(other)}


# --- sources ----------------------------------------------------------------


def source_uri(data: bytes) -> None:
    opener = _opener()
    text = data.decode("utf-8", "surrogateescape")
    uri = opener.canonical(text)
    assert opener.canonical(uri) == uri
    assert uri.startswith("file:///")
    with opener.open(text) as source:  # SOURCE_NOT_ALLOWED but where the one allowed directory is hit
        source.fingerprint(tuple(source.files()))


@cache
def _opener() -> FileOpener:
    return FileOpener([_directory()])


@cache
def _directory() -> str:
    """Return a directory, which whoever began the process removes."""
    return tempfile.mkdtemp()


def source_uri_seeds() -> list[bytes]:
    path = _directory()
    return [path.encode(), f"file://{path}/a%20b".encode(), b"file:///a/../b//c/%2e%2e", b"file://host/x", b"FILE:/x"]


# --- segments ---------------------------------------------------------------


def segment_header(data: bytes) -> None:
    """A header whose CRC is right: what it says is what is fuzzed."""
    raw = data[:152].ljust(152, b"\0")
    header = parse_header((raw + struct.pack("<I", crc32c.crc32c(raw))).ljust(4096, b"\0"), SEGMENT_BYTES)
    for section in (header.data, header.layout, header.blocks, header.manifest):
        assert 4096 <= section.offset <= section.end <= SEGMENT_BYTES


def segment_header_seeds() -> list[bytes]:
    return [write_segment(filled(1)).data[:152]]


def segment_tables(data: bytes) -> None:
    """A segment of right CRCs whose layout or manifest is fuzzed: the first byte says which."""
    raw = _with_tables(_good(), data)
    with_error(_read_as_client, raw)
    path = os.path.join(_directory(), SEGMENT_ID)
    with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
        file.write(raw)
    os.chmod(path, SEALED_MODE)
    try:
        _adopt()
    finally:
        os.unlink(path)


def _adopt() -> None:
    directory = os.open(_directory(), os.O_DIRECTORY)
    try:
        segment = Segment.open(directory, SEGMENT_ID, SEGMENT_ID, checked=False)
        try:
            for tensor in segment.layout.tensors:
                segment.read(tensor.offset_bytes, tensor.end_bytes)
            assert segment.manifest is not None
            segment.check_blocks(1, lambda: False)
        finally:
            segment.close()
    finally:
        os.close(directory)


def _read_as_client(raw: bytes) -> None:
    image = SegmentImage(bytearray(raw), len(raw))
    assert image.layout is not None


def _with_tables(good: bytes, data: bytes) -> bytes:
    """Return the segment with its layout or its manifest replaced, and everything else made right again."""
    header = parse_header(good[:4096], len(good))
    parts = [good[s.offset : s.end] for s in (header.data, header.layout, header.blocks, header.manifest)]
    parts[1 if data[:1] < b"\x80" else 3] = data[1:]
    size = -(-(4096 + sum(map(len, parts)) + 3 * 64) // 4096) * 4096
    head, body, at = good[:48] + struct.pack("<Q", size), b"", 4096
    for index, part in enumerate(parts):
        padding = -at % 64
        at += padding
        head += struct.pack("<QQII", at, len(part), crc32c.crc32c(part) if index else 0, 0)
        body += bytes(padding) + part
        at += len(part)
    head += struct.pack("<I", crc32c.crc32c(head))
    return (head.ljust(4096, b"\0") + body).ljust(size, b"\0")


SEGMENT_ID = "f" * 32
SEGMENT_BYTES = len(write_segment(filled(1)).data)


@cache
def _good() -> bytes:
    """Return a segment as the daemon writes it: its layout names it."""
    plain = write_segment(filled(1), segment_id=SEGMENT_ID, files={"config.json": b"{}"}).data
    layout, _ = _tables(plain)
    own = artifact_pb2.Layout(segments=[artifact_pb2.Segment(segment_id=SEGMENT_ID)]).SerializeToString()
    return _with_tables(plain, b"\0" + own + layout)


def _tables(raw: bytes) -> tuple[bytes, bytes]:
    header = parse_header(raw[:4096], len(raw))
    return raw[header.layout.offset : header.layout.end], raw[header.manifest.offset : header.manifest.end]


def segment_tables_seeds() -> list[bytes]:
    layout, manifest = _tables(_good())
    return [b"\0" + layout, b"\xff" + manifest]


# --- records and messages ---------------------------------------------------


def registry_record(data: bytes) -> None:
    registration = registration_from_json(data.decode("utf-8", "replace"))
    assert registration_from_json(registration_to_json(registration)) == registration


def registry_record_seeds() -> list[bytes]:
    base, adapter = (row.encode() for row in _records())
    return [base, adapter]


def _records() -> Iterator[str]:
    with open(os.path.join(os.path.dirname(__file__), "records.jsonl"), encoding="ascii") as file:
        yield from file.read().splitlines()


def chunk_frame(data: bytes) -> None:
    offset, crc, chunk = parse_frame(data)
    theirs = transfer_pb2.ReadSegmentResponse.FromString(data)
    assert (offset, crc, bytes(chunk)) == (theirs.offset_bytes, theirs.crc32c, theirs.data)


def chunk_frame_seeds() -> list[bytes]:
    chunks = [(0, 0, b""), (1 << 40, 0xFFFFFFFF, b"abc"), (4096, 7, bytes(300))]
    return [
        transfer_pb2.ReadSegmentResponse(offset_bytes=at, crc32c=crc, data=data).SerializeToString()
        for at, crc, data in chunks
    ]


_SEPARATOR = b"\xff|"


def redis_layout(data: bytes) -> None:
    values = data.split(_SEPARATOR, len(FIELDS) - 1)
    fields = dict(zip(FIELDS, [*values, *[None] * len(FIELDS)], strict=False))
    if fields[b"files"] is not None:  # or nothing would ever get behind the table's CRC
        fields[b"files_crc32c"] = b"%08x" % crc32c.crc32c(fields[b"files"])
    manifest = decode_manifest("here", fields)
    assert decode_manifest("again", encode_manifest(manifest)) == manifest
    assert len(chunk_keys("a", manifest)) == sum(len(file.crcs) // 4 for file in manifest.files)


def redis_layout_seeds() -> list[bytes]:
    files = (StoredFile("a.safetensors", (1 << 20) + 1, bytes(8)), StoredFile("config.json", 0, b""))
    found = encode_manifest(StoredManifest("0" * 32, 1 << 20, files))
    return [_SEPARATOR.join(found[field] for field in FIELDS)]


def with_error(call: Callable[..., object], *arguments: object) -> None:
    """Call something that may refuse, and go on."""
    with suppress(WarmshelfError):
        call(*arguments)


TARGETS: Mapping[str, Target] = {
    "safetensors": Target(safetensors_file, safetensors_seeds, mutator=of_safetensors),
    "tensorizer": Target(tensorizer_file, tensorizer_seeds),
    "adapter-config": Target(adapter_config, adapter_config_seeds, mutator=of_json),
    "adapter-weights": Target(adapter_weights, adapter_weights_seeds, mutator=of_safetensors),
    "weights-index": Target(weights_index, weights_index_seeds, mutator=of_json),
    "source-uri": Target(source_uri, source_uri_seeds, seeds_are_good=False),
    "segment-header": Target(segment_header, segment_header_seeds),
    "segment-tables": Target(segment_tables, segment_tables_seeds),
    "registry-record": Target(registry_record, registry_record_seeds, (BadRecord, InvalidSpec), mutator=of_json),
    "chunk-frame": Target(chunk_frame, chunk_frame_seeds),
    "redis-layout": Target(redis_layout, redis_layout_seeds),
}
"""Every target here by its name."""
