"""What a sealed segment of another node holds, read as distrustfully as a source's headers.

The segment says the same as the files that it came from did, but nobody vouches for it: what is
returned counts only once the digest of all bytes has been compared. Knows neither the node nor the arena.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from warmshelf._wire import KIND_NUMBERS, layout_from_proto
from warmshelf.errors import MalformedArtifact
from warmshelf.layout import TensorSpec, check_tensors
from warmshelf.segment import Section
from warmshelf.types import ArtifactKind
from warmshelf.v1 import artifact_pb2, manifest_pb2
from warmshelfd.domain.extents import TensorEntry
from warmshelfd.formats.base import FormatLimits, Inspected
from warmshelfd.formats.detect import FORMAT_NAMES
from warmshelfd.formats.peft import AdapterLimits
from warmshelfd.formats.peft_config import CONFIG_NAME, parse_config
from warmshelfd.formats.peft_tensors import inspect_tensors

_M = TypeVar("_M", bound=Message)

_KINDS = {int(number): kind for kind, number in KIND_NUMBERS.items()}
_FILE_COUNT_MAX = 4096
_NAME_CHARS_MAX = 255


def inspect_image(
    data: Section, layout: bytes, manifest: bytes, limits: FormatLimits
) -> tuple[Inspected, dict[str, bytes]]:
    """Return what a segment holds, its tensors at their places in it, and its small files.

    Args:
        data: where its tensors lie.
        layout: its encoded layout.
        manifest: its encoded manifest.
        limits: as for a source.

    Raises:
        WarmshelfError: it holds something that no source might; says what.
    """
    told = _decoded(manifest_pb2.Manifest, manifest)
    tensors = layout_from_proto(_decoded(artifact_pb2.Layout, layout)).tensors
    _check(tensors, data, limits)
    small = dict(_small_files(told, limits))
    file_names = tuple(told.file_names)
    kind = _KINDS.get(told.kind, ArtifactKind.UNKNOWN)
    if kind is ArtifactKind.UNKNOWN or told.format_name not in FORMAT_NAMES or not _are_names(file_names):
        raise MalformedArtifact("the segment's manifest is none of a load")
    entries = [TensorEntry(t.name, t.dtype, t.shape, 0, t.offset_bytes, t.size_bytes) for t in tensors]
    inspected = Inspected(
        kind=kind,
        format_name=told.format_name,
        file_names=file_names,
        entries=tuple(sorted(entries, key=lambda entry: (entry.offset_bytes, entry.name))),
        small_files=tuple(sorted(small)),
    )
    return (_as_adapter(inspected, small) if kind is ArtifactKind.ADAPTER else inspected), small


def _decoded(message: type[_M], data: bytes) -> _M:
    try:
        return message.FromString(data)
    except DecodeError:
        raise MalformedArtifact(f"the segment's {message.DESCRIPTOR.name.lower()} cannot be decoded") from None


def _check(tensors: tuple[TensorSpec, ...], data: Section, limits: FormatLimits) -> None:
    if not 0 < len(tensors) <= limits.tensor_count_max or len({spec.name for spec in tensors}) < len(tensors):
        raise MalformedArtifact(f"the segment has {len(tensors)} tensors, or two of one name")
    for spec in tensors:
        if len(spec.name.encode()) > limits.name_bytes_max or len(spec.shape) > limits.rank_max or spec.segment_index:
            raise MalformedArtifact("the segment has a tensor that no source may have")
    check_tensors(tensors, data.offset, data.end)
    if sum(size for _, size in {(spec.offset_bytes, spec.size_bytes) for spec in tensors}) > data.size:
        raise MalformedArtifact("tensors of the segment overlap")


def _small_files(told: manifest_pb2.Manifest, limits: FormatLimits) -> Iterator[tuple[str, bytes]]:
    names = [file.name for file in told.small_files]
    if not _are_names(names) or len(set(names)) < len(names) or set(names) & set(told.file_names):
        raise MalformedArtifact("the segment's small files have names that no source may have")
    for file in told.small_files:
        if len(file.data) > limits.small_file_bytes_max:
            raise MalformedArtifact(f"a small file of the segment has {len(file.data)} bytes")
        yield file.name, file.data


def _are_names(names: Sequence[str]) -> bool:
    """Say whether these may be names of files in one directory."""
    return len(names) <= _FILE_COUNT_MAX and all(
        name and len(name) <= _NAME_CHARS_MAX and "/" not in name and name.isprintable() for name in names
    )


def _as_adapter(inspected: Inspected, small: Mapping[str, bytes]) -> Inspected:
    limits, config_json = AdapterLimits(), small.get(CONFIG_NAME, b"")
    if len(config_json) > limits.config_bytes_max or len(inspected.file_names) != 1:
        raise MalformedArtifact("the segment is none of an adapter")
    shapes = {entry.name: entry.shape for entry in inspected.entries}
    tensors = inspect_tensors(inspected.file_names[0], shapes, parse_config(config_json))
    return replace(
        inspected,
        adapter=tensors.inspection(config_json),
        adapter_shapes=tensors.shapes,
    )
