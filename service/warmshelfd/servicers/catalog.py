"""CatalogService: decode, call the shelf, encode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from warmshelf._fleet import alias_to_proto
from warmshelf._wire import artifact_to_proto, progress_to_proto, spec_from_proto
from warmshelf.errors import InvalidRequest, WarmshelfError
from warmshelf.types import Artifact
from warmshelf.v1 import artifact_pb2, catalog_pb2, catalog_pb2_grpc
from warmshelfd.leasing import Leasing
from warmshelfd.observing import Observing, Seen
from warmshelfd.records import judged
from warmshelfd.registering import RegisterOptions
from warmshelfd.servicers.paging import PAGE_BYTES_MAX, from_token, page_size, to_token
from warmshelfd.shelf import Shelf

REGISTER_COUNT_MAX = 1000
"""Most registrations of one request: with long names they are well below one message."""

MESSAGE_COUNT_MAX, DETAIL_COUNT_MAX = 512, 256
"""Characters of a failure among many, and of each of its details: the answer is one message too."""


class CatalogServicer(catalog_pb2_grpc.CatalogServiceServicer):
    """Says which artifacts the daemon knows, and changes that."""

    def __init__(self, shelf: Shelf, leasing: Leasing, observing: Observing) -> None:
        self._shelf = shelf
        self._leasing = leasing
        self._observing = observing

    async def RegisterArtifact(  # noqa: N802 - the proto names it
        self, request: catalog_pb2.RegisterArtifactRequest, _context: Any
    ) -> catalog_pb2.RegisterArtifactResponse:
        """Make an artifact known."""
        artifact = await self._register(request)
        return catalog_pb2.RegisterArtifactResponse(artifact=artifact_to_proto(judged(artifact)))

    async def RegisterArtifacts(  # noqa: N802
        self, request: catalog_pb2.RegisterArtifactsRequest, _context: Any
    ) -> catalog_pb2.RegisterArtifactsResponse:
        """Make many artifacts known, all at once: so the registry writes them together."""
        count = len(request.requests)
        if count > REGISTER_COUNT_MAX:
            raise InvalidRequest(
                f"{count} artifacts are to be registered, at most {REGISTER_COUNT_MAX} may be at once",
                request_count=count,
            )
        results = await asyncio.gather(*map(self._register_result, request.requests))
        return catalog_pb2.RegisterArtifactsResponse(results=results)

    async def _register_result(self, request: catalog_pb2.RegisterArtifactRequest) -> catalog_pb2.RegisterResult:
        result = catalog_pb2.RegisterResult(artifact_id=request.artifact_id)
        try:
            await self._register(request)
        except WarmshelfError as error:
            details = {key: str(value)[:DETAIL_COUNT_MAX] for key, value in error.details.items()}
            message = error.message[:MESSAGE_COUNT_MAX]
            result.failure.CopyFrom(artifact_pb2.Failure(reason=error.reason, message=message, details=details))
        return result

    async def _register(self, request: catalog_pb2.RegisterArtifactRequest) -> Artifact:
        options = RegisterOptions(
            replace=request.replace,
            defer_inspection=request.defer_inspection,
            keep_resident=request.keep_resident,
            follow=request.follow,
        )
        return await self._shelf.register(request.artifact_id, spec_from_proto(request.spec), options)

    async def GetArtifact(  # noqa: N802
        self, request: catalog_pb2.GetArtifactRequest, _context: Any
    ) -> catalog_pb2.GetArtifactResponse:
        """Return one artifact."""
        artifact = judged(self._shelf.get(request.artifact_id))
        return catalog_pb2.GetArtifactResponse(artifact=artifact_to_proto(artifact))

    async def ListArtifacts(  # noqa: N802
        self, request: catalog_pb2.ListArtifactsRequest, _context: Any
    ) -> catalog_pb2.ListArtifactsResponse:
        """List artifacts by ID, in pages."""
        full = _is_full(request.view)
        after = from_token(request.page_token)
        artifacts, next_after = self._shelf.page(after, page_size(request.page_size), request.base_artifact_id)
        response = catalog_pb2.ListArtifactsResponse()
        size_bytes = 0
        for artifact in artifacts:
            message = artifact_to_proto(artifact, full=full)
            size_bytes += message.ByteSize()
            if response.artifacts and size_bytes > PAGE_BYTES_MAX:  # the page ends early
                next_after = response.artifacts[-1].artifact_id
                break
            response.artifacts.append(message)
        response.next_page_token = to_token(next_after)
        return response

    async def LoadArtifact(  # noqa: N802
        self, request: catalog_pb2.LoadArtifactRequest, context: Any
    ) -> AsyncIterator[catalog_pb2.LoadArtifactResponse]:
        """Make an artifact resident and report progress."""
        steps = self._leasing.progress(request.artifact_id, context.time_remaining(), detach=request.detach)
        try:
            async for step in steps:
                yield progress_to_proto(step)
        finally:
            await steps.aclose()

    async def EvictArtifact(  # noqa: N802
        self, request: catalog_pb2.EvictArtifactRequest, _context: Any
    ) -> catalog_pb2.EvictArtifactResponse:
        """Give an artifact's memory back."""
        artifact = await self._shelf.evict(request.artifact_id, drain=request.drain)
        return catalog_pb2.EvictArtifactResponse(artifact=artifact_to_proto(artifact))

    async def RemoveArtifact(  # noqa: N802
        self, request: catalog_pb2.RemoveArtifactRequest, _context: Any
    ) -> catalog_pb2.RemoveArtifactResponse:
        """Forget an artifact."""
        await self._shelf.remove(request.artifact_id)
        return catalog_pb2.RemoveArtifactResponse()

    async def VerifyArtifact(  # noqa: N802
        self, request: catalog_pb2.VerifyArtifactRequest, _context: Any
    ) -> catalog_pb2.VerifyArtifactResponse:
        """Check every resident byte of an artifact."""
        checked = await self._observing.verify(request.artifact_id)
        return catalog_pb2.VerifyArtifactResponse(checked_bytes=checked)

    async def WatchArtifacts(  # noqa: N802
        self, request: catalog_pb2.WatchArtifactsRequest, _context: Any
    ) -> AsyncIterator[catalog_pb2.WatchArtifactsResponse]:
        """Stream changes."""
        if request.after_sequence < 0:
            raise InvalidRequest("after_sequence must not be negative", field="after_sequence")
        watch = self._observing.watch(request.after_sequence)
        try:
            async for seen in watch:
                yield _seen_to_proto(seen)
        finally:
            await watch.aclose()


def _seen_to_proto(seen: Seen) -> catalog_pb2.WatchArtifactsResponse:
    message = catalog_pb2.WatchArtifactsResponse(sequence=seen.sequence)
    if seen.artifact is not None:
        message.changed.CopyFrom(artifact_to_proto(seen.artifact))
    elif seen.alias is not None:
        message.alias.CopyFrom(alias_to_proto(seen.alias))
    elif seen.removed_alias:
        message.removed_alias = seen.removed_alias
    elif seen.removed_id:
        message.removed_artifact_id = seen.removed_id
    else:
        message.snapshot_complete.SetInParent()
    return message


def _is_full(view: int) -> bool:
    if view not in catalog_pb2.ArtifactView.values():
        raise InvalidRequest(f"view {view} is not known", field="view")
    return view == catalog_pb2.ARTIFACT_VIEW_FULL
