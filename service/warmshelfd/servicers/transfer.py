"""TransferService: bytes of leased segments, hand-framed so that each is copied once.

The CRC of a chunk that is exactly a block of the segment was computed when the
segment was loaded, and is sent as stored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import crc32c
import grpc

from warmshelf._frame import frame_head
from warmshelf.errors import InvalidRequest, OffsetOutOfRange, SegmentCorrupt, SegmentNotFound, StreamStalled
from warmshelf.segment import BLOCK_BYTES, Section, block_count, block_range
from warmshelf.shard import SLICES_MAX
from warmshelf.v1 import artifact_pb2, transfer_pb2
from warmshelfd import failpoints
from warmshelfd.domain.leases import LeaseRecord
from warmshelfd.memory.segment import Segment
from warmshelfd.metrics import Metrics
from warmshelfd.servicers.flight import FlightBudget, next_end
from warmshelfd.servicers.layout_parts import layout_parts
from warmshelfd.servicers.packing import packed_slices
from warmshelfd.servicers.uploads import Uploads
from warmshelfd.shelf import Shelf
from warmshelfd.sources.neighbour import UPLOAD_REASON

SERVICE_NAME = "warmshelf.v1.TransferService"

_REASON_BYTES_MAX = 64


class TransferServicer:
    """Moves bytes under a lease."""

    def __init__(
        self, shelf: Shelf, uploads: Uploads, flight: FlightBudget, stall_seconds: float, metrics: Metrics
    ) -> None:
        self._shelf = shelf
        self._metrics = metrics
        self._uploads = uploads
        self._flight = flight
        self._stall_seconds = stall_seconds
        # Event loop only: since when each stream's chunk under way has been waiting.
        self._sending: dict[asyncio.Task[Any], float] = {}
        self._stalled: set[asyncio.Task[Any]] = set()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service's handlers; what they send is framed already."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "ReadSegment": grpc.unary_stream_rpc_method_handler(
                    self.read_segment, request_deserializer=transfer_pb2.ReadSegmentRequest.FromString
                ),
                "ReadTensors": grpc.unary_stream_rpc_method_handler(
                    self.read_tensors, request_deserializer=transfer_pb2.ReadTensorsRequest.FromString
                ),
                "ReadLayout": grpc.unary_stream_rpc_method_handler(
                    self.read_layout, request_deserializer=transfer_pb2.ReadLayoutRequest.FromString
                ),
            },
        )

    async def read_segment(self, request: transfer_pb2.ReadSegmentRequest, context: Any) -> None:
        """Stream bytes of a leased segment."""
        record = self._uploads.leased(request.session_id, request.lease_id, request.fallback_reason)
        if request.segment_index != 0:
            raise SegmentNotFound(f"there is no segment {request.segment_index}", segment_index=request.segment_index)
        check_reason(request.fallback_reason)
        with self._stream(record) as segment:
            if request.fallback_reason not in ("", UPLOAD_REASON) and request.offset_bytes == 0:
                self._metrics.fell_back(request.fallback_reason)
            offset, end = checked_range(request.offset_bytes, request.limit_bytes, segment.header.size_bytes)
            await self._send(context, offset, end, lambda start, stop: chunk(segment, start, stop))

    async def read_tensors(self, request: transfer_pb2.ReadTensorsRequest, context: Any) -> None:
        """Stream slices of a leased segment's tensors, packed."""
        record = self._uploads.leased(request.session_id, request.lease_id)
        check_reason(request.fallback_reason)
        if len(request.slices) > SLICES_MAX:
            raise InvalidRequest(f"{len(request.slices)} slices, at most {SLICES_MAX} in a read", field="slices")
        with self._stream(record) as segment:
            packed = await self._shelf.residency.in_thread(packed_slices, segment, request.slices)
            offset, end = checked_range(request.offset_bytes, 0, packed.size_bytes)
            await self._send(context, offset, end, packed.chunk)

    async def _send(self, context: Any, offset: int, end: int, make: Callable[[int, int], bytes]) -> None:
        """Send a range in chunks, each as large as may be under way now."""
        while offset < end:
            failpoints.hit("stream.chunk")
            size = self._flight.take()
            try:
                stop = next_end(offset, end, size)
                await self._write(context, make(offset, stop), offset)
            finally:
                self._flight.give(size)
            self._metrics.sent(stop - offset)
            offset = stop
        failpoints.hit("stream.sent")

    async def read_layout(self, request: transfer_pb2.ReadLayoutRequest, context: Any) -> None:
        """Stream the layout of a lease in parts, none larger than the chunk that each stream may always send."""
        record = self._uploads.leased(request.session_id, request.lease_id)
        with self._stream(record) as segment:
            header = segment.header
            outline = artifact_pb2.Segment(
                segment_id=header.segment_id, size_bytes=header.size_bytes, content_size_bytes=header.content_size_bytes
            )
            place, part_bytes_max = header.layout, self._flight.small_chunk_bytes
            read = partial(_read_section, segment, place)
            for part in layout_parts(read, place.size, outline, record.generation, part_bytes_max):
                await self._write(context, part, 0)

    @contextmanager
    def _stream(self, record: LeaseRecord) -> Iterator[Segment]:
        """Count a stream in; its segment's bytes stay until it has ended."""
        segment_id = record.segment_id
        self._flight.open_stream(record.session_id)
        self._metrics.stream_opened()
        try:
            segment = self._shelf.residency.begin_stream(segment_id)
            try:
                yield segment
            except SegmentCorrupt as error:
                self._shelf.withdraw_bytes(segment_id, error)
                raise
            finally:
                self._shelf.residency.end_stream(segment_id)
        finally:
            self._flight.close_stream(record.session_id)
            self._metrics.stream_closed()

    async def _write(self, context: Any, message: bytes, offset: int) -> None:
        """Send a message; a reader that takes nothing is told where to go on."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._sending[task] = time.monotonic()
        try:
            await context.write(message)
        except grpc.aio.InternalError:  # what gRPC raises where the reader has gone
            raise asyncio.CancelledError from None
        except asyncio.CancelledError:
            if task not in self._stalled:
                raise
            raise StreamStalled(
                f"the reader took nothing for {self._stall_seconds:g} s; resume at {offset}", offset_bytes=offset
            ) from None
        finally:
            self._sending.pop(task, None)
            self._stalled.discard(task)

    async def watch_stalls(self) -> None:
        """End streams whose reader takes nothing, for as long as the daemon runs."""
        while True:
            await asyncio.sleep(min(self._stall_seconds / 4, 5))
            limit = time.monotonic() - self._stall_seconds
            for task, since in list(self._sending.items()):
                if since < limit:
                    self._stalled.add(task)
                    task.cancel()


# --- pure parts -------------------------------------------------------------


def check_reason(reason: str) -> None:
    """Raise InvalidRequest if a reason for streaming is longer than any that there is."""
    if len(reason.encode()) > _REASON_BYTES_MAX:
        raise InvalidRequest(f"fallback_reason is longer than {_REASON_BYTES_MAX} bytes", field="fallback_reason")


def checked_range(offset: int, limit: int, size: int) -> tuple[int, int]:
    """Return the half-open range asked for.

    Raises:
        OffsetOutOfRange: part of it lies outside the segment.
    """
    end = offset + limit if limit else size
    if offset < 0 or limit < 0 or not offset <= end <= size:
        raise OffsetOutOfRange(
            f"{limit} bytes from {offset} are not within a segment of {size} bytes",
            offset_bytes=offset,
            limit_bytes=limit,
            size_bytes=size,
        )
    return offset, end


def chunk(segment: Segment, start: int, stop: int) -> bytes:
    """Return one framed chunk of a segment.

    Raises:
        SegmentCorrupt: somebody has cut the segment's file.
    """
    data = segment.read(start, stop)
    return b"".join((frame_head(start, _crc(segment, start, stop, data), stop - start), data))


def _read_section(segment: Segment, section: Section, start: int, end: int) -> bytes:
    return segment.read(section.offset + start, section.offset + end)


def _crc(segment: Segment, start: int, stop: int, chunk_bytes: bytes) -> int:
    data = segment.header.data
    index = start // BLOCK_BYTES - data.offset // BLOCK_BYTES
    if 0 <= index < block_count(data) and block_range(data, index) == (start, stop):
        return segment.block_crc(index)
    return int(crc32c.crc32c(chunk_bytes))
