"""Slices of a segment's tensors as one packed space, cut into chunks where they are asked for.

Where a slice lies is arithmetic that the client shares (``warmshelf.shard``). The bytes are
gathered chunk by chunk, so a read of any size holds one chunk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import crc32c

from warmshelf._frame import frame_head
from warmshelf.shard import Piece, TensorSlice, packed_size_bytes, pieces_of, runs_of
from warmshelf.v1 import transfer_pb2
from warmshelfd.memory.segment import Segment

GAP_BYTES = 512
"""What lies between two runs is read along if it is no longer: copying it costs less than another read."""

SPAN_BYTES = 256 << 10
"""Most bytes that are read together; what is wanted of them may be a small part."""


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
        parts = list(self._parts(start, stop))
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return b"".join((frame_head(start, crc32c.crc32c(data), len(data)), data))

    def _parts(self, start: int, stop: int) -> Iterator[bytes | memoryview]:
        at, index = start, bisect_right(self.starts, start) - 1
        while at < stop:
            piece = self.pieces[index]
            first, last = at - piece.packed_bytes, min(stop - piece.packed_bytes, piece.size_bytes)
            yield from gathered(self.segment.file.read, runs_of(piece, first, last))
            at = max(at, piece.packed_bytes + last)
            index += 1
            gap = min(self.starts[index] if index < len(self.starts) else stop, stop) - at
            if gap:
                yield bytes(gap)
            at += gap


def gathered(read: Callable[[int, int], bytes], runs: Iterable[tuple[int, int]]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of each run; runs with small gaps between them, such as columns, are read together."""
    group: list[tuple[int, int]] = []
    for run in runs:
        if group and not (0 <= run[0] - group[-1][1] <= GAP_BYTES and run[1] - group[0][0] <= SPAN_BYTES):
            yield from _read_group(read, group)
            group = []
        group.append(run)
    yield from _read_group(read, group)


def _read_group(read: Callable[[int, int], bytes], group: Sequence[tuple[int, int]]) -> Iterator[bytes | memoryview]:
    if len(group) == 1:
        yield read(*group[0])
    elif group:
        base = group[0][0]
        span = memoryview(read(base, group[-1][1]))
        for begin, end in group:
            yield span[begin - base : end - base]


def packed_slices(segment: Segment, slices: Iterable[transfer_pb2.TensorSlice]) -> PackedSlices:
    """Return what the slices of a request mean.

    Raises:
        InvalidRequest: one is not inside its tensor.
    """
    wanted = [TensorSlice(one.tensor_index, one.dim, one.start, one.stop) for one in slices]
    pieces = tuple(pieces_of(segment.layout.tensors, wanted))
    return PackedSlices(segment, pieces, tuple(piece.packed_bytes for piece in pieces))
