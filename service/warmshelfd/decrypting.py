"""Encrypted sources: which key opens one, and reads that give its plain bytes.

Ciphertext passes through a buffer of a few MiB for each thread; what is decrypted is
written where the caller wants it and nowhere else, and only once its MAC was right.
Knows libsodium by PyNaCl, which is imported with the first encrypted source. Knows no
file format; how a file is encrypted its format has read.

PyNaCl's own functions take and return ``bytes``, three copies that make them less than
half as fast. So libsodium is called below them, by the handle that they use themselves.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from warmshelf.errors import DecryptionFailed, InvalidConfig, KeyMissing
from warmshelfd.formats.base import Boxes, Derivation, Encryption, Inspected
from warmshelfd.sources.base import OpenSource
from warmshelfd.sources.settings import SourceSettings, read_key, settings_for

KEY_BYTES = 32
MAC_BYTES = 16
_NONCE_SPACE = 1 << 192

_DERIVED_MAX = 64
"""Derived keys that are kept; each would cost up to seconds again."""


class Keys:
    """The keys that the operator has given, by prefix. May be used by several threads."""

    def __init__(self, settings: Sequence[SourceSettings]) -> None:
        self._settings = settings
        # Guards the table below, and lets one derivation run at a time: each may take 256 MiB.
        self._deriving = threading.Lock()
        self._derived: dict[tuple[bytes, Derivation], bytes] = {}

    def find(self, source: OpenSource, inspected: Inspected) -> bytes:
        """Return the key that opens an encrypted source, tried on its smallest box; b"" if nothing is encrypted.

        Raises:
            KeyMissing: no key is configured for the source, or it cannot be read.
            DecryptionFailed: it is not the right one, or the box was changed.
        """
        encryption = inspected.encryption
        sized = [(e.size_bytes, number) for number, e in enumerate(inspected.entries) if e.size_bytes]
        if encryption is None or not sized:
            return b""
        _, number = min(sized)
        entry = inspected.entries[number]
        file = inspected.file_names[entry.file_index]
        size = min(entry.size_bytes, encryption.box_bytes)
        box = bytearray(MAC_BYTES + size)
        box[:MAC_BYTES] = encryption.boxes[number].macs[:MAC_BYTES]
        source.read_into(file, entry.offset_bytes, memoryview(box)[MAC_BYTES:])
        for key in self._candidates(self._configured(source.uri, file), encryption.derivation):
            if open_box(box, encryption.boxes[number].nonce, key, None):
                return key
        raise DecryptionFailed(
            f"{file} cannot be decrypted: it was encrypted with another key than the one configured, "
            f"or tensor {entry.name!r} was changed" + _hint(encryption.derivation),
            file=file,
            tensor=entry.name,
        )

    def _configured(self, uri: str, file: str) -> bytes:
        settings = settings_for(uri, self._settings)
        if settings is None or settings.tensors_key is None:
            raise KeyMissing(f"{file} is encrypted, and no source settings have a tensors_key for it", file=file)
        try:
            return read_key(settings.tensors_key)
        except InvalidConfig as error:
            raise KeyMissing(f"{file} is encrypted, and its key cannot be had: {error.message}", file=file) from None

    def _candidates(self, secret: bytes, derivation: Derivation | None) -> Iterator[bytes]:
        """Yield every key that the secret can mean, the cheapest first."""
        text = secret.removesuffix(b"\n").removesuffix(b"\r")
        yield from {raw for raw in (secret, text) if len(raw) == KEY_BYTES}
        if len(text) == 2 * KEY_BYTES:
            with suppress(ValueError):
                yield bytes.fromhex(text.decode("ascii"))
        if derivation is not None and text:
            yield self._derive(text, derivation)

    def _derive(self, passphrase: bytes, derivation: Derivation) -> bytes:
        with self._deriving:
            known = self._derived.get((passphrase, derivation))
            if known is None:
                known = derive_key(passphrase, derivation)
                while len(self._derived) >= _DERIVED_MAX:
                    del self._derived[next(iter(self._derived))]
                self._derived[passphrase, derivation] = known
            return known


class Decrypting:
    """Reads of an encrypted source that give plain bytes. For several threads at once."""

    def __init__(self, source: OpenSource, inspected: Inspected, encryption: Encryption, key: bytes) -> None:
        self._source = source
        self._inspected = inspected
        self._encryption = encryption
        self._key = key
        self._starts = [entry.offset_bytes for entry in inspected.entries]
        self._local = threading.local()  # each thread's own buffer for ciphertext

    def read_into(self, file: str, offset: int, view: memoryview) -> None:
        """Fill the view with plain bytes of one tensor: whole boxes, from the beginning of one on.

        Raises:
            DecryptionFailed: a box is not what was encrypted; names its tensor.
            WarmshelfError: what the source raises.
        """
        number = bisect_right(self._starts, offset) - 1
        entry, boxes = self._inspected.entries[number], self._encryption.boxes[number]
        step = self._encryption.box_bytes
        first = (offset - entry.offset_bytes) // step
        buffer = self._buffer(MAC_BYTES + len(view))
        self._source.read_into(file, offset, buffer[MAC_BYTES:])
        for start in range(0, len(view), step):
            index = first + start // step
            end = min(start + step, len(view))
            # The MAC stands before its box: over the end of the box before, which is no longer needed.
            buffer[start : start + MAC_BYTES] = boxes.macs[index * MAC_BYTES : (index + 1) * MAC_BYTES]
            with buffer[start : end + MAC_BYTES] as box, view[start:end] as plain:
                if not open_box(box, nonce_of(boxes, index), self._key, plain):
                    raise _changed(file, entry.name, index)

    def _buffer(self, size: int) -> memoryview:
        buffer: bytearray | None = getattr(self._local, "buffer", None)
        if buffer is None or len(buffer) < size:
            buffer = self._local.buffer = bytearray(size)
        return memoryview(buffer)[:size]


def plain_reads(source: OpenSource, inspected: Inspected, keys: Keys) -> OpenSource | Decrypting:
    """Return what reads a source's tensors as they are in the clear.

    Raises:
        KeyMissing, DecryptionFailed: it is encrypted, and there is no key that opens it.
    """
    if inspected.encryption is None:
        return source
    return Decrypting(source, inspected, inspected.encryption, keys.find(source, inspected))


def nonce_of(boxes: Boxes, index: int) -> bytes:
    """Return the nonce of a box: the first one counted up, with little-endian carry."""
    number = int.from_bytes(boxes.nonce, "little") + index
    return (number % _NONCE_SPACE).to_bytes(len(boxes.nonce), "little")


def open_box(box: bytearray | memoryview, nonce: bytes, key: bytes, plain: memoryview | None) -> bool:
    """Decrypt what is behind the MAC into ``plain``, if any; say False, and write nothing, if the MAC is wrong."""
    ffi, lib = _libsodium()
    with ffi.from_buffer(box) as closed:
        if plain is None:
            return bool(lib.crypto_secretbox_open_easy(ffi.NULL, closed, len(box), nonce, key) == 0)
        with ffi.from_buffer(plain, require_writable=True) as opened:
            return bool(lib.crypto_secretbox_open_easy(opened, closed, len(box), nonce, key) == 0)


@cache
def _libsodium() -> tuple[Any, Any]:
    """Import it with the first need: that takes 30 ms, and most daemons have none."""
    from nacl._sodium import ffi, lib  # noqa: PLC0415
    from nacl.bindings import sodium_init  # noqa: PLC0415

    sodium_init()  # chooses the code for this processor: without it decrypting takes twice as long
    return ffi, lib


def derive_key(passphrase: bytes, derivation: Derivation) -> bytes:
    """Return the key that a passphrase means; takes the time and the memory that the derivation says."""
    from nacl.bindings import crypto_pwhash_alg, crypto_pwhash_ALG_ARGON2ID13  # noqa: PLC0415

    return crypto_pwhash_alg(
        KEY_BYTES,
        passphrase,
        derivation.salt,
        derivation.passes,
        derivation.memory_bytes,
        crypto_pwhash_ALG_ARGON2ID13,
    )


def _hint(derivation: Derivation | None) -> str:
    return "" if derivation else "; the key is 32 bytes, raw or in 64 hexadecimal digits, and no passphrase"


def _changed(file: str, tensor: str, index: int) -> DecryptionFailed:
    return DecryptionFailed(
        f"{file}: box {index} of tensor {tensor!r} is not what was encrypted",
        file=file,
        tensor=tensor,
        box_index=index,
    )
