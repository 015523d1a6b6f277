"""Slices of a segment's tensors as one packed space, cut into chunks where they are asked for.

Where a slice lies is arithmetic that the client shares (``warmshelf.shard``). The bytes are
gathered chunk by chunk, so a read of any size holds one chunk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import crc32c

from warmshelf._frame import frame_head
from warmshelf.shard import Piece, TensorSlice, packed_size_bytes, pieces_of, runs_of
from warmshelf.v1 import transfer_pb2
from warmshelfd.memory.segment import Segment


@dataclass(frozen=True, slots=True)
class PackedSlices:
    """What one ReadTensors asked for."""

    segment: Segment
    pieces: tuple[Piece, ...]
    starts: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Length of the packed space."""
        return packed_size_bytes(self.pieces)

    def chunk(self, start: int, stop: int) -> bytes:
        """Return one framed chunk."""
        data = b"".join(self._parts(start, stop))
        return frame_head(start, crc32c.crc32c(data), len(data)) + data

    def _parts(self, start: int, stop: int) -> Iterator[bytes | memoryview]:
        view = self.segment.view
        at, index = start, bisect_right(self.starts, start) - 1
        while at < stop:
            piece = self.pieces[index]
            first, last = at - piece.packed_bytes, min(stop - piece.packed_bytes, piece.size_bytes)
            for begin, end in runs_of(piece, first, last):
                yield view[begin:end]
            at = max(at, piece.packed_bytes + last)
            index += 1
            gap = min(self.starts[index] if index < len(self.starts) else stop, stop) - at
            yield bytes(gap)
            at += gap


def packed_slices(segment: Segment, slices: Iterable[transfer_pb2.TensorSlice]) -> PackedSlices:
    """Return what the slices of a request mean.

    Raises:
        InvalidRequest: one is not inside its tensor.
    """
    wanted = [TensorSlice(one.tensor_index, one.dim, one.start, one.stop) for one in slices]
    pieces = tuple(pieces_of(segment.layout.tensors, wanted))
    return PackedSlices(segment, pieces, tuple(piece.packed_bytes for piece in pieces))
