"""LeaseService: sessions, acquire, release, and the operators' listing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from warmshelf._wire import artifact_to_proto, layout_to_proto, lease_to_proto
from warmshelf.errors import InvalidPageToken, InvalidRequest
from warmshelf.layout import Layout, SegmentSpec
from warmshelf.v1 import lease_pb2, lease_pb2_grpc
from warmshelfd.leasing import AcquireOptions, Granted, Leasing, Notice, Superseded, is_lease_id
from warmshelfd.records import to_lease
from warmshelfd.servicers.paging import from_token, page_size, to_token
from warmshelfd.shelf import Shelf
from warmshelfd.tracing import NO_TRACING, Tracing

_HOLDER_BYTES_MAX = 256
"""A holder's name is for people: a pod, a process."""


class LeaseServicer(lease_pb2_grpc.LeaseServiceServicer):
    """Hands out leases."""

    def __init__(self, shelf: Shelf, leasing: Leasing, arena_directory: str, tracing: Tracing = NO_TRACING) -> None:
        self._shelf = shelf
        self._leasing = leasing
        self._tracing = tracing
        self._locations = [
            lease_pb2.Location(arena_directory=arena_directory),
            lease_pb2.Location(transfer_address=""),
        ]

    async def OpenSession(  # noqa: N802 - the proto names it
        self, request: lease_pb2.OpenSessionRequest, _context: Any
    ) -> AsyncIterator[lease_pb2.OpenSessionResponse]:
        """Open a session; when the stream ends, so do its leases."""
        if len(request.holder.encode()) > _HOLDER_BYTES_MAX:
            raise InvalidRequest(f"holder is longer than {_HOLDER_BYTES_MAX} bytes", field="holder")
        session_id, notices = self._leasing.open_session(request.holder)
        try:
            yield lease_pb2.OpenSessionResponse(session_id=session_id)
            while True:
                yield _notice_to_proto(await notices.get())
        finally:
            self._leasing.close_session(session_id)

    async def AcquireLease(  # noqa: N802
        self, request: lease_pb2.AcquireLeaseRequest, context: Any
    ) -> lease_pb2.AcquireLeaseResponse:
        """Wait until the artifact is READY, and lease it."""
        if request.rank_max < 0:
            raise InvalidRequest(f"rank_max is {request.rank_max}, it must not be negative", field="rank_max")
        options = AcquireOptions(
            resident_only=request.resident_only,
            expected_digest=request.expected_digest,
            rank_max=request.rank_max,
            features=tuple(request.features),
        )
        if request.lease_id and not is_lease_id(request.lease_id):
            raise InvalidRequest("lease_id is not 32 lower-case hexadecimal digits", field="lease_id")
        with self._tracing.acquire(request.artifact_id, context.invocation_metadata() or ()):
            granted = await self._leasing.acquire(
                request.session_id, request.artifact_id, options, context.time_remaining(), request.lease_id
            )
        return lease_pb2.AcquireLeaseResponse(
            lease=lease_to_proto(granted.lease),
            artifact=artifact_to_proto(granted.artifact),
            layout=layout_to_proto(_outline(granted)),
            locations=self._locations,
        )

    async def ReleaseLease(  # noqa: N802
        self, request: lease_pb2.ReleaseLeaseRequest, _context: Any
    ) -> lease_pb2.ReleaseLeaseResponse:
        """End a lease."""
        self._leasing.release(request.session_id, request.lease_id)
        return lease_pb2.ReleaseLeaseResponse()

    async def ListLeases(  # noqa: N802
        self, request: lease_pb2.ListLeasesRequest, _context: Any
    ) -> lease_pb2.ListLeasesResponse:
        """List live leases, oldest first."""
        after = from_token(request.page_token) or "0"
        if not after.isdecimal():
            raise InvalidPageToken("not a page token of this listing")
        page = self._shelf.leases.page(int(after), page_size(request.page_size), request.artifact_id)
        return lease_pb2.ListLeasesResponse(
            leases=[lease_to_proto(to_lease(record)) for record in page.leases],
            next_page_token=to_token(str(page.next_after_number) if page.next_after_number else ""),
        )


def _outline(granted: Granted) -> Layout:
    """Return the layout without its tensors, which stand in the segment."""
    header = granted.segment.header
    segment = SegmentSpec(0, header.segment_id, header.size_bytes, header.content_size_bytes)
    return Layout(granted.lease.generation, (segment,), ())


def _notice_to_proto(notice: Notice) -> lease_pb2.OpenSessionResponse:
    if isinstance(notice, Superseded):
        return lease_pb2.OpenSessionResponse(superseded=lease_to_proto(notice.lease))
    return lease_pb2.OpenSessionResponse(draining=lease_pb2.Draining())
