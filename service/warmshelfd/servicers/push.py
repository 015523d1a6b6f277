"""PushService: decode, call the use case, encode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from warmshelf._wire import artifact_to_proto
from warmshelf.errors import InvalidRequest, StreamStalled
from warmshelf.v1 import push_pb2, push_pb2_grpc
from warmshelfd.pushes import Chunk
from warmshelfd.pushing import Pushing
from warmshelfd.running import wait_at_most
from warmshelfd.spool.base import Announcement, PushedFile


class PushServicer(push_pb2_grpc.PushServiceServicer):
    """Takes files."""

    def __init__(self, pushing: Pushing, stall_seconds: float) -> None:
        self._pushing = pushing
        self._stall_seconds = stall_seconds

    async def BeginPush(  # noqa: N802 - the proto names it
        self, request: push_pb2.BeginPushRequest, _context: Any
    ) -> push_pb2.BeginPushResponse:
        """Begin a push, or say how far it is."""
        announcement = Announcement(
            artifact_id=request.artifact_id,
            base_id=request.base_artifact_id,
            files=tuple(PushedFile(file.name, file.size_bytes) for file in request.files),
            replace=request.replace,
            keep_resident=request.keep_resident,
        )
        received = await self._pushing.begin(request.push_id, announcement)
        return push_pb2.BeginPushResponse(
            received_bytes=received, chunk_size_bytes_max=self._pushing.limits.push_chunk_bytes
        )

    async def WritePush(  # noqa: N802
        self, requests: AsyncIterator[push_pb2.WritePushRequest], _context: Any
    ) -> push_pb2.WritePushResponse:
        """Take chunks."""
        first = await self._next(requests)
        if first is None:
            raise InvalidRequest("the stream names no push", field="push_id")
        received = await self._pushing.write(first.push_id, self._chunks(first, requests))
        return push_pb2.WritePushResponse(received_bytes=received)

    async def FinishPush(  # noqa: N802
        self, request: push_pb2.FinishPushRequest, _context: Any
    ) -> push_pb2.FinishPushResponse:
        """Prove, keep and register."""
        artifact = await self._pushing.finish(request.push_id, list(request.file_sha256))
        return push_pb2.FinishPushResponse(artifact=artifact_to_proto(artifact))

    async def AbandonPush(  # noqa: N802
        self, request: push_pb2.AbandonPushRequest, _context: Any
    ) -> push_pb2.AbandonPushResponse:
        """Drop an unfinished push."""
        await self._pushing.abandon(request.push_id)
        return push_pb2.AbandonPushResponse()

    async def _chunks(
        self, first: push_pb2.WritePushRequest, requests: AsyncIterator[push_pb2.WritePushRequest]
    ) -> AsyncIterator[Chunk]:
        request: push_pb2.WritePushRequest | None = first
        while request is not None:
            yield Chunk(request.file_index, request.offset_bytes, request.crc32c, request.data)
            request = await self._next(requests)

    async def _next(self, requests: AsyncIterator[push_pb2.WritePushRequest]) -> push_pb2.WritePushRequest | None:
        """Return the next message, or None at the stream's end."""
        try:
            return await wait_at_most(_one(requests), self._stall_seconds)
        except asyncio.TimeoutError:
            raise StreamStalled(f"nothing was sent for {self._stall_seconds:g} s; ask how far the push is") from None


async def _one(requests: AsyncIterator[push_pb2.WritePushRequest]) -> push_pb2.WritePushRequest | None:
    async for request in requests:
        return request
    return None
