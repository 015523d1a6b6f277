"""The CRC32 and the SHA-256 that a ``.tensors`` file has of one tensor, and the check against them.

Both are over the tensor's header, with the hashes themselves zeroed and what tells how
the data are encrypted left out, and its plain data right behind. Knows neither files
nor what is in a header.

zlib's own CRC32 takes two thirds of a verified load; that of ISA-L is faster than
memory. It releases the interpreter's lock, as hashlib does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from isal import isal_zlib

from warmshelf.errors import DigestMismatch


@dataclass(frozen=True, slots=True)
class HashedTensor:
    """What the file says of one tensor's bytes.

    Attributes:
        name: the tensor's.
        crc32: the CRC32 of ``prefix`` and data; None if the file has none: then a MAC has shown the data to be right.
        sha256: their SHA-256.
        prefix: what is hashed before the data.
    """

    name: str
    crc32: int | None
    sha256: bytes
    prefix: bytes

    def check_crc32(self, crc32: int, size: int) -> None:
        """Raise DigestMismatch unless the tensor's bytes, which are so many, have the CRC32 that the file says."""
        if self.crc32 is None:
            return
        actual = isal_zlib.crc32_combine(isal_zlib.crc32(self.prefix), crc32, size)
        if actual != self.crc32:
            raise self._mismatch("CRC32", f"{self.crc32:08x}", f"{actual:08x}")

    def check_sha256(self, parts: Iterable[bytes | memoryview]) -> None:
        """Raise DigestMismatch unless the tensor's bytes have the SHA-256 that the file says."""
        hasher = hashlib.sha256(self.prefix)
        for part in parts:
            hasher.update(part)
        if hasher.digest() != self.sha256:
            raise self._mismatch("SHA-256", self.sha256.hex(), hasher.hexdigest())

    def _mismatch(self, which: str, expected: str, actual: str) -> DigestMismatch:
        return DigestMismatch(
            f"tensor {self.name!r} has {which} {actual}, its file says {expected}",
            tensor=self.name,
            expected=expected,
            actual=actual,
        )
