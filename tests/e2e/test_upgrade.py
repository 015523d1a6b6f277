"""From an earlier release to this one and back, over live segments; and that release's clients at this daemon."""

from __future__ import annotations

import importlib
import json
import pkgutil
import signal
import sqlite3
import struct
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, symbol_database
from google.protobuf.json_format import MessageToDict

import warmshelf.v1
from kit.models import filled, safetensors_bytes, write_model
from kit.old_release import RELEASES, SEALED, OldClient, OldRelease, tensors_of
from kit.processes import Daemon, eventually, read_all
from warmshelf import ArtifactState

TODAY = [
    importlib.import_module(f"warmshelf.v1.{module.name}")
    for module in pkgutil.iter_modules(warmshelf.v1.__path__)
    if module.name.endswith("_pb2")
]


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> OldRelease:
    return OldRelease(request.param)


def records(daemon: Daemon) -> dict[str, dict[str, Any]]:
    """Read the registry's file as the earliest release does."""
    with sqlite3.connect(f"file:{daemon.registry}?mode=ro", uri=True) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (1,)
        found = {name: json.loads(text) for name, text in file.execute("SELECT artifact_id, record FROM registrations")}
    file.close()
    return found


# --- upgrade and back ----------------------------------------------------------


def test_segments_and_registrations_of_an_earlier_release_are_taken_over_without_their_sources(
    daemon: Daemon, release: OldRelease
) -> None:
    """D11: READY at once; the bytes are what that release served."""
    release.leave(daemon)
    daemon.start()
    with daemon.connect() as shelf:
        assert {a.artifact_id: (a.state, a.digest, a.generation) for a in shelf.list()} == {
            artifact_id: (ArtifactState.READY, digest, 1) for artifact_id, digest in release.digests.items()
        }
        assert shelf.get("acme/base").keep_resident
        for artifact_id, tensors in release.tensors.items():
            with shelf.acquire(artifact_id, resident_only=True, expected_digest=release.digests[artifact_id]) as lease:
                assert read_all(lease) == tensors
                assert lease.transport == "mapped"


def test_what_this_release_leaves_can_be_read_by_the_earlier_one(
    daemon: Daemon, release: OldRelease, models: Path
) -> None:
    """D11, N-1 after N: judged by that release's strict reading, which refuses a record with a key that it lacks."""
    release.leave(daemon)
    before = records(daemon)
    daemon.start()
    (models / "new.safetensors").write_bytes(safetensors_bytes(filled(9)))
    with daemon.connect() as shelf:
        shelf.register("acme/new", models / "new.safetensors")
        shelf.acquire("acme/new", timeout=20).release()
        eventually(lambda: bool(shelf.get("acme/new").digest), "its digest is known and written")
    daemon.kill(signal.SIGTERM)
    after = records(daemon)
    assert {name: after[name] for name in before} == before
    assert set(after["acme/new"]) == set(before["acme/base"])
    assert (after["acme/new"]["schema"], set(after["acme/new"]["source"])) == (1, set(before["acme/base"]["source"]))
    image = (daemon.arena / after["acme/new"]["segment_id"]).read_bytes()
    assert dict(tensors_of(release, image)) == {"w": bytes([9]) * len(dict(tensors_of(release, image))["w"])}


def test_up_and_down_and_up_again_keeps_every_segment(daemon: Daemon, release: OldRelease) -> None:
    """D11: N-1 to N to N-1 to N; the middle is played by files of that release put back over live segments."""
    release.leave(daemon)
    daemon.start()
    daemon.kill(signal.SIGKILL)
    for path in daemon.registry.parent.glob("registry.sqlite*"):
        path.unlink()
    (daemon.registry).write_bytes((release.directory / "registry.sqlite").read_bytes())
    daemon.start()
    with daemon.connect() as shelf:
        for artifact_id, tensors in release.tensors.items():
            with shelf.acquire(artifact_id, resident_only=True) as lease:
                assert read_all(lease) == tensors


def test_a_segment_of_a_newer_format_is_never_misread_and_loaded_anew_with_the_reason(
    daemon: Daemon, models: Path
) -> None:
    """D11."""
    tensors = write_model(models / "a.safetensors", 1)
    daemon.start()
    with daemon.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        shelf.acquire("a", timeout=20).release()
    daemon.kill()
    (segment_id,) = daemon.segments()
    path = daemon.arena / segment_id
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(8)
        file.write(struct.pack("<I", 2))
    path.chmod(SEALED)
    daemon.start()
    with daemon.connect() as shelf:
        assert "segment format 2, this side reads up to 1" in daemon.log.read_text()
        with shelf.acquire("a", timeout=20) as lease:
            assert read_all(lease) == tensors
    assert segment_id not in daemon.segments()


def test_a_registry_of_a_newer_schema_is_refused_and_left_as_it_is(daemon: Daemon) -> None:
    daemon.start()
    daemon.kill(signal.SIGTERM)
    with sqlite3.connect(daemon.registry) as file:
        file.execute("PRAGMA user_version = 2")
    file.close()
    before = daemon.registry.read_bytes()
    daemon.start(wait=False)
    assert daemon.wait() == 2
    assert "was written by a newer release: schema 2, this one knows up to 1" in daemon.log.read_text()
    assert daemon.registry.read_bytes() == before


# --- clients of the earlier release ---------------------------------------------


def test_an_old_client_registers_loads_streams_and_releases_at_this_daemon(
    running: Daemon, release: OldRelease, models: Path
) -> None:
    tensors = write_model(models / "a.safetensors", 3)
    with OldClient(release, running.address) as client:
        spec = {"source": {"uri": f"file://{models}/a.safetensors"}}
        registered = client.call("CatalogService", "RegisterArtifact", artifact_id="a", spec=spec).artifact
        assert registered.artifact_id == "a"
        last = list(client.stream("CatalogService", "LoadArtifact", artifact_id="a"))[-1]
        assert last.artifact.size_bytes > 0
        assert dict(client.tensors("a")) == tensors
        assert [a.artifact_id for a in client.call("CatalogService", "ListArtifacts").artifacts] == ["a"]
        assert client.call("CapabilitiesService", "GetCapabilities").arena_size_bytes == 256 << 20
        client.call("CatalogService", "RemoveArtifact", artifact_id="a")
        with pytest.raises(grpc.RpcError) as caught:
            client.call("CatalogService", "GetArtifact", artifact_id="a")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_recorded_messages_say_the_same_today(release: OldRelease) -> None:
    symbols = symbol_database.Default()
    for call in release.calls:
        method = call["method"].rpartition("/")[2]
        for part, name in (("request", f"{method}Request"), ("answer", f"{method}Response")):
            today = symbols.GetSymbol(f"warmshelf.v1.{name}").FromString(bytes.fromhex(call[f"{part}_hex"]))
            assert MessageToDict(today, preserving_proto_field_name=True) == call[part], name


def test_nothing_of_the_protocol_has_changed_its_meaning(release: OldRelease) -> None:
    """Every message, field, value and method of the earlier release is there with its number and type."""
    today = descriptor_pb2.FileDescriptorSet()
    for module in TODAY:
        module.DESCRIPTOR.CopyToProto(today.file.add())
    for dependency in {d.name: d for module in TODAY for d in module.DESCRIPTOR.dependencies}.values():
        dependency.CopyToProto(today.file.add())
    missing = facts(release.protos) - facts(today)
    assert not missing, missing
    assert len(facts(release.protos)) > 100


def facts(protos: descriptor_pb2.FileDescriptorSet) -> set[tuple[object, ...]]:
    """Return what the other side of a wire relies on, of our package."""
    found: set[tuple[object, ...]] = set()
    for file in protos.file:
        if file.package == "warmshelf.v1":
            for service in file.service:
                for m in service.method:
                    kinds = (m.client_streaming, m.server_streaming)
                    found.add((service.name, m.name, m.input_type, m.output_type, *kinds))
            for enum in file.enum_type:
                found |= {(enum.name, value.name, value.number) for value in enum.value}
            for message in file.message_type:
                found |= message_facts(message, message.name)
    return found


def message_facts(message: descriptor_pb2.DescriptorProto, name: str) -> set[tuple[object, ...]]:
    found: set[tuple[object, ...]] = {
        (name, field.name, field.number, field.type, field.label, field.type_name) for field in message.field
    }
    for enum in message.enum_type:
        found |= {(name, enum.name, value.name, value.number) for value in enum.value}
    for nested in message.nested_type:
        found |= message_facts(nested, f"{name}.{nested.name}")
    return found
