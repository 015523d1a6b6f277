"""What a directory of weights on this machine holds: which files, which tensors in each, what is kept beside them.

Decides by the names of files and by a weights index, in the order in which the daemon
does. Opens no weights and needs no library.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from warmshelf.errors import MalformedArtifact, SourceNotFound, UnsupportedFormat
from warmshelf.types import ArtifactKind

CONFIG = "adapter_config.json"
INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"
_INDEX_SUFFIX = ".safetensors.index.json"
_SMALL_SUFFIXES = (".json", ".txt", ".model", ".jinja", ".tiktoken")

STEMS: Mapping[ArtifactKind, str] = {ArtifactKind.BASE: "model", ArtifactKind.ADAPTER: "adapter_model"}
"""What the weights of each kind are called, before their ending."""


@dataclass(frozen=True)
class Weights:
    """The weights in a directory, or one file of them.

    Attributes:
        directory: where all of it is.
        kind: of an adapter, if there is an adapter's config.
        files: those that hold the tensors, in order.
        listed: which tensors count in each file, where an index says so.
        small_files: config, tokenizer and the like, which belong to the weights.
    """

    directory: str
    kind: ArtifactKind
    files: tuple[str, ...]
    listed: Mapping[str, Collection[str]] = field(default_factory=dict)
    small_files: tuple[str, ...] = ()

    def path(self, name: str) -> str:
        """Return where one of the files is."""
        return os.path.join(self.directory, name)


def find_weights(source: str | os.PathLike[str], suffix: str) -> Weights:
    """Return what a directory, or a single file, holds in files with this ending.

    Raises:
        SourceNotFound: there are none, or an index names a file that is missing.
        UnsupportedFormat: several are there and nothing says which is meant.
        MalformedArtifact: an index is none.
    """
    path = os.path.realpath(os.fspath(source))
    if os.path.isfile(path):
        directory, name = os.path.split(path)
        return Weights(directory, ArtifactKind.BASE, (name,))
    try:
        names = sorted(entry.name for entry in os.scandir(path) if entry.is_file())
    except OSError as error:
        raise SourceNotFound(f"{path} cannot be read: {error.strerror}", path=path) from error
    kind = ArtifactKind.ADAPTER if CONFIG in names else ArtifactKind.BASE
    small = tuple(n for n in names if n.endswith(_SMALL_SUFFIXES) and not n.endswith(".index.json"))
    index = _index_name(names) if suffix == ".safetensors" and kind is ArtifactKind.BASE else None
    listed = _read_index(path, index, names) if index else {}
    files = tuple(sorted(listed)) if listed else _unlisted(path, names, kind, suffix)
    return Weights(path, kind, files, listed, small)


def _index_name(names: Collection[str]) -> str | None:
    if INDEX in names:
        return INDEX
    if _WHOLE in names:
        return None
    return min((name for name in names if name.endswith(_INDEX_SUFFIX)), default=None)


def _unlisted(path: str, names: Sequence[str], kind: ArtifactKind, suffix: str) -> tuple[str, ...]:
    whole = STEMS[kind] + suffix
    if whole in names:
        return (whole,)
    found = tuple(name for name in names if name.endswith(suffix))
    if not found or kind is ArtifactKind.ADAPTER:
        raise SourceNotFound(f"{path} has no {whole}", path=path, file=whole)
    if suffix == ".tensors" and len(found) > 1:
        raise UnsupportedFormat(
            f"{path} has {len(found)} files that end in {suffix} and none named {whole}; name the one that is meant",
            path=path,
            file_count=len(found),
        )
    return found


def _read_index(path: str, index: str, names: Collection[str]) -> dict[str, set[str]]:
    try:
        with open(os.path.join(path, index), encoding="utf-8") as file:
            weight_map = json.load(file)["weight_map"]
        shards = {str(shard) for shard in weight_map.values()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MalformedArtifact(f"{index} has no weight_map that names files", file=index) from error
    listed: dict[str, set[str]] = {shard: set() for shard in shards}
    for tensor, shard in weight_map.items():
        listed[str(shard)].add(tensor)
    missing = min(shards - set(names), default=None)
    if missing is not None or not shards:
        raise SourceNotFound(f"{missing or 'every file'} is missing: {index} names it", file=missing or "", index=index)
    return listed
