"""A small server that speaks the protocol from memory, so that its end of a call can be made to fail.

Not a daemon: it loads nothing and its artifacts are whatever a test puts there.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import crc32c
import grpc

from kit.segments import SegmentFile
from warmshelf import errors
from warmshelf._status import STATUS_METADATA_KEY, error_to_status
from warmshelf.v1 import (
    artifact_pb2,
    capabilities_pb2,
    capabilities_pb2_grpc,
    catalog_pb2,
    catalog_pb2_grpc,
    lease_pb2,
    lease_pb2_grpc,
    transfer_pb2,
    transfer_pb2_grpc,
)

Chunks = Iterator[transfer_pb2.ReadSegmentResponse]
Fault = Callable[[Chunks], Chunks]


class StandIn:
    """Serves artifacts from memory. ``stop`` forgets sessions and leases, ``start`` begins anew.

    Guarded by ``lock``: sessions, leases and everything that counts.
    """

    def __init__(self, address: str, arena_directory: str = "", chunk_bytes: int = 64 << 10) -> None:
        self.address = address
        self.arena_directory = arena_directory
        self.chunk_bytes = chunk_bytes
        self.lock = threading.Lock()
        self.segments: dict[str, SegmentFile] = {}
        self.artifacts: dict[str, artifact_pb2.Artifact] = {}
        self.sessions: dict[str, str] = {}  # holder by session id
        self.leases: dict[str, tuple[str, str]] = {}  # session id and artifact id by lease id
        self.reads: list[transfer_pb2.ReadSegmentRequest] = []
        self.acquires: list[lease_pb2.AcquireLeaseRequest] = []
        self.peers: set[str] = set()  # of sessions
        self.faults: list[Fault] = []  # one for each coming read
        self.detached: list[bool] = []  # of each load
        self.capacity = capabilities_pb2.GetCapacityResponse()
        self.changes: list[int] = []  # numbers above 1, the one after a snapshot, which is empty
        self.ends_watches = False  # once all changes are told
        self.watch_ended = threading.Event()
        self.session_ended = threading.Condition(self.lock)
        self.stopping = threading.Event()
        self._server: grpc.Server | None = None

    def start(self) -> StandIn:
        server = grpc.server(ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0)])
        servicer = _Servicer(self)
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server(servicer, server)
        lease_pb2_grpc.add_LeaseServiceServicer_to_server(servicer, server)
        transfer_pb2_grpc.add_TransferServiceServicer_to_server(servicer, server)
        capabilities_pb2_grpc.add_CapabilitiesServiceServicer_to_server(servicer, server)
        port = server.add_insecure_port(self.address)
        if not self.address.startswith("unix:"):
            self.address = f"127.0.0.1:{port}"
        self.stopping.clear()
        server.start()
        self._server = server
        return self

    def stop(self) -> None:
        """End as a killed daemon does: every call breaks, every session is forgotten."""
        self.stopping.set()
        if self._server is not None:
            self._server.stop(None).wait(10)
            self._server = None
        with self.lock:
            self.sessions.clear()
            self.leases.clear()

    def add(self, artifact_id: str, segment: SegmentFile, kind: int = artifact_pb2.ARTIFACT_KIND_BASE) -> None:
        self.segments[artifact_id] = segment
        self.artifacts[artifact_id] = artifact_pb2.Artifact(
            artifact_id=artifact_id, state=artifact_pb2.ARTIFACT_STATE_READY, generation=1, kind=kind
        )

    def wait_sessions(self, count: int, seconds: float = 10) -> bool:
        """Wait until that many sessions are open."""
        with self.session_ended:
            return self.session_ended.wait_for(lambda: len(self.sessions) == count, seconds)


def _abort(context: grpc.ServicerContext, error: errors.WarmshelfError) -> Any:
    status = error_to_status(error)
    context.set_trailing_metadata(((STATUS_METADATA_KEY, status.SerializeToString()),))
    context.abort(grpc.StatusCode[error.code.value], status.message)


class _Servicer(
    catalog_pb2_grpc.CatalogServiceServicer,
    lease_pb2_grpc.LeaseServiceServicer,
    transfer_pb2_grpc.TransferServiceServicer,
    capabilities_pb2_grpc.CapabilitiesServiceServicer,
):
    def __init__(self, stand_in: StandIn) -> None:
        self._it = stand_in

    def _artifact(self, artifact_id: str, context: grpc.ServicerContext) -> artifact_pb2.Artifact:
        if artifact_id not in self._it.artifacts:
            _abort(context, errors.ArtifactNotFound(f"no artifact {artifact_id!r}"))
        return self._it.artifacts[artifact_id]

    def RegisterArtifact(self, request: Any, context: Any) -> Any:
        artifact = artifact_pb2.Artifact(
            artifact_id=request.artifact_id,
            spec=request.spec,
            state=artifact_pb2.ARTIFACT_STATE_REGISTERED,
            keep_resident=request.keep_resident,
            follow=request.follow,
        )
        self._it.artifacts[request.artifact_id] = artifact
        return catalog_pb2.RegisterArtifactResponse(artifact=artifact)

    def GetArtifact(self, request: Any, context: Any) -> Any:
        return catalog_pb2.GetArtifactResponse(artifact=self._artifact(request.artifact_id, context))

    def ListArtifacts(self, request: Any, context: Any) -> Any:
        names = sorted(name for name in self._it.artifacts if name > request.page_token)
        page = names[:2]
        return catalog_pb2.ListArtifactsResponse(
            artifacts=[self._it.artifacts[name] for name in page],
            next_page_token=page[-1] if len(names) > len(page) else "",
        )

    def LoadArtifact(self, request: Any, context: Any) -> Any:
        artifact = self._artifact(request.artifact_id, context)
        self._it.detached.append(request.detach)
        for done in (0, 5, 10):
            yield catalog_pb2.LoadArtifactResponse(phase=catalog_pb2.LOAD_PHASE_READ, done_bytes=done, total_bytes=10)
        yield catalog_pb2.LoadArtifactResponse(phase=catalog_pb2.LOAD_PHASE_SEAL, artifact=artifact)

    def EvictArtifact(self, request: Any, context: Any) -> Any:
        artifact = self._artifact(request.artifact_id, context)
        artifact.state = artifact_pb2.ARTIFACT_STATE_REGISTERED
        return catalog_pb2.EvictArtifactResponse(artifact=artifact)

    def RemoveArtifact(self, request: Any, context: Any) -> Any:
        self._artifact(request.artifact_id, context)
        del self._it.artifacts[request.artifact_id]
        return catalog_pb2.RemoveArtifactResponse()

    def WatchArtifacts(self, request: Any, context: Any) -> Any:
        ended = threading.Event()
        context.add_callback(ended.set)
        context.add_callback(self._it.watch_ended.set)  # not at the end here: a call that ends early is left at a yield
        if request.after_sequence == 0:
            yield catalog_pb2.WatchArtifactsResponse(sequence=1, snapshot_complete={})
        for sequence in self._it.changes:
            if sequence > request.after_sequence:
                yield catalog_pb2.WatchArtifactsResponse(sequence=sequence, removed_artifact_id="org/a")
        if not self._it.ends_watches:
            ended.wait()

    def GetCapabilities(self, request: Any, context: Any) -> Any:
        return capabilities_pb2.GetCapabilitiesResponse(daemon_version="0", format_names=["safetensors"])

    def SetBudget(self, request: Any, context: Any) -> Any:
        self._it.capacity.budget_bytes = request.budget_bytes
        return capabilities_pb2.SetBudgetResponse(capacity=self._it.capacity)

    def GetCapacity(self, request: Any, context: Any) -> Any:
        return self._it.capacity

    def OpenSession(self, request: Any, context: Any) -> Any:
        session_id = uuid.uuid4().hex
        ended = threading.Event()
        context.add_callback(ended.set)
        with self._it.session_ended:
            self._it.sessions[session_id] = request.holder
            self._it.peers.add(context.peer())
            self._it.session_ended.notify_all()
        yield lease_pb2.OpenSessionResponse(session_id=session_id)
        ended.wait()
        with self._it.session_ended:
            self._it.sessions.pop(session_id, None)
            self._it.leases = {name: row for name, row in self._it.leases.items() if row[0] != session_id}
            self._it.session_ended.notify_all()

    def AcquireLease(self, request: Any, context: Any) -> Any:
        it = self._it
        artifact = self._artifact(request.artifact_id, context)
        segment = it.segments[request.artifact_id]
        with it.lock:
            it.acquires.append(request)
            known = request.session_id in it.sessions
            lease_id = uuid.uuid4().hex
            if known:
                it.leases[lease_id] = (request.session_id, request.artifact_id)
        if not known:
            _abort(context, errors.SessionLost("no such session"))
        outline = artifact_pb2.Layout(generation=1)
        outline.segments.add(
            segment_id=segment.segment_id,
            size_bytes=len(segment.data),
            content_size_bytes=segment.content_size_bytes,
        )
        return lease_pb2.AcquireLeaseResponse(
            lease=lease_pb2.Lease(lease_id=lease_id, artifact_id=request.artifact_id, generation=1),
            artifact=artifact,
            layout=outline,
            locations=[lease_pb2.Location(arena_directory=it.arena_directory)] if it.arena_directory else [],
        )

    def ReleaseLease(self, request: Any, context: Any) -> Any:
        with self._it.lock:
            self._it.leases.pop(request.lease_id, None)
        return lease_pb2.ReleaseLeaseResponse()

    def ListLeases(self, request: Any, context: Any) -> Any:
        with self._it.lock:
            rows = [lease_pb2.Lease(artifact_id=row[1], generation=1, holder="x") for row in self._it.leases.values()]
        return lease_pb2.ListLeasesResponse(leases=rows)

    def ReadSegment(self, request: Any, context: Any) -> Any:
        with self._it.lock:
            self._it.reads.append(request)
            fault = self._it.faults.pop(0) if self._it.faults else None
            row = self._it.leases.get(request.lease_id)
        if row is None or row[0] != request.session_id:
            _abort(context, errors.LeaseLost("no such lease"))
        content = self._it.segments[row[1]].data
        end = request.offset_bytes + request.limit_bytes if request.limit_bytes else len(content)
        chunks = self._chunks(content, request.offset_bytes, end)
        try:
            yield from fault(chunks) if fault else chunks
        except errors.WarmshelfError as error:
            _abort(context, error)

    def _chunks(self, content: bytes, start: int, end: int) -> Chunks:
        for at in range(start, end, self._it.chunk_bytes):
            data = content[at : min(at + self._it.chunk_bytes, end)]
            yield transfer_pb2.ReadSegmentResponse(offset_bytes=at, crc32c=crc32c.crc32c(data), data=data)
