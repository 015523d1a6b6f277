"""Reads the index of a sharded checkpoint: which file holds which tensor.

An index is a JSON object whose member ``weight_map`` maps tensor names to file
names. What stands beside it is checked to be JSON and otherwise left alone. Knows
nothing of what the files hold.
"""

from __future__ import annotations

from warmshelf.errors import MalformedArtifact
from warmshelfd.formats.base import Files, FormatLimits
from warmshelfd.formats.strict_json import StrictJson

_FILE_NAME_BYTES_MAX = 255
"""Longest name that a file can have on Linux."""

_KEY_BYTES_MAX = 512
"""Longest key beside ``weight_map``; writers have ``metadata``."""


def read_weight_map(files: Files, name: str, limits: FormatLimits) -> dict[str, str]:
    """Return the file name of every tensor that the index lists.

    Raises:
        MalformedArtifact: it is no index, breaks a limit, names a tensor twice, or a
            file that is not beside it.
    """
    size = files.files()[name]
    if size > limits.index_bytes_max:
        raise MalformedArtifact(
            f"{name}: has {size} bytes, at most {limits.index_bytes_max} are allowed", file=name, size_bytes=size
        )
    reader = StrictJson(files.read(name, 0, size), name)
    weight_map: dict[str, str] | None = None
    keys: set[str] = set()
    for key in reader.members(keys, _KEY_BYTES_MAX):
        keys.add(key)
        if key == "weight_map":
            weight_map = _read_map(reader, name, limits)
        else:
            reader.skip(limits.metadata_bytes_max)
    reader.end()
    if not weight_map:
        raise MalformedArtifact(f"{name}: has no weight_map that names a tensor", file=name)
    return weight_map


def _read_map(reader: StrictJson, name: str, limits: FormatLimits) -> dict[str, str]:
    weight_map: dict[str, str] = {}
    shards: dict[str, str] = {}  # one object per file name, however many tensors have it
    for tensor in reader.members(weight_map, limits.name_bytes_max):
        if len(weight_map) == limits.tensor_count_max:
            raise MalformedArtifact(f"{name}: lists more than {limits.tensor_count_max} tensors", file=name)
        shard = reader.string(_FILE_NAME_BYTES_MAX)
        if shard not in shards:
            _check_beside(name, shard)
            shards[shard] = shard
        weight_map[tensor] = shards[shard]
    return weight_map


def _check_beside(name: str, shard: str) -> None:
    if shard in ("", ".", "..") or "/" in shard or "\0" in shard:
        raise MalformedArtifact(
            f"{name}: names {shard[:64]!r}, which is not the name of a file beside it", file=name, shard=shard[:64]
        )
