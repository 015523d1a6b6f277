"""The safetensors format: which files of a source hold the tensors, and what those say.

Which files, in this order; the first that applies decides:

1. ``model.safetensors.index.json``: the tensors it lists, in the files it names.
2. ``model.safetensors`` alone.
3. Any other ``*.safetensors.index.json``, the first by name.
4. Every ``*.safetensors`` file; no two may hold a tensor of the same name, and where
   the names count themselves (``-00001-of-00003``) none may be missing.

Adapters have their own format; one file's header is read in ``safetensors_header``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter

from warmshelf.errors import MalformedArtifact, SourceNotFound, UnsupportedFormat
from warmshelf.types import ArtifactKind
from warmshelfd.domain.extents import TensorEntry
from warmshelfd.formats.base import Files, Format, FormatLimits, Inspected
from warmshelfd.formats.pickled import PICKLED_SUFFIXES, conversion_command
from warmshelfd.formats.safetensors_header import read_entries
from warmshelfd.formats.weights_index import read_weight_map

_SUFFIX = ".safetensors"
_INDEX_SUFFIX = ".safetensors.index.json"
_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"

_SMALL_SUFFIXES = (".json", ".txt", ".model", ".jinja", ".tiktoken")
"""How config and tokenizer files end. Code is not among them."""

_COUNTED = re.compile(r"(.*)-([0-9]{1,6})-of-([0-9]{1,6})\.safetensors", re.DOTALL)


class SafetensorsFormat(Format):
    """One ``.safetensors`` file, or a directory of them."""

    name = "safetensors"

    def matches(self, files: Mapping[str, int]) -> bool:
        """Say whether there is such a file, or an index that promises one."""
        return any(name.endswith((_SUFFIX, _INDEX_SUFFIX)) for name in files)

    def inspect(self, files: Files, limits: FormatLimits) -> Inspected:
        """Read the index, if there is one, and every header."""
        names = files.files()
        index = _index_name(names)
        if index is None:
            file_names = _unlisted(names)
            entries = _read_all(files, file_names, limits)
        else:
            weight_map = read_weight_map(files, index, limits)
            file_names = tuple(sorted(set(weight_map.values())))
            _check_shards(index, file_names, names)
            entries = _read_listed(files, index, weight_map, file_names, limits)
        if not entries:
            raise MalformedArtifact(f"{', '.join(file_names)}: no tensors", file=file_names[0])
        return Inspected(
            kind=ArtifactKind.BASE,
            format_name=self.name,
            file_names=file_names,
            entries=tuple(entries),
            small_files=small_files(names, limits),
            index_files=() if index is None else (index,),
        )


def small_files(names: Mapping[str, int], limits: FormatLimits) -> tuple[str, ...]:
    """Return the config and tokenizer files among the names, sorted.

    One that is longer than the limit is something else and left out.

    Raises:
        MalformedArtifact: together they are longer than their limit.
    """
    small = sorted(
        name
        for name, size in names.items()
        if name.endswith(_SMALL_SUFFIXES) and not name.endswith(".index.json") and size <= limits.small_file_bytes_max
    )
    total = sum(names[name] for name in small)
    if total > limits.small_files_bytes_max:
        raise MalformedArtifact(
            f"the config and tokenizer files have {total} bytes, at most {limits.small_files_bytes_max} are allowed",
            size_bytes=total,
        )
    return tuple(small)


def _index_name(names: Collection[str]) -> str | None:
    """Return the index that decides, if one does."""
    if _INDEX in names:
        return _INDEX
    if _WHOLE in names:
        return None
    return min((name for name in names if name.endswith(_INDEX_SUFFIX)), default=None)


def _unlisted(names: Collection[str]) -> tuple[str, ...]:
    """Return the files to read where no index lists them."""
    if _WHOLE in names:
        return (_WHOLE,)
    found = sorted(name for name in names if name.endswith(_SUFFIX))
    _check_counted(found)
    return tuple(found)


def _check_counted(found: Iterable[str]) -> None:
    """Check that of files which say ``-00001-of-00003`` none is missing."""
    present: dict[tuple[str, str], set[int]] = {}
    for name in found:
        if match := _COUNTED.fullmatch(name):
            present.setdefault((match[1], match[3]), set()).add(int(match[2]))
    for (stem, count), numbers in present.items():
        missing = next((n for n in range(1, int(count) + 1) if n not in numbers), None)
        if missing is not None:
            name = f"{stem}-{missing:0{len(count)}}-of-{count}{_SUFFIX}"
            raise SourceNotFound(f"{name} is missing: the names beside it count to {count}", file=name)


def _check_shards(index: str, file_names: Iterable[str], names: Mapping[str, int]) -> None:
    for name in file_names:
        if name.endswith(PICKLED_SUFFIXES):
            raise UnsupportedFormat(
                f"{index} names {name}, a pickle. Convert it: {conversion_command(name)}", file=name
            )
        if name not in names:
            raise SourceNotFound(f"{name} is missing: {index} names it", file=name, index=index)


def _read_all(files: Files, file_names: Sequence[str], limits: FormatLimits) -> list[TensorEntry]:
    """Read every tensor of files that no index lists."""
    found: list[TensorEntry] = []
    for file_index, file_name in enumerate(file_names):
        found += read_entries(files, file_name, file_index, limits)
        if len(found) > limits.tensor_count_max:
            raise MalformedArtifact(
                f"{file_name}: with it there are more than {limits.tensor_count_max} tensors",
                file=file_name,
                tensor_count=len(found),
            )
    _check_distinct(found, file_names)
    return found


def _check_distinct(entries: Iterable[TensorEntry], file_names: Sequence[str]) -> None:
    for one, other in pairwise(sorted(entries, key=attrgetter("name"))):
        if one.name == other.name:
            raise MalformedArtifact(
                f"{file_names[one.file_index]} and {file_names[other.file_index]} both hold a tensor {one.name!r}, "
                "and no index says which is meant",
                tensor=one.name,
            )


def _read_listed(
    files: Files, index: str, weight_map: Mapping[str, str], file_names: Sequence[str], limits: FormatLimits
) -> list[TensorEntry]:
    """Read the tensors that the index lists from the files it names."""
    counts = Counter(weight_map.values())
    found: list[TensorEntry] = []
    for file_index, file_name in enumerate(file_names):
        entries = read_entries(files, file_name, file_index, limits)
        listed = [entry for entry in entries if weight_map.get(entry.name) == file_name]
        if len(listed) < counts[file_name]:
            names = {entry.name for entry in listed}
            missing = next(t for t, shard in weight_map.items() if shard == file_name and t not in names)
            raise MalformedArtifact(
                f"{file_name}: has no tensor {missing!r}, which {index} promises", file=file_name, tensor=missing
            )
        found += listed
    return found
