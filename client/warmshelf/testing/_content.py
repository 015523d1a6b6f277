"""What a FakeShelf has in the place of sources and loads: contents, read from local files, and their segments.

Reads whole files and checks little: it is for tests, whose tensors are small and right.
Knows no state and no lock.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import crc32c

from warmshelf._push_files import PushFile
from warmshelf._wire import layout_to_proto
from warmshelf.digest import combine
from warmshelf.dtypes import DTYPES, size_bytes
from warmshelf.errors import (
    InvalidSpec,
    MalformedArtifact,
    SourceNotFound,
    SourceTruncated,
    SourceUnavailable,
    UnsupportedDtype,
    UnsupportedFormat,
)
from warmshelf.layout import Layout, SegmentSpec, TensorSpec, round_up
from warmshelf.segment import HEADER_BYTES, Section, SegmentHeader, block_count, block_range, pack_header
from warmshelf.types import AdapterInspection, ArtifactKind, Inspection
from warmshelf.v1 import manifest_pb2

Tensor = tuple[str, tuple[int, ...], bytes]
"""Dtype, shape and bytes."""

CONFIG_NAMES = {ArtifactKind.ADAPTER: "adapter_config.json", ArtifactKind.BASE: "config.json"}
PAGE_BYTES = 4096

_PACK_BYTES = 64
_LENGTH_BYTES = 8
_SMALL_SUFFIXES = (".json", ".txt", ".model", ".jinja", ".tiktoken")
_INDEX = "model.safetensors.index.json"
_LORA_A = ".lora_A."

_FEATURES = {
    "alpha_pattern": "alpha_pattern",
    "modules_to_save": "modules_to_save",
    "rank_pattern": "rank_pattern",
    "use_dora": "dora",
    "use_rslora": "rslora",
}
"""The commonest features by the field of an adapter's config that asks for them. A daemon knows more."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a source holds.

    Attributes:
        kind: base or adapter.
        tensors: each by its name.
        files: the small files by name.
        file_names: the files that hold the tensors.
        file_digest: ``sha256:`` of the file, if there is only one.
    """

    kind: ArtifactKind
    tensors: Mapping[str, Tensor]
    files: Mapping[str, bytes] = field(default_factory=dict)
    file_names: tuple[str, ...] = ()
    file_digest: str = ""

    @property
    def config(self) -> bytes:
        """The config file, or b""."""
        return self.files.get(CONFIG_NAMES[self.kind], b"")

    def is_same(self, other: Content) -> bool:
        """Say whether both have one digest."""
        return (self.kind, self.tensors, self.config) == (other.kind, other.tensors, other.config)


def same(one: Content | None, other: Content | None) -> bool:
    """Say whether both are known and have one digest."""
    return one is not None and other is not None and one.is_same(other)


# --- from tensors to a segment ------------------------------------------------


def check_tensors(tensors: Mapping[str, Tensor], where: str) -> None:
    """Raise UnsupportedDtype or MalformedArtifact if a tensor is not what its dtype and shape say."""
    for name, (dtype, shape, data) in tensors.items():
        if dtype not in DTYPES:
            raise UnsupportedDtype(f"{where}: tensor {name!r} has dtype {dtype!r}", tensor=name, dtype=dtype)
        try:
            expected = size_bytes(DTYPES[dtype], shape)
        except ValueError as error:
            raise MalformedArtifact(f"{where}: tensor {name!r}: {error}", tensor=name) from error
        if expected != len(data):
            raise MalformedArtifact(
                f"{where}: tensor {name!r} of {dtype} {list(shape)} takes {expected} bytes, there are {len(data)}",
                tensor=name,
                expected_bytes=expected,
                size_bytes=len(data),
            )


def build_segment(segment_id: str, content: Content) -> bytes:
    """Return the segment that holds a content."""
    specs, data = _pack(content.tensors)
    layout = layout_to_proto(Layout(0, (SegmentSpec(0, segment_id, 0, 0),), specs)).SerializeToString()
    small = [manifest_pb2.SmallFile(name=name, data=text) for name, text in sorted(content.files.items())]
    manifest = manifest_pb2.Manifest(small_files=small).SerializeToString()
    data_section = Section(HEADER_BYTES, len(data))
    blocks = _block_crcs(data_section, data)
    sections = [data_section]
    for part in (layout, blocks, manifest):
        sections.append(Section(sections[-1].end, len(part), crc32c.crc32c(part)))
    size = round_up(sections[-1].end, PAGE_BYTES)
    header = SegmentHeader(segment_id, size, *sections)
    return b"".join((pack_header(header), data, layout, blocks, manifest)).ljust(size, b"\0")


def inspect(content: Content, adapter_number: int) -> Inspection:
    """Return what there is to know of a content."""
    return Inspection(
        format_name="peft" if content.kind is ArtifactKind.ADAPTER else "safetensors",
        file_names=content.file_names,
        tensor_count=len(content.tensors),
        tensor_bytes=sum(len(data) for _, _, data in content.tensors.values()),
        adapter=_inspect_adapter(content, adapter_number) if content.kind is ArtifactKind.ADAPTER else None,
    )


def digest_of(content: Content) -> str:
    """Return the digest, or "" where the ``blake3`` package is not installed."""
    try:
        from blake3 import blake3  # noqa: PLC0415 - comes with the daemon's extra
    except ModuleNotFoundError:
        return ""
    rows = [(name, dtype, shape, blake3(data).digest()) for name, (dtype, shape, data) in content.tensors.items()]
    return "blake3:" + combine(rows, content.config, blake3())


def _pack(tensors: Mapping[str, Tensor]) -> tuple[tuple[TensorSpec, ...], bytes]:
    specs = []
    data = bytearray()
    for name, (dtype, shape, text) in tensors.items():
        specs.append(TensorSpec(name, dtype, shape, HEADER_BYTES + len(data), len(text)))
        data += text.ljust(round_up(len(text), _PACK_BYTES), b"\0")
    return tuple(specs), bytes(data)


def _block_crcs(section: Section, data: bytes) -> bytes:
    ranges = [block_range(section, index) for index in range(block_count(section))]
    crcs = [crc32c.crc32c(data[start - section.offset : end - section.offset]) for start, end in ranges]
    return struct.pack(f"<{len(crcs)}I", *crcs)


def _inspect_adapter(content: Content, adapter_number: int) -> AdapterInspection:
    config = _json_object(content.config or b"{}", CONFIG_NAMES[ArtifactKind.ADAPTER])
    ranks = {name: shape[0] for name, (_, shape, _) in content.tensors.items() if _LORA_A in name and shape}
    modules = {name.removeprefix("base_model.model.").partition(_LORA_A)[0] for name in ranks}
    return AdapterInspection(
        adapter_number=adapter_number,
        rank_max=max(ranks.values(), default=0),
        module_names=tuple(sorted(modules)),
        features=tuple(sorted(feature for key, feature in _FEATURES.items() if config.get(key))),
        config_json=content.config,
    )


# --- from files ---------------------------------------------------------------


def read_content(uri: str) -> Content:
    """Return what a local safetensors file, or a directory of them, holds.

    Raises:
        WarmshelfError: as a registration with a daemon.
    """
    if not uri.startswith("file:///"):
        raise InvalidSpec(f"a FakeShelf reads local files only, not {uri}")
    path = unquote(uri.removeprefix("file://"))
    if not os.path.isdir(path):
        data = _read(path)
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        return Content(ArtifactKind.BASE, _parse(data, path), {}, (os.path.basename(path),), digest)
    names = sorted(os.listdir(path))
    kind = ArtifactKind.ADAPTER if CONFIG_NAMES[ArtifactKind.ADAPTER] in names else ArtifactKind.BASE
    small = [name for name in names if _is_small(name)]
    weights = _weights(path, names, kind)
    tensors = {name: tensor for file in weights for name, tensor in _parse_file(path, file)}
    return Content(kind, tensors, {name: _read(os.path.join(path, name)) for name in small}, tuple(weights))


def content_of_files(files: Iterable[PushFile]) -> Content:
    """Return what files hold that were pushed."""
    data = {file.name: b"".join(file.pieces(0)) for file in files}
    kind = ArtifactKind.ADAPTER if CONFIG_NAMES[ArtifactKind.ADAPTER] in data else ArtifactKind.BASE
    weights = [name for name in data if name.endswith(".safetensors")]
    tensors = {name: tensor for file in weights for name, tensor in _parse(data[file], file).items()}
    small = {name: text for name, text in data.items() if _is_small(name)}
    return Content(kind, tensors, small, tuple(weights))


def _is_small(name: str) -> bool:
    return name.endswith(_SMALL_SUFFIXES) and not name.endswith(".index.json")


def _weights(directory: str, names: Sequence[str], kind: ArtifactKind) -> list[str]:
    """Return the files that hold the tensors."""
    if kind is ArtifactKind.ADAPTER:
        return ["adapter_model.safetensors"]
    if _INDEX in names:
        index = _json_object(_read(os.path.join(directory, _INDEX)), _INDEX)
        return sorted({str(file) for file in index.get("weight_map", {}).values()})
    if "model.safetensors" in names:
        return ["model.safetensors"]
    found = [name for name in names if name.endswith(".safetensors")]
    if not found:
        raise UnsupportedFormat(f"none of the {len(names)} files ends in .safetensors", file_count=len(names))
    return found


def _parse_file(directory: str, file: str) -> Iterator[tuple[str, Tensor]]:
    path = os.path.join(directory, file)
    return iter(_parse(_read(path), path).items())


def _parse(data: bytes, path: str) -> dict[str, Tensor]:
    start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    if data[_LENGTH_BYTES : _LENGTH_BYTES + 1] != b"{":
        raise MalformedArtifact(f"{path}: has no header", file=path)
    _check_length(path, data, start)
    header = _json_object(data[_LENGTH_BYTES:start], path)
    header.pop("__metadata__", None)
    try:
        rows = {
            name: (row["dtype"], tuple(row["shape"]), start + row["data_offsets"][0], start + row["data_offsets"][1])
            for name, row in header.items()
        }
    except (TypeError, KeyError, IndexError) as error:
        raise MalformedArtifact(f"{path}: its header is not one of safetensors", file=path) from error
    _check_length(path, data, max((end for *_, end in rows.values()), default=start))
    tensors = {name: (dtype, shape, data[begin:end]) for name, (dtype, shape, begin, end) in rows.items()}
    check_tensors(tensors, path)
    return tensors


def _check_length(path: str, data: bytes, expected: int) -> None:
    if len(data) < expected:
        raise SourceTruncated(
            f"{path}: has {len(data)} bytes, needs at least {expected}",
            file=path,
            size_bytes=len(data),
            expected_bytes=expected,
        )


def _json_object(text: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text.decode("utf-8-sig"))
    except ValueError as error:
        raise MalformedArtifact(f"{where}: is not JSON: {error}", file=where) from error
    if not isinstance(value, dict):
        raise MalformedArtifact(f"{where}: is no JSON object", file=where)
    return value


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError as error:
        raise SourceNotFound(f"{path} does not exist", file=path) from error
    except OSError as error:
        raise SourceUnavailable(f"{path} cannot be read: {error.strerror}", file=path) from error
