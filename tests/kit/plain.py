"""A gRPC client of generated stubs and default options: what anybody could write from the protos."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from warmshelf.v1 import (
    capabilities_pb2_grpc,
    catalog_pb2,
    catalog_pb2_grpc,
    lease_pb2,
    lease_pb2_grpc,
    transfer_pb2,
    transfer_pb2_grpc,
)

CALL_SECONDS = 20


class Plain:
    """A client of generated stubs and nothing else: no retry, no resuming, one session."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.catalog = catalog_pb2_grpc.CatalogServiceStub(self.channel)
        self.leases = lease_pb2_grpc.LeaseServiceStub(self.channel)
        self.transfer = transfer_pb2_grpc.TransferServiceStub(self.channel)
        self.capabilities = capabilities_pb2_grpc.CapabilitiesServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)
        self.session = self.leases.OpenSession(lease_pb2.OpenSessionRequest(holder="plain"))
        self.session_id = next(self.session).session_id

    def __enter__(self) -> Plain:  # noqa: PYI034
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def register(self, artifact_id: str, source: Path | str, *, replace: bool = False) -> Any:
        request = catalog_pb2.RegisterArtifactRequest(artifact_id=artifact_id, replace=replace)
        request.spec.source.uri = f"file://{source}" if isinstance(source, Path) else source
        return self.catalog.RegisterArtifact(request, timeout=CALL_SECONDS).artifact

    def acquire(self, artifact_id: str, timeout: float = CALL_SECONDS, **fields: Any) -> Any:
        return self.acquire_later(artifact_id, timeout, **fields).result()

    def acquire_later(self, artifact_id: str, timeout: float = CALL_SECONDS, **fields: Any) -> Any:
        """Return the call under way, which can be cancelled or waited for."""
        request = lease_pb2.AcquireLeaseRequest(session_id=self.session_id, artifact_id=artifact_id, **fields)
        return self.leases.AcquireLease.future(request, timeout=timeout)

    def release(self, lease_id: str) -> None:
        request = lease_pb2.ReleaseLeaseRequest(session_id=self.session_id, lease_id=lease_id)
        self.leases.ReleaseLease(request, timeout=CALL_SECONDS)

    def evict(self, artifact_id: str) -> Any:
        request = catalog_pb2.EvictArtifactRequest(artifact_id=artifact_id)
        return self.catalog.EvictArtifact(request, timeout=CALL_SECONDS).artifact

    def remove(self, artifact_id: str) -> None:
        self.catalog.RemoveArtifact(catalog_pb2.RemoveArtifactRequest(artifact_id=artifact_id), timeout=CALL_SECONDS)

    def read(
        self, lease_id: str, offset: int = 0, limit: int = 0, index: int = 0, timeout: float = CALL_SECONDS
    ) -> Any:
        """Return the stream of chunks; it can be cancelled."""
        request = transfer_pb2.ReadSegmentRequest(
            lease_id=lease_id,
            session_id=self.session_id,
            segment_index=index,
            offset_bytes=offset,
            limit_bytes=limit,
        )
        return self.transfer.ReadSegment(request, timeout=timeout)

    def health_of(self, service: str = "", timeout: float = 5) -> str:
        """Return what the daemon says of itself, such as SERVING."""
        answer = self.health.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

    def close(self) -> None:
        self.session.cancel()
        self.channel.close()


@contextmanager
def refused(code: grpc.StatusCode, reason: str) -> Iterator[dict[str, str]]:
    """Expect a call to fail with a code and an ErrorInfo; gives its metadata, and the text as ``message``."""
    found: dict[str, str] = {}
    with pytest.raises(grpc.RpcError) as caught:
        yield found
    assert caught.value.code() is code, caught.value
    raw = dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
    info = error_details_pb2.ErrorInfo()
    assert any(detail.Unpack(info) for detail in status_pb2.Status.FromString(raw).details)
    assert info.reason == reason
    assert info.domain == "warmshelf.v1"
    found.update(info.metadata, message=caught.value.details())


@contextmanager
def dies() -> Iterator[None]:
    """Expect that the daemon is gone before it answers."""
    with pytest.raises(grpc.RpcError) as caught:
        yield
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, caught.value
    assert "grpc-status-details-bin" not in dict(caught.value.trailing_metadata() or ())
