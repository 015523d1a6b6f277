"""What is computed over tensors while their segment is filled and their bytes are in the processor's cache.

Hashes of small tensors, of which the content digest is made, and the CRC32s that a format carries. To read the
segment once more for them takes as long as memory does. Knows no format, no source and no file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import blake3
from isal import isal_zlib

from warmshelf.errors import LoadCancelled
from warmshelf.layout import TensorSpec
from warmshelfd.formats.base import Check, Inspected

Place = tuple[int, int]
"""Where a tensor's bytes begin in a segment, and where they end."""

_CANCELLED_EVERY = 1024
"""Tensors that are compared between two looks at whether anybody still wants it; a few milliseconds."""


class TensorHashes:
    """The BLAKE3 hashes of a segment's small tensors.

    By place: tied names share one, and it is hashed once. May be used by several threads, each for other ranges.
    """

    def __init__(self, tensors: Sequence[TensorSpec]) -> None:
        self._places = _places(tensors)
        self.known: dict[Place, bytes] = {}

    def take(self, view: memoryview, start: int, end: int) -> None:
        """Hash what lies wholly in a range of the segment that is filled."""
        for at in range(bisect_left(self._places, (start, 0)), len(self._places)):
            first, last = place = self._places[at]
            if first >= end:
                return
            if last <= end:
                with view[first:last] as data:
                    self.known[place] = blake3.blake3(data).digest()


class TensorCrcs:
    """The CRC32s of a segment's tensors, put together from the ranges in which they were read.

    Tensors may share a place, but places may not overlap: those of a format that has CRC32s do not. May be used by
    several threads, each for other ranges.
    """

    def __init__(self, tensors: Sequence[TensorSpec]) -> None:
        self._places = _places(tensors)
        self._whole: dict[Place, int] = {}  # of what was told at once
        self._parts: dict[Place, list[tuple[int, int, int]]] = {}  # of the rest: where, how long, CRC32; in any order

    def take(self, view: memoryview, start: int, end: int) -> None:
        """Compute the CRC32 of what a range of the segment that is filled has of each tensor."""
        at = max(bisect_left(self._places, (start + 1, 0)) - 1, 0)  # what begins before may reach into it
        for place in self._places[at : bisect_left(self._places, (end, 0))]:
            first, last = max(place[0], start), min(place[1], end)
            if first >= last:
                continue
            with view[first:last] as data:
                crc32 = isal_zlib.crc32(data)
            if (first, last) == place:
                self._whole[place] = crc32
            else:
                self._parts.setdefault(place, []).append((first, last - first, crc32))

    def crc32(self, place: Place) -> int | None:
        """Return that of a place; None if not all of it was told."""
        if place in self._whole:
            return self._whole[place]
        crc32, end = 0, place[0]
        for start, size, part in sorted(self._parts.get(place, ())):
            if start != end:
                return None
            crc32 = isal_zlib.crc32_combine(crc32, part, size)
            end += size
        return crc32 if end == place[1] else None


@dataclass(frozen=True, slots=True)
class HotSums:
    """What one load wants computed: hashes if its digest is needed, CRC32s if its source has some."""

    hashes: TensorHashes | None = None
    crcs: TensorCrcs | None = None

    def take(self, view: memoryview, start: int, end: int) -> None:
        """See a range of the segment that is filled."""
        for sums in (self.hashes, self.crcs):
            if sums is not None:
                sums.take(view, start, end)

    def check_crc32s(
        self, checks: Iterable[Check], tensors: Sequence[TensorSpec], cancelled: Callable[[], bool]
    ) -> None:
        """Compare the CRC32s that a source has with those of the bytes in the segment.

        Raises:
            DigestMismatch: a tensor has another than its file says; names it.
            LoadCancelled: ``cancelled`` said so.
            RuntimeError: the segment was not filled.
        """
        places = {spec.name: (spec.offset_bytes, spec.end_bytes) for spec in tensors}
        for number, check in enumerate(checks):
            if number % _CANCELLED_EVERY == 0 and cancelled():
                raise LoadCancelled("comparing CRC32s was stopped")
            start, end = place = places[check.name]
            crc32 = self.crcs.crc32(place) if self.crcs is not None else 0  # then only what is empty has one
            if crc32 is None:
                raise RuntimeError(f"tensor {check.name!r} was not read whole")
            check.check_crc32(crc32, end - start)


def sums_of(inspected: Inspected, tensors: Sequence[TensorSpec], *, must_hash: bool) -> HotSums:
    """Return what is to be computed while an artifact is read; decrypted bytes have a MAC and no CRC32."""
    has_crcs = bool(inspected.checks) and inspected.encryption is None
    return HotSums(TensorHashes(tensors) if must_hash else None, TensorCrcs(tensors) if has_crcs else None)


def _places(tensors: Sequence[TensorSpec]) -> list[Place]:
    return sorted({(spec.offset_bytes, spec.end_bytes) for spec in tensors})
