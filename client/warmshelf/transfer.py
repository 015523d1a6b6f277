"""Streams a leased segment, or slices of its tensors, into private memory, checks every chunk, and resumes.

Bytes count only once their CRC has been checked and their place is the next one
expected; whatever breaks, reading goes on from there. Knows no session: when the
lease is lost, so is the read, and parts of two reads are never put together.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import crc32c
import grpc

from warmshelf._channel import PAUSE_SECONDS, Connection, Deadline
from warmshelf._frame import parse_frame
from warmshelf.errors import (
    ChunkCorrupt,
    DaemonUnreachable,
    Internal,
    OutOfMemory,
    StreamStalled,
    TooManyStreams,
    WarmshelfError,
)
from warmshelf.layout import SegmentSpec
from warmshelf.segment import HEADER_BYTES
from warmshelf.v1 import transfer_pb2

FRUITLESS_COUNT_MAX = 5
"""Reads in a row that bring no new byte before the error is the caller's to see."""

Seen = dict[tuple[int, int], int]
"""The CRC of each chunk that came unharmed, by the half-open range that it is."""

_RESUMABLE = (ChunkCorrupt, DaemonUnreachable, StreamStalled, TooManyStreams)


def read_segment(
    connection: Connection,
    request: transfer_pb2.ReadSegmentRequest,
    segment: SegmentSpec,
    deadline: Deadline,
    seen: Seen | None = None,
) -> mmap.mmap:
    """Return the content of a leased segment in memory of its own.

    Args:
        connection: to the daemon that granted the lease.
        request: lease, session, segment and fallback reason.
        segment: what the lease's layout says of it.
        deadline: for all of it.
        seen: takes the CRCs of what came.

    Raises:
        WarmshelfError: the lease is lost, time is up, or no byte came in several reads.
    """
    buffer = allocate_content(segment)
    with memoryview(buffer) as view:
        read_range(connection, request, view, 0, deadline, seen)
    return buffer


def read_range(
    connection: Connection,
    request: transfer_pb2.ReadSegmentRequest,
    view: memoryview,
    first_byte: int,
    deadline: Deadline,
    seen: Seen | None = None,
) -> None:
    """Fill the view with a leased segment's bytes from ``first_byte`` on; as ``read_segment``."""

    def start(offset_bytes: int, limit_bytes: int) -> Any:
        part = transfer_pb2.ReadSegmentRequest()
        part.CopyFrom(request)
        part.offset_bytes, part.limit_bytes = offset_bytes, limit_bytes
        return connection.read_segment(part, timeout=deadline.left())

    for _ in arrivals(connection, start, view, first_byte, deadline, seen):
        pass


def read_tensors(
    connection: Connection, request: transfer_pb2.ReadTensorsRequest, view: memoryview, deadline: Deadline
) -> Iterator[int]:
    """Fill the view with the packed slices of a request; yield how many bytes are there, as they come."""

    def start(offset_bytes: int, _: int) -> Any:
        part = transfer_pb2.ReadTensorsRequest()
        part.CopyFrom(request)
        part.offset_bytes = offset_bytes
        return connection.read_tensors(part, timeout=deadline.left())

    return arrivals(connection, start, view, 0, deadline)


def arrivals(
    connection: Connection,
    start: Callable[[int, int], Any],
    view: memoryview,
    first_byte: int,
    deadline: Deadline,
    seen: Seen | None = None,
) -> Iterator[int]:
    """Fill the view from streams of chunks, going on where one broke; yield the bytes that are there and checked.

    ``start`` opens a stream from an offset, of so many bytes; the view's first byte is at ``first_byte``.
    """
    fruitless_count = done_bytes = 0
    while done_bytes < len(view):
        offset, before = first_byte + done_bytes, done_bytes
        call = connection.once(lambda: start(offset, first_byte + len(view) - offset))  # noqa: B023 - called at once
        error: WarmshelfError | None = None
        try:
            for data in chunks(call, offset, first_byte + len(view), seen):
                view[done_bytes : done_bytes + len(data)] = data
                done_bytes += len(data)
                yield done_bytes
        except grpc.RpcError as failure:
            error = connection.typed_error(failure)
        except ChunkCorrupt as failure:
            error = failure
        finally:
            call.cancel()
        if done_bytes > before:
            fruitless_count = 0
        elif not isinstance(error, TooManyStreams):  # that one is waited out, however long the deadline
            fruitless_count += 1
        if done_bytes == len(view):
            _check_end(error)
            return
        error = error or _short(first_byte + done_bytes, first_byte + len(view))
        if not _may_resume(error, fruitless_count, deadline):
            raise error


def allocate_content(segment: SegmentSpec) -> mmap.mmap:
    """Return zeroed memory for a segment's content; pages that nobody writes to cost nothing."""
    size = segment.content_size_bytes
    if not HEADER_BYTES <= size <= segment.size_bytes:
        raise Internal(f"the daemon names a segment of {segment.size_bytes} bytes with {size} of content")
    try:
        buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise OutOfMemory(f"this process cannot have {size} bytes of memory: {error}", size_bytes=size) from error
    with contextlib.suppress(OSError):  # fewer page faults, which cost more than the copy; a kernel may lack them
        buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


def _check_end(error: WarmshelfError | None) -> None:
    """Let a stream pass that broke after its last byte, but not one that went on."""
    if isinstance(error, ChunkCorrupt):
        raise error


def _may_resume(error: WarmshelfError, fruitless_count: int, deadline: Deadline) -> bool:
    if not isinstance(error, _RESUMABLE) or fruitless_count >= FRUITLESS_COUNT_MAX:
        return False
    first, longest = PAUSE_SECONDS
    return deadline.pause(min(first * 2**fruitless_count, longest))


def _short(done_bytes: int, total_bytes: int) -> ChunkCorrupt:
    return ChunkCorrupt(
        f"the stream ended at byte {done_bytes} of {total_bytes}", done_bytes=done_bytes, total_bytes=total_bytes
    )


def chunks(
    messages: Iterator[bytes], offset_bytes: int, end_bytes: int, seen: Seen | None = None
) -> Iterator[memoryview]:
    """Yield the data of each message once it is proven to be the next and unharmed; ``seen`` takes its CRC."""
    for message in messages:
        offset, crc, data = parse_frame(message)
        if offset != offset_bytes or not 0 < len(data) <= end_bytes - offset_bytes:
            raise ChunkCorrupt(
                f"a chunk of {len(data)} bytes at {offset}, expected at {offset_bytes} of {end_bytes}",
                offset_bytes=offset,
                expected_bytes=offset_bytes,
            )
        if crc32c.crc32c(data) != crc:
            raise ChunkCorrupt(f"the chunk at byte {offset} has another CRC than sent", offset_bytes=offset)
        offset_bytes += len(data)
        if seen is not None:
            seen[offset, offset_bytes] = crc
        yield data
