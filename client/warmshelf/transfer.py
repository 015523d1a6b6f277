"""Streams a leased segment into private memory, checks every chunk, and resumes.

Bytes count only once their CRC has been checked and their place is the next one
expected; whatever breaks, reading goes on from there. Knows no session: when the
lease is lost, so is the read, and parts of two reads are never put together.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator

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

_RESUMABLE = (ChunkCorrupt, DaemonUnreachable, StreamStalled, TooManyStreams)


def read_segment(
    connection: Connection, request: transfer_pb2.ReadSegmentRequest, segment: SegmentSpec, deadline: Deadline
) -> mmap.mmap:
    """Return the content of a leased segment in memory of its own.

    Args:
        connection: to the daemon that granted the lease.
        request: lease, session, segment and fallback reason; its offset is set here.
        segment: what the lease's layout says of it.
        deadline: for all of it.

    Raises:
        WarmshelfError: the lease is lost, time is up, or no byte came in several reads.
    """
    buffer = _allocate(segment)
    view = memoryview(buffer)
    fruitless_count = 0
    done_bytes = 0
    while done_bytes < len(view):
        request.offset_bytes = done_bytes
        request.limit_bytes = len(view) - done_bytes
        new_bytes, error = _read_once(connection, request, view, deadline)
        done_bytes += new_bytes
        if new_bytes:
            fruitless_count = 0
        elif not isinstance(error, TooManyStreams):  # that one is waited out, however long the deadline
            fruitless_count += 1
        if done_bytes == len(view):
            _check_end(error)
        elif error and not _may_resume(error, fruitless_count, deadline):
            raise error
    return buffer


def _allocate(segment: SegmentSpec) -> mmap.mmap:
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


def _read_once(
    connection: Connection, request: transfer_pb2.ReadSegmentRequest, view: memoryview, deadline: Deadline
) -> tuple[int, WarmshelfError | None]:
    """Return how many new bytes came, all checked, and why there are no more."""
    done_bytes = request.offset_bytes
    call = connection.once(lambda: connection.read_segment(request, timeout=deadline.left()))
    try:
        for data in _chunks(call, done_bytes, len(view)):
            view[done_bytes : done_bytes + len(data)] = data
            done_bytes += len(data)
    except grpc.RpcError as error:
        return done_bytes - request.offset_bytes, connection.typed_error(error)
    except ChunkCorrupt as error:
        return done_bytes - request.offset_bytes, error
    finally:
        call.cancel()
    if done_bytes == len(view):
        return done_bytes - request.offset_bytes, None
    short = ChunkCorrupt(
        f"the stream ended at byte {done_bytes} of {len(view)}", done_bytes=done_bytes, total_bytes=len(view)
    )
    return done_bytes - request.offset_bytes, short


def _chunks(messages: Iterator[bytes], offset_bytes: int, end_bytes: int) -> Iterator[memoryview]:
    """Yield the data of each message once it is proven to be the next and unharmed."""
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
        yield data
