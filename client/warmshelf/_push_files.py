"""What is pushed: always files, whether they lie in a directory or are made of tensors on the way.

Of a directory, the files that the daemon would read there; of tensors, the files that
``export`` would write. Knows no daemon.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from warmshelf._push_tensors import TensorBytes, tensor_bytes
from warmshelf.errors import ConfigMissing, InvalidRequest, MalformedArtifact, SourceNotFound, UnsupportedFormat
from warmshelf.export import SHARD_BYTES_MAX, header_of, index_of, plan_files
from warmshelf.types import ArtifactKind

READ_BYTES = 1 << 20
"""How much of a file is read at once."""

_CONFIG = {ArtifactKind.ADAPTER: "adapter_config.json", ArtifactKind.BASE: "config.json"}
_INDEX = "model.safetensors.index.json"
_INDEX_SUFFIX = ".safetensors.index.json"
_INDEX_BYTES_MAX = 64 << 20  # as the daemon reads it
_SMALL_SUFFIXES = (".json", ".txt", ".model", ".jinja", ".tiktoken")
_SMALL_BYTES_MAX = 64 << 20  # a longer one is something else
_WEIGHTS = re.compile(r".*\.(safetensors|tensors)", re.DOTALL)
_ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.tensors")


class PushFile(Protocol):
    """A file to be pushed."""

    @property
    def name(self) -> str:
        """Its name in the artifact."""

    @property
    def size_bytes(self) -> int:
        """Its length."""

    def pieces(self, start: int) -> Iterator[memoryview]:
        """Return its bytes from ``start`` on, in pieces of any length."""


@dataclass(frozen=True, slots=True)
class DiskFile:
    """A file of this host."""

    name: str
    path: str
    size_bytes: int
    mtime_ns: int

    def pieces(self, start: int) -> Iterator[memoryview]:
        """Read it. It must still be the file that it was.

        Raises:
            InvalidRequest: it changed, or cannot be read.
        """
        try:
            with open(self.path, "rb", buffering=0) as file:
                at = start
                while at < self.size_bytes:
                    data = os.pread(file.fileno(), min(READ_BYTES, self.size_bytes - at), at)
                    status = os.fstat(file.fileno())
                    if not data or (status.st_size, status.st_mtime_ns) != (self.size_bytes, self.mtime_ns):
                        raise InvalidRequest(f"{self.path} changed while it was pushed", path=self.path)
                    yield memoryview(data)
                    at += len(data)
        except OSError as error:
            raise InvalidRequest(f"{self.path} cannot be read: {error.strerror}", path=self.path) from error


@dataclass(frozen=True, slots=True)
class MadeFile:
    """A file that is made of bytes and tensors as it is sent."""

    name: str
    head: bytes
    tensors: Sequence[TensorBytes] = ()

    @property
    def size_bytes(self) -> int:
        """Its length."""
        return len(self.head) + sum(tensor.spec.size_bytes for tensor in self.tensors)

    def pieces(self, start: int) -> Iterator[memoryview]:
        """Return the head, then each tensor; those before ``start`` are not touched."""
        yield from _from(memoryview(self.head), start)
        at = len(self.head)
        for tensor in self.tensors:
            size = tensor.spec.size_bytes
            if at + size > start:
                yield from _from(tensor.view(), start - at)
            at += size


def _from(view: memoryview, start: int) -> Iterator[memoryview]:
    if max(start, 0) < len(view):
        yield view[max(start, 0) :]


# --- of a path ----------------------------------------------------------------


def files_of_path(path: str | os.PathLike[str]) -> list[PushFile]:
    """Return the files to push of a directory, or the one file.

    Raises:
        SourceNotFound: there is nothing.
        UnsupportedFormat: there are no weights in a form that the daemon reads.
    """
    text = os.fspath(path)
    found = _look(text)
    if found is None:
        raise SourceNotFound(f"{text} does not exist, or is no file and no directory", path=text)
    if isinstance(found, DiskFile):
        return [found]
    names = chosen(found, lambda name: _weight_map(os.path.join(text, name)))
    return [found[name] for name in names]


def chosen(found: Mapping[str, DiskFile], shards_of: Any) -> list[str]:
    """Return the names of the files that the daemon would read, the small ones first.

    Raises:
        UnsupportedFormat: there are no weights.
        SourceNotFound: a file that the index names is not there.
    """
    weights = _weights(found, shards_of)
    if not weights:
        raise UnsupportedFormat(f"none of the {len(found)} files ends in .safetensors or .tensors")
    missing = next((name for name in weights if name not in found), None)
    if missing is not None:
        raise SourceNotFound(f"{missing} is missing: the index names it", file=missing)
    small = [
        name for name in sorted(found) if name.endswith(_SMALL_SUFFIXES) and found[name].size_bytes <= _SMALL_BYTES_MAX
    ]
    return [*small, *weights]


def _weights(found: Mapping[str, DiskFile], shards_of: Any) -> list[str]:
    if _CONFIG[ArtifactKind.ADAPTER] in found:
        return [name for name in _ADAPTER_WEIGHTS if name in found][:1]
    if _INDEX in found:
        return sorted(shards_of(_INDEX))
    if "model.safetensors" in found:
        return ["model.safetensors"]
    indexes = sorted(name for name in found if name.endswith(_INDEX_SUFFIX))
    if indexes:
        return sorted(shards_of(indexes[0]))
    names = sorted(name for name in found if _WEIGHTS.fullmatch(name))
    return [name for name in names if name.endswith(".safetensors")] or names


def _look(path: str) -> dict[str, DiskFile] | DiskFile | None:
    """Return the files of a directory by name, or the file, or None if there is neither."""
    try:
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode):
            return DiskFile(os.path.basename(path), path, status.st_size, status.st_mtime_ns)
        if not stat.S_ISDIR(status.st_mode):
            return None
        inside = ((name, _look_at_file(os.path.join(path, name))) for name in os.listdir(path) if name[0] != ".")
        return {name: file for name, file in inside if file is not None}
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}", path=path) from error


def _look_at_file(path: str) -> DiskFile | None:
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        return None
    return DiskFile(os.path.basename(path), path, status.st_size, status.st_mtime_ns)


def _weight_map(path: str) -> set[str]:
    """Return the files that an index names."""
    try:
        with open(path, "rb") as file:
            index = json.loads(file.read(_INDEX_BYTES_MAX))
        return {str(name) for name in index["weight_map"].values()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise MalformedArtifact(f"{path} is no weights index: {error}", file=path) from error


# --- of tensors ---------------------------------------------------------------


def files_of_tensors(
    tensors: Mapping[str, Any], config: Mapping[str, Any] | bytes | None, *, is_adapter: bool
) -> list[PushFile]:
    """Return the files to push of tensors in memory, and of a config.

    Args:
        tensors: each by its name; see ``tensor_bytes`` for what may be one.
        config: ``adapter_config.json`` of an adapter, ``config.json`` of a base.
        is_adapter: whether they are an adapter's, also where the config does not say it.

    Raises:
        InvalidRequest, UnsupportedDtype, MalformedArtifact: one cannot be pushed; names it.
        ConfigMissing: an adapter has no config.
    """
    text = config if isinstance(config, bytes) else b"" if config is None else json.dumps(dict(config)).encode()
    kind = ArtifactKind.ADAPTER if is_adapter or b'"peft_type"' in text else ArtifactKind.BASE
    if kind is ArtifactKind.ADAPTER and config is None:
        raise ConfigMissing("an adapter is pushed with its config")
    if not tensors:
        raise InvalidRequest("there are no tensors to push")
    known = {name: tensor_bytes(name, tensor) for name, tensor in tensors.items()}
    planned = plan_files([tensor.spec for tensor in known.values()], kind, SHARD_BYTES_MAX)
    small = {} if config is None else {_CONFIG[kind]: text}
    if len(planned) > 1:
        small[_INDEX] = index_of(planned)
    made = partial(_weights_file, known)
    return [*(MadeFile(name, data) for name, data in small.items()), *map(made, planned.items())]


def _weights_file(known: Mapping[str, TensorBytes], file: tuple[str, Sequence[Any]]) -> MadeFile:
    name, specs = file
    return MadeFile(name, header_of(specs), [known[spec.name] for spec in specs])
