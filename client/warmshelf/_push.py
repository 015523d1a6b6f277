"""Sends files to the daemon, and goes on where it has got to, whatever breaks.

Each file's SHA-256 is computed once over the bytes as they are sent, in order; the
daemon says yes when its disk has the same. Knows no tensor and no directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import crc32c
import grpc

from warmshelf import _wire
from warmshelf._channel import PAUSE_SECONDS, Connection, Deadline
from warmshelf._push_files import PushFile
from warmshelf.errors import (
    ChunkCorrupt,
    DaemonUnreachable,
    Draining,
    Internal,
    PushNotFound,
    SpoolUnavailable,
    StreamStalled,
    WarmshelfError,
)
from warmshelf.types import Artifact
from warmshelf.v1 import push_pb2

PROGRESS = Callable[[int, int], object]
"""Told the bytes sent and all there are; by whatever thread sends."""

FRUITLESS_COUNT_MAX = 5
"""Streams in a row that bring the daemon no new byte before the error is the caller's to see."""

BEGIN_COUNT_MAX = 3
"""How often a push begins at its first byte again because the daemon knows nothing of it."""

_ABANDON_SECONDS = 5.0
_RESUMABLE = (ChunkCorrupt, DaemonUnreachable, StreamStalled, Draining, SpoolUnavailable)


def push_files(
    connection: Connection,
    request: push_pb2.BeginPushRequest,
    files: Sequence[PushFile],
    deadline: Deadline,
    progress: PROGRESS | None = None,
) -> Artifact:
    """Push files, and return the artifact that they are.

    Args:
        connection: to the daemon.
        request: ID, base and how; number and files are set here.
        files: what to send.
        deadline: for all of it.
        progress: told how far it is.

    Raises:
        WarmshelfError: it was refused, or there was no progress. Then the daemon keeps nothing of it.
    """
    sender = _Sender(files, progress)
    request.files.extend(push_pb2.PushFile(name=file.name, size_bytes=file.size_bytes) for file in files)
    for count in range(BEGIN_COUNT_MAX):
        request.push_id = secrets.token_hex(16)
        try:
            return _push(connection, request, sender, deadline)
        except PushNotFound:
            if count + 1 == BEGIN_COUNT_MAX:
                raise
        except BaseException:
            _abandon(connection, request.push_id)
            raise
    raise Internal("a push has no end")  # never reached


def _push(connection: Connection, begin: push_pb2.BeginPushRequest, sender: _Sender, deadline: Deadline) -> Artifact:
    fruitless_count, known_bytes = 0, -1
    while True:
        try:
            known = connection.unary(connection.push.BeginPush, begin, deadline)
            has_new = sum(known.received_bytes) > known_bytes
            fruitless_count, known_bytes = 0 if has_new else fruitless_count, sum(known.received_bytes)
            _write_missing(connection, begin.push_id, sender, known, deadline)
            finish = push_pb2.FinishPushRequest(push_id=begin.push_id, file_sha256=sender.hashes())
            return _wire.artifact_from_proto(connection.unary(connection.push.FinishPush, finish, deadline).artifact)
        except _RESUMABLE as error:
            if not isinstance(error, Draining):  # that one is waited out, however long the deadline
                fruitless_count += 1
            first, longest = PAUSE_SECONDS
            pause = min(first * 2**fruitless_count, longest)
            if fruitless_count > FRUITLESS_COUNT_MAX or not deadline.pause(pause):
                raise


def _write_missing(
    connection: Connection, push_id: str, sender: _Sender, known: push_pb2.BeginPushResponse, deadline: Deadline
) -> None:
    """Send what the daemon lacks.

    Raises:
        WarmshelfError: it still lacks something.
    """
    if not sender.is_short(known.received_bytes):
        return
    requests = sender.requests(push_id, known.received_bytes, known.chunk_size_bytes_max)
    try:
        answer = connection.once(lambda: connection.push.WritePush(requests, timeout=deadline.left()))
    finally:
        failure = sender.stop()
        if failure is not None:
            raise failure
    if sender.is_short(answer.received_bytes):
        raise ChunkCorrupt(f"the daemon took {sum(answer.received_bytes)} of {sender.total_bytes} bytes")


def _abandon(connection: Connection, push_id: str) -> None:
    """Let the daemon drop what it has of a push; it does so by itself in the end."""
    with contextlib.suppress(WarmshelfError, grpc.RpcError, ValueError):
        connection.check_daemon()
        connection.push.AbandonPush(push_pb2.AbandonPushRequest(push_id=push_id), timeout=_ABANDON_SECONDS)


class _Sender:
    """Makes chunks of files, and hashes each byte once, in order.

    gRPC takes the chunks in a thread of its own, which may be in the middle of one when its stream has
    ended and the next one begins: ``_lock`` guards hashes and counts, and only the latest stream goes on.
    """

    def __init__(self, files: Sequence[PushFile], progress: PROGRESS | None) -> None:
        self.total_bytes = sum(file.size_bytes for file in files)
        self._files = files
        self._progress = progress
        self._lock = threading.Lock()
        self._hashers = [hashlib.sha256() for _ in files]
        self._hashed = [0 for _ in files]
        self._stream: object = None  # whose chunks count
        self._failure: BaseException | None = None  # why there are no more, if that was our side's fault

    def is_short(self, received: Iterable[int]) -> bool:
        """Say whether the daemon lacks bytes."""
        return sum(received) < self.total_bytes

    def hashes(self) -> list[bytes]:
        """Return the SHA-256 of each file."""
        return [hasher.digest() for hasher in self._hashers]

    def stop(self) -> BaseException | None:
        """Take no more chunks of the stream; return why our side ended it, if it did."""
        with self._lock:
            self._stream, failure, self._failure = None, self._failure, None
            return failure

    def requests(self, push_id: str, received: Sequence[int], chunk_bytes: int) -> Iterator[push_pb2.WritePushRequest]:
        """Return the messages of one stream. What goes wrong here is told by ``stop``: gRPC would log it."""
        stream = object()
        with self._lock:
            self._stream = stream
        return self._requests(stream, push_id, list(received), chunk_bytes)

    def _requests(
        self, stream: object, push_id: str, received: list[int], chunk_bytes: int
    ) -> Iterator[push_pb2.WritePushRequest]:
        done_bytes = sum(received)
        try:
            for index, file in enumerate(self._files):
                offset = received[index]
                for data in chunks(file.pieces(offset), chunk_bytes):
                    if not self._count(stream, index, offset, data):
                        return
                    yield push_pb2.WritePushRequest(
                        push_id=push_id, file_index=index, offset_bytes=offset, crc32c=crc32c.crc32c(data), data=data
                    )
                    offset += len(data)
                    done_bytes += len(data)
                    if self._progress is not None:
                        self._progress(done_bytes, self.total_bytes)
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - raised where the push was called
            with self._lock:
                if self._stream is stream:
                    self._failure = error

    def _count(self, stream: object, index: int, offset: int, data: bytes) -> bool:
        """Hash what was not hashed yet; False: another stream has begun."""
        with self._lock:
            if self._stream is not stream:
                return False
            new = data[max(0, self._hashed[index] - offset) :]
            self._hashers[index].update(new)
            self._hashed[index] += len(new)
            return True


def chunks(pieces: Iterable[memoryview], chunk_bytes: int) -> Iterator[bytes]:
    """Return the same bytes in chunks that are as long as they may be, but for the last."""
    waiting = bytearray()
    for piece in pieces:
        at = 0
        while at < len(piece):
            part: Any = piece[at : at + chunk_bytes - len(waiting)]
            at += len(part)
            if not waiting and len(part) == chunk_bytes:
                yield bytes(part)
                continue
            waiting += part
            if len(waiting) == chunk_bytes:
                yield bytes(waiting)
                waiting.clear()
    if waiting:
        yield bytes(waiting)
