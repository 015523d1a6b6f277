"""Watch, verify and capacity, by a plain gRPC client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from kit.models import write_model
from kit.plain import Plain, refused
from kit.processes import Daemon
from warmshelf.v1 import capabilities_pb2, catalog_pb2


@pytest.fixture
def plain(running: Daemon) -> Iterator[Plain]:
    client = Plain(running.tcp_address)
    yield client
    client.close()


def watch(plain: Plain, after: int = 0) -> Any:
    return plain.catalog.WatchArtifacts(catalog_pb2.WatchArtifactsRequest(after_sequence=after), timeout=20)


def until(stream: Any, wanted: Any) -> list[Any]:
    """Return the messages up to the first that is wanted."""
    seen = []
    for message in stream:
        seen.append(message)
        if wanted(message):
            return seen
    pytest.fail("the watch ended")


def test_a_watch_begins_with_everything_and_goes_on_without_a_gap(plain: Plain, models: Path) -> None:
    for name in "ab":
        write_model(models / f"{name}.safetensors", 1)
        plain.register(name, models / f"{name}.safetensors")
    stream = watch(plain)
    first = until(stream, lambda m: m.HasField("snapshot_complete"))
    assert [m.changed.artifact_id for m in first[:-1]] == ["a", "b"]
    assert [m.sequence for m in first[:-1]] == [0, 0]
    plain.acquire("a")
    seen = until(stream, lambda m: m.changed.state == 3)
    assert {m.changed.artifact_id for m in seen} == {"a"}
    plain.catalog.RemoveArtifact(catalog_pb2.RemoveArtifactRequest(artifact_id="b"), timeout=5)
    gone = until(stream, lambda m: m.removed_artifact_id == "b")
    numbers = [m.sequence for m in seen + gone]
    assert numbers == list(range(first[-1].sequence + 1, first[-1].sequence + 1 + len(numbers)))
    stream.cancel()
    again = until(watch(plain, numbers[0]), lambda m: m.removed_artifact_id == "b")
    assert [m.sequence for m in again] == numbers[1:]


def test_a_watch_from_a_number_of_nobody_is_told_to_begin_anew(plain: Plain) -> None:
    with refused(grpc.StatusCode.OUT_OF_RANGE, "SEQUENCE_COMPACTED"):
        next(watch(plain, 1))
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"):
        next(watch(plain, -1))


def test_verify_finds_a_flipped_bit_and_withdraws_the_bytes(running: Daemon, plain: Plain, models: Path) -> None:
    tensors = write_model(models / "a.safetensors", 1)
    plain.register("a", models / "a.safetensors")
    request = catalog_pb2.VerifyArtifactRequest(artifact_id="a")
    with refused(grpc.StatusCode.FAILED_PRECONDITION, "NOT_RESIDENT"):
        plain.catalog.VerifyArtifact(request, timeout=5)
    plain.acquire("a")
    checked = plain.catalog.VerifyArtifact(request, timeout=5).checked_bytes
    assert sum(map(len, tensors.values())) <= checked < 2 << 20
    (segment,) = running.segments()
    path = running.arena / segment
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(9000)
        byte = file.read(1)
        file.seek(9000)
        file.write(bytes([byte[0] ^ 1]))
    with refused(grpc.StatusCode.DATA_LOSS, "SEGMENT_CORRUPT"):
        plain.catalog.VerifyArtifact(request, timeout=5)
    artifact = plain.catalog.GetArtifact(catalog_pb2.GetArtifactRequest(artifact_id="a"), timeout=5).artifact
    assert artifact.failure.reason == "SEGMENT_CORRUPT"
    plain.acquire("a")  # loads it anew
    assert plain.catalog.VerifyArtifact(request, timeout=5).checked_bytes == checked


def test_capacity_tells_how_many_more_fit(plain: Plain, models: Path) -> None:
    write_model(models / "a.safetensors", 1, size=8 << 20)
    plain.register("a", models / "a.safetensors")

    def capacity(like: str = "") -> Any:
        request = capabilities_pb2.GetCapacityRequest(like_artifact_id=like)
        return plain.capabilities.GetCapacity(request, timeout=5)

    empty = capacity("a")
    size = plain.catalog.GetArtifact(catalog_pb2.GetArtifactRequest(artifact_id="a"), timeout=5).artifact.size_bytes
    assert (empty.budget_bytes, empty.resident_bytes) == (256 << 20, 0)
    assert empty.fit_free_count == empty.free_bytes // size == 31
    plain.acquire("a")
    held = capacity("a")
    assert (held.resident_bytes, held.held_bytes) == (size, size)
    assert held.fit_evicting_count == held.fit_free_count == 30
    assert capacity().fit_free_count == 0
    with refused(grpc.StatusCode.NOT_FOUND, "ARTIFACT_NOT_FOUND"):
        capacity("nobody")
