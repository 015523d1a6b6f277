"""The CRC32 and the SHA-256 that a ``.tensors`` file has of each tensor, and the check against them.

Both are over the tensor's header, with the hashes themselves zeroed, and its data
right behind. Knows headers only as far as the hashes in them; reads nothing.

zlib's own CRC32 takes three quarters of a verified load; that of ISA-L is faster than
memory. It releases the interpreter's lock, as hashlib does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from isal import isal_zlib

from warmshelf.errors import DigestMismatch
from warmshelfd.domain.extents import TensorEntry

_CRC32 = slice(-46, -42)
_SHA256 = slice(-40, -8)
"""Where a header has them: behind them it has only the data's length."""


@dataclass(frozen=True, slots=True)
class HashedTensor:
    """What the file says of one tensor's bytes.

    Attributes:
        name: the tensor's.
        header: as it stands in the file; it ends with both hashes and the data's length.
    """

    name: str
    header: bytes

    @property
    def crc32(self) -> int:
        """The CRC32 of prefix and data."""
        return int.from_bytes(self.header[_CRC32], "little")

    @property
    def sha256(self) -> bytes:
        """The SHA-256 of prefix and data."""
        return self.header[_SHA256]

    @property
    def prefix(self) -> bytes:
        """What is hashed before the data."""
        prefix = bytearray(self.header)
        prefix[_CRC32] = bytes(4)
        prefix[_SHA256] = bytes(32)
        return bytes(prefix)

    def check_crc32(self, view: memoryview) -> None:
        """Raise DigestMismatch unless the tensor's bytes have the CRC32 that the file says."""
        actual = isal_zlib.crc32(view, isal_zlib.crc32(self.prefix))
        if actual != self.crc32:
            raise self._mismatch("CRC32", f"{self.crc32:08x}", f"{actual:08x}")

    def check_sha256(self, view: memoryview) -> None:
        """Raise DigestMismatch unless the tensor's bytes have the SHA-256 that the file says."""
        hasher = hashlib.sha256(self.prefix)
        hasher.update(view)
        if hasher.digest() != self.sha256:
            raise self._mismatch("SHA-256", self.sha256.hex(), hasher.hexdigest())

    def _mismatch(self, which: str, expected: str, actual: str) -> DigestMismatch:
        return DigestMismatch(
            f"tensor {self.name!r} has {which} {actual}, its file says {expected}",
            tensor=self.name,
            expected=expected,
            actual=actual,
        )


class HashedTensors:
    """The hashes of a file's tensors, one after the other.

    Made anew by each iteration: kept are only the headers, in one piece, as a hundred
    thousand tensors would take more memory for objects than for bytes.
    """

    def __init__(self, entries: Sequence[TensorEntry], headers: bytes) -> None:
        """Take each entry's header, all of them joined in the order of the entries."""
        self._entries = entries
        self._headers = headers

    def __iter__(self) -> Iterator[HashedTensor]:
        start = 0
        for entry in self._entries:
            end = start + int.from_bytes(self._headers[start : start + 8], "little")
            yield HashedTensor(entry.name, self._headers[start:end])
            start = end
