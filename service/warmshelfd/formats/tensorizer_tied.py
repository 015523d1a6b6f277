"""Tied tensors that a ``.tensors`` file holds twice: kept once, where file and config say that they are one.

tensorizer writes a module's parameters by name, so an output layer that shares the
input embedding's storage is there a second time. Equal bytes alone do not make a tie.
Here two tensors are taken to be one if all of these hold:

- ``config.json`` beside the file says ``tie_word_embeddings``, itself or in its ``text_config``;
- one is called as input embeddings are and the other as output layers are, each the only one;
- dtype and shape are the same, and so is the CRC32 of their bytes, which follows from
  what their headers say.

The second then lies where the first does. Its own hashes are compared with those bytes
as ever, so what is served under its name is what the file holds, or is refused. A file
without CRC32, which is an encrypted one, is left as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from isal import isal_zlib

from warmshelfd.domain.base_check import is_input_embedding, is_output_layer
from warmshelfd.domain.extents import TensorEntry
from warmshelfd.formats.base import Files
from warmshelfd.formats.tensorizer_hashes import HashedTensor

_CONFIG = "config.json"

_CONFIG_BYTES_MAX = 1 << 20
"""A longer one is not looked into: those of models have some KB."""


def with_ties(files: Files, entries: Sequence[TensorEntry], hashes: Iterable[HashedTensor]) -> tuple[TensorEntry, ...]:
    """Return the entries, of which a tied one lies where the other does, in the order of their places."""
    found = _only(entries, is_input_embedding), _only(entries, is_output_layer)
    if None in found or not _config_ties(files):
        return tuple(entries)
    first, second = sorted((entry for entry in found if entry is not None), key=lambda entry: entry.offset_bytes)
    if (first.dtype, first.shape) != (second.dtype, second.shape) or not _equal_crc32(first, second, hashes):
        return tuple(entries)
    tied = replace(second, offset_bytes=first.offset_bytes)
    moved = [tied if entry is second else entry for entry in entries]
    return tuple(sorted(moved, key=lambda entry: (entry.offset_bytes, entry.size_bytes, entry.name)))


def _only(entries: Iterable[TensorEntry], is_such: Callable[[str], bool]) -> TensorEntry | None:
    found = [entry for entry in entries if is_such(entry.name.removeprefix("."))]
    return found[0] if len(found) == 1 and found[0].size_bytes else None


def _config_ties(files: Files) -> bool:
    size = files.files().get(_CONFIG, 0)
    if not 0 < size <= _CONFIG_BYTES_MAX:
        return False
    try:
        config = json.loads(files.read(_CONFIG, 0, size))
    except (ValueError, RecursionError):  # whoever needs the config will say so
        return False
    levels = (config, config.get("text_config")) if isinstance(config, dict) else ()
    return any(isinstance(level, dict) and level.get("tie_word_embeddings") is True for level in levels)


def _equal_crc32(first: TensorEntry, second: TensorEntry, hashes: Iterable[HashedTensor]) -> bool:
    of_data = {one.name: _data_crc32(one, first.size_bytes) for one in hashes if one.name in (first.name, second.name)}
    return None not in of_data.values() and len(set(of_data.values())) == 1


def _data_crc32(one: HashedTensor, size: int) -> int | None:
    """Return the CRC32 of a tensor's bytes alone: that of prefix and bytes, without what the prefix adds to it."""
    if one.crc32 is None:
        return None
    return one.crc32 ^ isal_zlib.crc32_combine(isal_zlib.crc32(one.prefix), 0, size)
