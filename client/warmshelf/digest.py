"""What a content digest is: its grammar, and the bytes it is computed over.

The hash function is passed in, so that this module needs none: BLAKE3 in the daemon,
any implementation of it elsewhere.

The encoding. A *part* is a string of bytes, preceded by its length as 8 bytes,
little-endian. The digest of an artifact is the hash of these parts, one after
the other, with nothing between them:

1. the 19 bytes ``warmshelf content 1``;
2. for each tensor, in the order of their names' UTF-8 bytes, four parts: the name in
   UTF-8; the dtype in ASCII, such as ``BF16``; the shape, 8 bytes little-endian for each
   dimension (none for a scalar); and the 32 bytes of the tensor's own BLAKE3 hash,
   which covers its ``size_bytes`` bytes as they lie in the source;
3. the config file, byte for byte, or an empty part if there is none.

The digest is written ``blake3:`` and 64 lower-case hexadecimal digits. Two names on one
range count as two tensors. Where bytes lie, and in which file, does not count.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Protocol

from warmshelf.errors import InvalidSpec

CONTENT_MAGIC = b"warmshelf content 1"

_DIGEST = re.compile(r"(blake3|sha256):[0-9a-f]{64}")
_U64 = struct.Struct("<Q")
_SHOWN_COUNT_MAX = 80  # characters of a wrong digest worth repeating


class Hasher(Protocol):
    """What is needed of a hash function; hashlib's and blake3's objects have it."""

    def update(self, data: bytes, /) -> object:
        """Take more bytes."""

    def hexdigest(self) -> str:
        """Return the hash of all bytes taken."""


def check_digest(text: str) -> str:
    """Return the digest unchanged if it is ``blake3:`` or ``sha256:`` and 64 lower-case hex digits.

    Raises:
        InvalidSpec: it is not.
    """
    if not isinstance(text, str):
        raise InvalidSpec(f"a digest is a string, not {type(text).__name__}")
    if not _DIGEST.fullmatch(text):
        shown = text[:_SHOWN_COUNT_MAX].encode("ascii", "backslashreplace").decode("ascii")
        raise InvalidSpec(f"digest {shown!r} is not blake3: or sha256: and 64 lower-case hexadecimal digits")
    return text


def combine(tensors: Iterable[tuple[str, str, tuple[int, ...], bytes]], config: bytes, hasher: Hasher) -> str:
    """Return the hash, in hexadecimal, over what makes an artifact's content.

    Args:
        tensors: name, dtype, shape and hash of each, in any order.
        config: the config file, or b"".
        hasher: a fresh one.
    """
    hasher.update(_part(CONTENT_MAGIC))
    kinds: dict[
        tuple[str, tuple[int, ...]], bytes
    ] = {}  # dtype and shape as parts: a model has few between all tensors
    for name, dtype, shape, tensor_hash in sorted((row[0].encode(), *row[1:]) for row in tensors):
        kind = kinds.get((dtype, shape))
        if kind is None:
            dims = b"".join(map(_U64.pack, shape))
            kind = kinds[dtype, shape] = _part(dtype.encode("ascii")) + _part(dims)
        hasher.update(_part(name) + kind + _part(tensor_hash))
    hasher.update(_part(config))
    return hasher.hexdigest()


def _part(data: bytes) -> bytes:
    return _U64.pack(len(data)) + data
