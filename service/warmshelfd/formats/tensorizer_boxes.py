"""Reads what a header tells of how its tensor's data are encrypted, and decrypts nothing.

It is counted (8) and holds a number of parts (2), each counted (8). A part begins with
its type (2):

1. how the key comes from a passphrase: a method (2), of which there is one, Argon2id:
   passes (8), bytes of memory (8), algorithm (4), counted salt (2). Left out where the
   key is random;
2. boxes of equal length: that length (8), the first nonce (24), how many boxes (8), and
   the MAC of each (16).

A third type, one box for all of a tensor, is known to readers; no release writes it. A
tensor without bytes has no parts.
"""

from __future__ import annotations

from warmshelf.errors import MalformedArtifact, UnsupportedFormat
from warmshelfd.formats.base import Boxes, Derivation, FormatLimits
from warmshelfd.formats.tensorizer_fields import Fields, malformed

_DERIVATION, _BOXES = 1, 2
_PASSPHRASE = 1
_ARGON2ID13 = 2
_SALT_BYTES = 16
_ARGON2_MEMORY_BYTES_MIN = 8 << 10

_NONCE_BYTES, MAC_BYTES = 24, 16
_BOX_BYTES_MIN, _BOX_QUANTUM_BYTES = 1024, 64

NO_BOXES = Boxes(b"", b"")
"""Those of a tensor without bytes."""


class CryptParser:
    """Reads the parts of one header after the other; all must tell of one length of boxes and of one key."""

    def __init__(self, file: str, limits: FormatLimits) -> None:
        self._file = file
        self._limits = limits
        # What the first header told; the reading thread's alone.
        self._known: tuple[int, Derivation | None] | None = None

    @property
    def box_bytes(self) -> int:
        """How long boxes are, as far as is known."""
        return self._known[0] if self._known else _BOX_BYTES_MIN

    @property
    def derivation(self) -> Derivation | None:
        """How the key comes from a passphrase, as far as is known."""
        return self._known[1] if self._known else None

    def boxes(self, name: str, size_bytes: int, raw: bytes) -> Boxes:
        """Return the boxes of one tensor.

        Raises:
            MalformedArtifact: they are not such as a writer makes for it, or cost more than the limits.
            UnsupportedFormat: the tensor is encrypted in another way.
        """
        fields = Fields(raw, self._file, f"what encrypts tensor {name!r}")
        parts = [Fields(fields.counted(8), self._file, "a part of it") for _ in range(fields.number(2))]
        if not fields.is_at_end():
            raise self._wrong(name, "goes on after its parts")
        if size_bytes == 0:
            if parts:
                raise self._wrong(name, "is there though it has no bytes")
            return NO_BOXES
        types = [part.number(2) for part in parts]
        if types not in ([_BOXES], [_DERIVATION, _BOXES]):
            raise UnsupportedFormat(
                f"{self._file}: tensor {name!r} is encrypted in another way than by boxes of one length; "
                f"its parts are of types {types[:4]}",
                file=self._file,
                tensor=name,
            )
        derivation = self._derivation(name, parts[0]) if len(parts) > 1 else None
        box_bytes, boxes = self._boxes(name, size_bytes, parts[-1])
        if self._known is None:
            self._known = (box_bytes, derivation)
        elif self._known != (box_bytes, derivation):
            raise self._wrong(name, "differs from that of the tensors before it")
        return boxes

    def _derivation(self, name: str, part: Fields) -> Derivation:
        method = part.number(2)
        derivation = Derivation(part.number(8), part.number(8), b"")
        algorithm, salt = part.number(4), part.counted(2)
        if (method, algorithm, len(salt)) != (_PASSPHRASE, _ARGON2ID13, _SALT_BYTES) or not part.is_at_end():
            raise self._wrong(name, "has a key that does not come from a passphrase by Argon2id")
        passes_max, memory_bytes_max = self._limits.argon2_passes_max, self._limits.argon2_memory_bytes_max
        if not 1 <= derivation.passes <= passes_max:
            raise self._wrong(
                name, f"asks for {derivation.passes} passes of Argon2id, 1 to {passes_max} are allowed", passes_max
            )
        if not _ARGON2_MEMORY_BYTES_MIN <= derivation.memory_bytes <= memory_bytes_max:
            raise self._wrong(
                name,
                f"asks for {derivation.memory_bytes} bytes of memory for Argon2id, "
                f"{_ARGON2_MEMORY_BYTES_MIN} to {memory_bytes_max} are allowed",
                memory_bytes_max,
            )
        return Derivation(derivation.passes, derivation.memory_bytes, salt)

    def _boxes(self, name: str, size_bytes: int, part: Fields) -> tuple[int, Boxes]:
        box_bytes, nonce, count = part.number(8), part.take(_NONCE_BYTES), part.number(8)
        if not _BOX_BYTES_MIN <= box_bytes <= self._limits.box_bytes_max or box_bytes % _BOX_QUANTUM_BYTES:
            raise self._wrong(
                name,
                f"has boxes of {box_bytes} bytes; {_BOX_BYTES_MIN} to {self._limits.box_bytes_max} are allowed, "
                f"in steps of {_BOX_QUANTUM_BYTES}",
                self._limits.box_bytes_max,
            )
        expected = -(-size_bytes // box_bytes)
        if count != expected:
            raise self._wrong(name, f"has {count} boxes of {box_bytes} bytes, its {size_bytes} bytes take {expected}")
        macs = part.take(MAC_BYTES * count)
        if not part.is_at_end():
            raise self._wrong(name, "goes on after its MACs")
        return box_bytes, Boxes(nonce, macs)

    def _wrong(self, name: str, what: str, limit: int | None = None) -> MalformedArtifact:
        details = {} if limit is None else {"limit_max": limit}
        return malformed(self._file, f"what encrypts tensor {name!r} {what}", tensor=name, **details)
