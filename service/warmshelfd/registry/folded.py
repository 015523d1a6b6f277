"""Text that a store holds compressed, read as what a stranger may have put there."""

from __future__ import annotations

import zlib

from warmshelfd.registry.fields import BadRecord


def folded(text: str) -> bytes:
    """Return ASCII text compressed."""
    return zlib.compress(text.encode("ascii"), 9)


def unfolded(data: bytes, bytes_max: int) -> str:
    """Return the text that ``folded`` was given.

    Raises:
        BadRecord: it is none, is longer than ``bytes_max``, of which no more is ever unfolded, or is cut off.
    """
    unfold = zlib.decompressobj()
    try:
        text = unfold.decompress(data, bytes_max)
        if not unfold.eof:
            raise BadRecord(f"unfolds to more than {bytes_max} bytes, or is cut off")
        return text.decode("ascii")
    except (zlib.error, UnicodeDecodeError):
        raise BadRecord("does not unfold to text") from None
