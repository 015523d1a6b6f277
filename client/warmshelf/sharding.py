"""The tensors of one rank: views into a mapped segment, or slices streamed by themselves.

Both look the same to a lease. Knows no daemon but through ``transfer``.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

from warmshelf._channel import Connection, Deadline
from warmshelf.errors import InvalidRequest
from warmshelf.image import SegmentImage
from warmshelf.layout import SegmentSpec, TensorSpec
from warmshelf.segment import HEADER_BYTES, parse_header
from warmshelf.shard import (
    SLICES_MAX,
    Piece,
    Shard,
    TensorSlice,
    layer_of,
    packed_size_bytes,
    pieces_of,
    runs_of,
    slices_of,
)
from warmshelf.transfer import allocate_content, read_range, read_tensors
from warmshelf.v1 import transfer_pb2


class ShardImage:
    """A rank's slices inside a whole segment. Nothing is copied but what ``tensor`` must pack."""

    def __init__(self, image: SegmentImage, pieces: Iterable[Piece]) -> None:
        self.view = image.view
        self._image = image
        self._pieces = {piece.spec.name: piece for piece in pieces}

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Each slice as a tensor; one that is not dense begins at its first element."""
        return MappingProxyType({name: _spec(piece, piece.first_bytes) for name, piece in self._pieces.items()})

    @cached_property
    def strides(self) -> Mapping[str, tuple[int, ...]]:
        """Those of the slices that are not dense, in elements."""
        return MappingProxyType({name: piece.strides for name, piece in self._pieces.items() if not piece.is_dense})

    @property
    def files(self) -> Mapping[str, bytes]:
        """The source's small files."""
        return self._image.files

    def tensor(self, name: str) -> memoryview:
        """Return the bytes of a slice, row-major and dense; a copy if they do not lie so."""
        piece = self._pieces[name]
        if piece.is_dense:
            return self.view[piece.first_bytes : piece.first_bytes + piece.size_bytes]
        runs = (self.view[start:stop] for start, stop in runs_of(piece, 0, piece.size_bytes))
        return memoryview(bytearray().join(runs))


def shard_image(image: SegmentImage, shard: Shard) -> ShardImage:
    """Return a rank's slices of a segment; InvalidRequest if they cannot be cut."""
    tensors = image.layout.tensors
    try:
        return ShardImage(image, pieces_of(tensors, slices_of(tensors, shard)))
    except InvalidRequest:
        del image  # or whoever keeps the error would keep the mapping
        raise


class PackedImage:
    """A rank's slices that were streamed: dense, one after another, in memory of their own."""

    def __init__(self, view: memoryview, pieces: Sequence[Piece], files: Mapping[str, bytes]) -> None:
        self.view = view
        self.specs = MappingProxyType({piece.spec.name: _spec(piece, piece.packed_bytes) for piece in pieces})
        self.strides: Mapping[str, tuple[int, ...]] = MappingProxyType({})
        self.files = files

    def tensor(self, name: str) -> memoryview:
        """Return the bytes of a slice, not copied."""
        spec = self.specs[name]
        return self.view[spec.offset_bytes : spec.end_bytes]


class ShardStream:
    """Streams a rank's slices. ``arrive`` yields each when it is there; ``image`` has all of them then.

    The slices are decided before any tensor moves.
    """

    def __init__(
        self,
        connection: Connection,
        request: transfer_pb2.ReadSegmentRequest,
        segment: SegmentSpec,
        shard: Shard,
        deadline: Deadline,
    ) -> None:
        head = _read_head(connection, request, segment, deadline)
        self._connection, self._deadline = connection, deadline
        self._request = transfer_pb2.ReadTensorsRequest(
            lease_id=request.lease_id, session_id=request.session_id, fallback_reason=request.fallback_reason
        )
        tensors = head.layout.tensors
        self._slices = sorted(slices_of(tensors, shard), key=lambda one: layer_of(tensors[one.tensor_index]))
        self._pieces = pieces_of(tensors, self._slices)
        self._view = memoryview(mmap.mmap(-1, max(packed_size_bytes(self._pieces), 1)))
        self.image = PackedImage(self._view, self._pieces, head.files)

    def arrive(self) -> Iterator[TensorSpec]:
        """Yield each slice once its bytes are there and checked, layer by layer."""
        for first in range(0, len(self._slices), SLICES_MAX):
            yield from self._read(self._pieces[first : first + SLICES_MAX], self._slices[first : first + SLICES_MAX])

    def _read(self, pieces: Sequence[Piece], slices: Sequence[TensorSlice]) -> Iterator[TensorSpec]:
        base, end = pieces[0].packed_bytes, pieces[-1].packed_bytes + pieces[-1].size_bytes
        del self._request.slices[:]
        self._request.slices.extend(transfer_pb2.TensorSlice(**one._asdict()) for one in slices)
        told = 0
        for done in read_tensors(self._connection, self._request, self._view[base:end], self._deadline):
            while told < len(pieces) and pieces[told].packed_bytes + pieces[told].size_bytes <= base + done:
                yield self.image.specs[pieces[told].spec.name]
                told += 1
        for piece in pieces[told:]:  # those without elements at the end of an empty read
            yield self.image.specs[piece.spec.name]


def _read_head(
    connection: Connection, request: transfer_pb2.ReadSegmentRequest, segment: SegmentSpec, deadline: Deadline
) -> SegmentImage:
    """Return a segment of which only header, layout and manifest are there; the rest is never touched."""
    buffer = allocate_content(segment)
    view = memoryview(buffer)
    read_range(connection, request, view[:HEADER_BYTES], 0, deadline)
    header = parse_header(view[:HEADER_BYTES], segment.content_size_bytes)
    for section in (header.layout, header.manifest):
        read_range(connection, request, view[section.offset : section.end], section.offset, deadline)
    return SegmentImage(buffer, segment.content_size_bytes)


def _spec(piece: Piece, offset_bytes: int) -> TensorSpec:
    return TensorSpec(piece.spec.name, piece.spec.dtype, piece.shape, offset_bytes, piece.size_bytes)
