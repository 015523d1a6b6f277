"""The wire itself, spoken by a plain gRPC client with generated stubs and default options."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import crc32c
import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from kit.models import safetensors_bytes, write_model
from kit.plain import Plain, refused
from kit.processes import Daemon, eventually
from warmshelf.v1 import capabilities_pb2, catalog_pb2, lease_pb2, transfer_pb2
from warmshelfd.domain.roles import CALLS

CHUNK = 1 << 20


@pytest.fixture
def plain(shared: Daemon) -> Iterator[Plain]:
    with Plain(shared.tcp_address) as client:
        yield client


def test_chunks_come_in_order_without_gaps_each_with_its_crc(plain: Plain, models: Path) -> None:
    write_model(models / "a.safetensors", 1, size=5 << 20)
    plain.register("a", models / "a.safetensors")
    response = plain.acquire("a")
    offset = 0
    for chunk in plain.read(response.lease.lease_id):
        assert chunk.offset_bytes == offset
        assert chunk.crc32c == crc32c.crc32c(chunk.data)
        offset += len(chunk.data)
    assert offset == response.layout.segments[0].size_bytes


def test_a_read_resumes_at_every_chunk_boundary_and_beside_it_with_the_same_bytes(plain: Plain, models: Path) -> None:
    write_model(models / "a.safetensors", 1, size=5 << 20)
    plain.register("a", models / "a.safetensors")
    response = plain.acquire("a")
    size = response.layout.segments[0].size_bytes
    lease_id = response.lease.lease_id
    whole = b"".join(chunk.data for chunk in plain.read(lease_id))
    for boundary in range(0, size + 1, CHUNK):
        for offset in (boundary - 1, boundary, boundary + 1):
            if 0 <= offset <= size:
                assert b"".join(chunk.data for chunk in plain.read(lease_id, offset)) == whole[offset:]
    assert b"".join(chunk.data for chunk in plain.read(lease_id, size)) == b""
    for offset, limit in ((0, 1), (7, CHUNK), (CHUNK - 1, 2), (size - 1, 1)):
        chunks = list(plain.read(lease_id, offset, limit))
        assert b"".join(chunk.data for chunk in chunks) == whole[offset : offset + limit]


def test_ranges_outside_the_segment_are_refused_with_the_numbers(plain: Plain, models: Path) -> None:
    write_model(models / "a.safetensors", 1)
    plain.register("a", models / "a.safetensors")
    response = plain.acquire("a")
    size = response.layout.segments[0].size_bytes
    for offset, limit in ((size + 1, 0), (-1, 0), (0, size + 1), (size, 1), (2**62, 2**62), (0, -1)):
        with refused(grpc.StatusCode.OUT_OF_RANGE, "OFFSET_OUT_OF_RANGE") as details:
            list(plain.read(response.lease.lease_id, offset, limit))
        assert details["size_bytes"] == str(size)
    with refused(grpc.StatusCode.NOT_FOUND, "SEGMENT_NOT_FOUND"):
        list(plain.read(response.lease.lease_id, index=1))
    with refused(grpc.StatusCode.NOT_FOUND, "SEGMENT_NOT_FOUND"):
        list(plain.read(response.lease.lease_id, index=-1))


def test_a_lease_is_worth_nothing_outside_its_session_or_after_its_end(
    shared: Daemon, plain: Plain, models: Path
) -> None:
    write_model(models / "a.safetensors", 1)
    plain.register("a", models / "a.safetensors")
    lease_id = plain.acquire("a").lease.lease_id
    other = Plain(shared.tcp_address)
    try:
        with refused(grpc.StatusCode.FAILED_PRECONDITION, "LEASE_LOST"):
            list(other.read(lease_id))
        other.leases.ReleaseLease(lease_pb2.ReleaseLeaseRequest(session_id=other.session_id, lease_id=lease_id))
        assert list(plain.read(lease_id, 0, 1))[0].data  # noqa: RUF015 - the whole stream is to end well
    finally:
        other.close()
    release = lease_pb2.ReleaseLeaseRequest(session_id=plain.session_id, lease_id=lease_id)
    plain.leases.ReleaseLease(release, timeout=5)
    plain.leases.ReleaseLease(release, timeout=5)
    with refused(grpc.StatusCode.FAILED_PRECONDITION, "LEASE_LOST"):
        list(plain.read(lease_id))
    request = lease_pb2.AcquireLeaseRequest(session_id="no such session", artifact_id="a")
    with refused(grpc.StatusCode.FAILED_PRECONDITION, "SESSION_LOST"):
        plain.leases.AcquireLease(request, timeout=5)


def test_leases_end_with_their_session(shared: Daemon, plain: Plain, models: Path) -> None:
    write_model(models / "a.safetensors", 1)
    plain.register("a", models / "a.safetensors")
    other = Plain(shared.tcp_address)
    other.acquire("a")
    listing = plain.leases.ListLeases(lease_pb2.ListLeasesRequest(), timeout=5)
    assert [(lease.artifact_id, lease.holder, lease.lease_id) for lease in listing.leases] == [("a", "plain", "")]
    other.close()
    eventually(
        lambda: not plain.leases.ListLeases(lease_pb2.ListLeasesRequest(), timeout=5).leases,
        "the lease of a closed session is gone",
    )


def test_the_layout_comes_in_parts_that_plain_clients_can_take(plain: Plain, models: Path) -> None:
    """B48: 12,000 tensors with long names exceed one part; the layout is split."""
    name = "a.long.name." * 20
    tensors = {f"{name}{i}": ("F32", (1,), i.to_bytes(4, "little")) for i in range(12_000)}
    (models / "many.safetensors").write_bytes(safetensors_bytes(tensors))
    plain.register("many", models / "many.safetensors")
    response = plain.acquire("many")
    request = transfer_pb2.ReadLayoutRequest(lease_id=response.lease.lease_id, session_id=plain.session_id)
    parts = list(plain.transfer.ReadLayout(request, timeout=30))
    assert len(parts) > 1
    segments = [segment for part in parts for segment in part.layout.segments]
    assert [segment.segment_id for segment in segments] == [response.layout.segments[0].segment_id]
    specs = [tensor for part in parts for tensor in part.layout.tensors]
    assert {spec.name for spec in specs} == set(tensors)
    assert [spec.offset_bytes for spec in specs] == sorted(spec.offset_bytes for spec in specs)


def test_one_tensor_larger_than_a_message_streams_to_a_client_with_default_options(plain: Plain, models: Path) -> None:
    """B48: a tensor of 9 MiB and the default limit of 4 MiB per message."""
    tensors = write_model(models / "big.safetensors", 3, size=9 << 20, count=1)
    plain.register("big", models / "big.safetensors")
    response = plain.acquire("big")
    image = b"".join(chunk.data for chunk in plain.read(response.lease.lease_id))
    assert next(iter(tensors.values())) in image


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_cancelled_read_frees_its_stream_at_any_chunk(plain: Plain, models: Path, number: int) -> None:
    """B49 (a): clients that go away in mid-stream leave nothing held."""
    write_model(models / "a.safetensors", 1, size=8 << 20)
    plain.register("a", models / "a.safetensors")
    lease_id = plain.acquire("a").lease.lease_id
    for _ in range(50):
        stream = plain.read(lease_id)
        for _ in range(number):
            next(stream)
        stream.cancel()
    plain.release(lease_id)
    assert plain.evict("a").state == 1


def test_a_deadline_in_mid_stream_is_told_as_such(shared: Daemon, plain: Plain, models: Path) -> None:
    write_model(models / "a.safetensors", 1, size=64 << 20)
    plain.register("a", models / "a.safetensors")
    lease_id = plain.acquire("a").lease.lease_id
    request = transfer_pb2.ReadSegmentRequest(lease_id=lease_id, session_id=plain.session_id)
    stream = plain.transfer.ReadSegment(request, timeout=0.3)
    next(stream)
    threading.Event().wait(0.4)
    with pytest.raises(grpc.RpcError) as caught:
        list(stream)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_health_answers_by_service_and_reflection_lists_them(plain: Plain) -> None:
    names = ["", *{call.partition("/")[0] for call in CALLS if call.startswith("warmshelf.")}]
    for name in names:
        assert plain.health_of(name) == "SERVING"
    stub = reflection_pb2_grpc.ServerReflectionStub(plain.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    listed = {s.name for s in next(stub.ServerReflectionInfo(iter([request]))).list_services_response.service}
    assert set(names[1:]) <= listed


def test_capabilities_tell_what_is_so(shared: Daemon, plain: Plain) -> None:
    answer = plain.capabilities.GetCapabilities(capabilities_pb2.GetCapabilitiesRequest(), timeout=5)
    assert answer.arena_size_bytes == 256 << 20
    assert f"pinning={answer.pinning}" in shared.ready_line
    assert f"page_size={answer.arena_page_size_bytes}" in shared.ready_line
    assert "file" in answer.source_schemes
    assert "safetensors" in answer.format_names


@pytest.mark.parametrize("token", ["!", "AAAA=A", "\u00e9", "x" * 5000])
def test_a_page_token_of_nobody_is_refused(plain: Plain, token: str) -> None:
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PAGE_TOKEN"):
        plain.catalog.ListArtifacts(catalog_pb2.ListArtifactsRequest(page_token=token), timeout=5)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PAGE_TOKEN"):
        plain.leases.ListLeases(lease_pb2.ListLeasesRequest(page_token=token), timeout=5)


def test_requests_that_make_no_sense_are_refused_by_name(plain: Plain) -> None:
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"):
        plain.catalog.ListArtifacts(catalog_pb2.ListArtifactsRequest(page_size=-1), timeout=5)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"):
        plain.catalog.ListArtifacts(catalog_pb2.ListArtifactsRequest(view=99), timeout=5)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ID"):
        plain.catalog.RegisterArtifact(catalog_pb2.RegisterArtifactRequest(), timeout=5)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_SPEC"):
        plain.catalog.RegisterArtifact(catalog_pb2.RegisterArtifactRequest(artifact_id="a"), timeout=5)
    for call, request in (
        (plain.catalog.EvictArtifact, catalog_pb2.EvictArtifactRequest()),
        (plain.catalog.RemoveArtifact, catalog_pb2.RemoveArtifactRequest()),
        (plain.catalog.GetArtifact, catalog_pb2.GetArtifactRequest()),
    ):
        with refused(grpc.StatusCode.NOT_FOUND, "ARTIFACT_NOT_FOUND"):
            call(request, timeout=5)


def test_a_worker_that_names_its_lease_can_release_it_also_where_the_answer_was_lost(
    plain: Plain, models: Path
) -> None:
    write_model(models / "a.safetensors", 1)
    plain.register("a", models / "a.safetensors")
    lease_id = "0123456789abcdef" * 2
    for _ in range(2):  # the same again: the first answer was lost
        assert plain.acquire("a", lease_id=lease_id).lease.lease_id == lease_id
    listing = plain.leases.ListLeases(lease_pb2.ListLeasesRequest(), timeout=5)
    assert len(listing.leases) == 1
    plain.release(lease_id)
    assert not plain.leases.ListLeases(lease_pb2.ListLeasesRequest(), timeout=5).leases
    for bad in ("x", "0" * 31, "0" * 33, "A" * 32):
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"):
            plain.acquire("a", lease_id=bad)
