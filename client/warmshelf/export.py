"""Writes what a lease has as a directory that other tools load.

- ``adapter_model.safetensors``: the tensors of an adapter.
- ``model.safetensors``: the tensors of a base; where they have more than SHARD_BYTES_MAX,
  ``model-00001-of-00003.safetensors`` and so on, with ``model.safetensors.index.json``.
- ``config.json``, ``tokenizer.json`` and the like: the small files, byte for byte.

Names, dtypes, shapes and bits are the lease's. In safetensors no two names can share bytes,
so tied names are written with the same bytes each. Within a file tensors stand by falling
alignment, then by name, so that each is aligned for its dtype.

Knows no daemon and no connection.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from warmshelf.dtypes import DTYPES
from warmshelf.errors import InvalidRequest, MalformedArtifact, SegmentCorrupt, UnsupportedDtype
from warmshelf.layout import TensorSpec, round_up
from warmshelf.lease import Lease
from warmshelf.types import ArtifactKind

SHARD_BYTES_MAX = 5 * 10**9
"""Most tensor bytes of one file of a base; what others that write shards take."""

_METADATA = "__metadata__"
_FREE_FORM = {"format": "pt"}
"""Some loaders refuse a file without it. It says that the names are torch's."""

_ALIGN_BYTES = 8  # of the first tensor in its file
_INDEX = "model.safetensors.index.json"
_LACKING = frozenset({"C128"})  # safetensors has every dtype but this


def check_target(directory: str | os.PathLike[str]) -> str:
    """Return the directory's real path.

    Raises:
        InvalidRequest: there is something in it, or it is no directory.
    """
    text = os.fspath(directory)
    path = os.path.realpath(text)
    try:
        names = os.listdir(path) if text else [text]
    except FileNotFoundError:
        return path
    except OSError as error:
        raise _cannot_write(path, error) from error
    if names:
        raise InvalidRequest(f"directory {path} is not empty", path=path, file_count=len(names))
    return path


def write_directory(lease: Lease, directory: str | os.PathLike[str], *, shard_bytes_max: int = SHARD_BYTES_MAX) -> None:
    """Write the directory, whole or not at all.

    Raises:
        InvalidRequest: the directory exists and is not empty, or cannot be written.
        UnsupportedDtype: safetensors lacks a tensor's dtype.
        MalformedArtifact: a tensor has a name that safetensors keeps for itself.
    """
    path = check_target(directory)
    files = plan_files(lease.specs.values(), lease.artifact.kind, shard_bytes_max)
    small_files = {_checked_name(name): data for name, data in lease.files.items()}
    if len(files) > 1:
        small_files[_INDEX] = index_of(files)
    with new_directory(path) as partial:
        _fill(partial, lease, files, small_files)


@contextmanager
def new_directory(path: str) -> Iterator[str]:
    """Give a directory to write into, which gets its name once all is there, and is removed if anything fails.

    Raises:
        InvalidRequest: it cannot be written.
    """
    parent = os.path.dirname(path)
    partial = os.path.join(parent, f".warmshelf-{secrets.token_hex(8)}.partial")
    try:
        os.makedirs(parent, exist_ok=True)
        os.mkdir(partial)
        try:
            yield partial
            _sync(partial)
            os.rename(partial, path)  # onto an empty directory too, but onto nothing else
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _sync(parent)
    except OSError as error:
        raise _cannot_write(path, error) from error


def plan_files(specs: Iterable[TensorSpec], kind: ArtifactKind, shard_bytes_max: int) -> dict[str, list[TensorSpec]]:
    """Return which tensors go into which file, in the order in which they stand there."""
    shards: list[list[TensorSpec]] = [[]]
    size = 0
    for spec in specs:
        _check_spec(spec)
        if size and size + spec.size_bytes > shard_bytes_max and kind is not ArtifactKind.ADAPTER:
            shards.append([])
            size = 0
        shards[-1].append(spec)
        size += spec.size_bytes
    ordered = [sorted(shard, key=lambda spec: (-DTYPES[spec.dtype].align_bytes, spec.name)) for shard in shards]
    if len(ordered) > 1:
        return {f"model-{i:05}-of-{len(ordered):05}.safetensors": shard for i, shard in enumerate(ordered, 1)}
    return {"adapter_model.safetensors" if kind is ArtifactKind.ADAPTER else "model.safetensors": ordered[0]}


def header_of(specs: Sequence[TensorSpec]) -> bytes:
    """Return what precedes the tensors' bytes in a safetensors file."""
    header: dict[str, object] = {_METADATA: _FREE_FORM}
    end = 0
    for spec in specs:
        header[spec.name] = {
            "dtype": spec.dtype,
            "shape": spec.shape,
            "data_offsets": (end, end + spec.size_bytes),
        }
        end += spec.size_bytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text = text.ljust(round_up(len(text), _ALIGN_BYTES))
    return len(text).to_bytes(8, "little") + text


def index_of(files: Mapping[str, Sequence[TensorSpec]]) -> bytes:
    """Return the index that says which tensor is in which file."""
    weight_map = {spec.name: file for file, specs in files.items() for spec in specs}
    total = sum(spec.size_bytes for specs in files.values() for spec in specs)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return json.dumps(index, ensure_ascii=False, indent=2).encode() + b"\n"


def _check_spec(spec: TensorSpec) -> None:
    if spec.dtype in _LACKING:
        raise UnsupportedDtype(
            f"tensor {spec.name!r} has dtype {spec.dtype}, which safetensors lacks", tensor=spec.name, dtype=spec.dtype
        )
    if spec.name == _METADATA:
        raise MalformedArtifact(f"a tensor has the name {_METADATA}, which in safetensors means something else")


def _checked_name(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise SegmentCorrupt(f"the segment has a small file named {name[:64]!r}, which is no file's name")
    return name


def _fill(
    directory: str, lease: Lease, files: Mapping[str, Sequence[TensorSpec]], small_files: Mapping[str, bytes]
) -> None:
    for name, data in small_files.items():
        _write(os.path.join(directory, name), [data])
    for name, specs in files.items():
        _write(os.path.join(directory, name), [header_of(specs), *(lease[spec.name] for spec in specs)])


def _write(path: str, parts: Iterable[bytes | memoryview]) -> None:
    with open(path, "xb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _cannot_write(path: str, error: OSError) -> InvalidRequest:
    return InvalidRequest(f"cannot write directory {path}: {error.strerror}", path=path)
