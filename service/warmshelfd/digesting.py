"""Content digests computed over a segment's bytes, or over a file for ``sha256:`` expectations.

Blocking: called in threads. Knows the encoding of warmshelf.digest, no catalog.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import blake3

from warmshelf.digest import combine
from warmshelf.errors import DigestMismatch, LoadCancelled, UnsupportedFormat
from warmshelf.layout import TensorSpec
from warmshelfd.formats.base import Check, Inspected
from warmshelfd.hot_sums import TensorHashes
from warmshelfd.sources.base import OpenSource

_STEP_BYTES = 4 << 20
"""Read and hash this much between two looks at ``cancelled``; a millisecond of one core."""

_FILE_STEP_BYTES = 4 << 20

Cancelled = Callable[[], bool]
ReadInto = Callable[[str, int, memoryview], None]
"""Fills the view with a file's bytes: name, offset, view."""

Part: TypeAlias = bytes | memoryview

ReadRange: TypeAlias = Callable[[int, int], Part]
"""Gives the bytes of a segment from one offset to another."""


def content_digest(
    tensors: Sequence[TensorSpec],
    read: ReadRange,
    config: bytes,
    cancelled: Cancelled,
    hashes: TensorHashes | None = None,
) -> str:
    """Return ``blake3:<hex>`` over every tensor of a segment and the config.

    Args:
        tensors: where each tensor lies in the segment.
        read: gives a range of the segment.
        config: the artifact's config file, or b"".
        cancelled: asked every few milliseconds.
        hashes: what is hashed already, of these tensors.

    Raises:
        LoadCancelled: it said yes.
    """
    known = dict(hashes.known) if hashes else {}
    return "blake3:" + combine(_hashed(tensors, read, known, cancelled), config, blake3.blake3())


def _hashed(
    tensors: Sequence[TensorSpec], read: ReadRange, known: dict[tuple[int, int], bytes], cancelled: Cancelled
) -> Iterator[tuple[str, str, tuple[int, ...], bytes]]:
    for spec in tensors:
        place = (spec.offset_bytes, spec.end_bytes)
        if place not in known:
            known[place] = _tensor_hash(read, *place, cancelled)
        yield spec.name, spec.dtype, spec.shape, known[place]


def _tensor_hash(read: ReadRange, start: int, end: int, cancelled: Cancelled) -> bytes:
    if end - start > _STEP_BYTES:
        hasher = blake3.blake3()
        for part in _parts(read, start, end, cancelled):
            hasher.update(part)
        return hasher.digest()
    if cancelled():
        raise LoadCancelled("hashing was stopped")
    return blake3.blake3(read(start, end)).digest()


def _parts(read: ReadRange, start: int, end: int, cancelled: Cancelled) -> Iterator[Part]:
    """Yield a tensor's bytes, some at a time."""
    for at in range(start, end, _STEP_BYTES):
        if cancelled():
            raise LoadCancelled("hashing was stopped")
        yield read(at, min(at + _STEP_BYTES, end))


def source_digest(read_into: ReadInto, inspected: Inspected, config: bytes, cancelled: Cancelled) -> str:
    """Return the digest that loading the source would give, reading it through a small buffer, which ends zeroed."""
    box_bytes = inspected.encryption.box_bytes if inspected.encryption else 1
    step = _FILE_STEP_BYTES // box_bytes * box_bytes or box_bytes  # what is encrypted is read in whole boxes
    buffer = memoryview(bytearray(step))

    def hashed() -> Iterator[tuple[str, str, tuple[int, ...], bytes]]:
        for e in inspected.entries:
            hasher = blake3.blake3()
            for start in range(0, e.size_bytes, step):
                if cancelled():
                    raise LoadCancelled("hashing was stopped")
                view = buffer[: min(step, e.size_bytes - start)]
                read_into(inspected.file_names[e.file_index], e.offset_bytes + start, view)
                hasher.update(view)
            yield e.name, e.dtype, e.shape, hasher.digest()

    try:
        return "blake3:" + combine(hashed(), config, blake3.blake3())
    finally:
        buffer[:] = bytes(step)


def file_digest(source: OpenSource, name: str, size: int, cancelled: Cancelled) -> str:
    """Return ``sha256:<hex>`` over one file of a source."""
    hasher = hashlib.sha256()
    buffer = memoryview(bytearray(min(size, _FILE_STEP_BYTES)))
    for start in range(0, size, _FILE_STEP_BYTES):
        if cancelled():
            raise LoadCancelled("hashing was stopped")
        view = buffer[: min(_FILE_STEP_BYTES, size - start)]
        source.read_into(name, start, view)
        hasher.update(view)
    return "sha256:" + hasher.hexdigest()


def one_file_digest(source: OpenSource, names: Sequence[str], cancelled: Cancelled) -> str:
    """Return ``sha256:<hex>`` over the only file of weights that a source has.

    Raises:
        UnsupportedFormat: it has several.
    """
    if len(names) != 1:
        raise UnsupportedFormat(
            f"a sha256 digest is that of one file, the source has {len(names)}", file_count=len(names)
        )
    return file_digest(source, names[0], source.files()[names[0]], cancelled)


def check_sha256s(
    checks: Iterable[Check], tensors: Sequence[TensorSpec], read: ReadRange, cancelled: Cancelled, threads: int
) -> None:
    """Compare the SHA-256s that the source's format carries with the bytes in a segment, on several threads.

    Several times slower than reading.

    Raises:
        DigestMismatch: a tensor has another than its file says; names it.
        LoadCancelled: ``cancelled`` said so.
    """
    places = {spec.name: spec for spec in tensors}

    def check_one(one: Check) -> None:
        place = places[one.name]
        one.check_sha256(_parts(read, place.offset_bytes, place.end_bytes, cancelled))

    with ThreadPoolExecutor(threads, "verify") as pool:
        for _ in pool.map(check_one, checks):
            pass


def expect(expected: str, actual: str, what: str) -> None:
    """Raise DigestMismatch unless both digests are the same."""
    if expected != actual:
        raise DigestMismatch(f"{what} has digest {actual}, expected {expected}", expected=expected, actual=actual)
