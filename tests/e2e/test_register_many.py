"""Many registrations at once, and those whose source is looked at only when it is needed."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
import pytest

from kit.adapters import adapter_files, pair
from kit.models import filled
from kit.plain import Plain, refused
from kit.processes import Daemon, read_all
from kit.shelf_sources import write
from warmshelf import ArtifactKind, ArtifactState, NewArtifact, errors
from warmshelf.v1 import catalog_pb2

pytestmark = pytest.mark.e2e


def test_ten_thousand_adapters_are_registered_without_a_look_at_their_sources(daemon: Daemon, models: Path) -> None:
    """C8."""
    daemon.start()
    new = [NewArtifact(f"acme/lora-{i:05}", f"{models}/{i}", base="base") for i in range(10_000)]
    with daemon.connect() as shelf:
        start = time.monotonic()
        outcomes = shelf.register_many(new, defer=True)
        assert time.monotonic() - start < 30
        assert [one.artifact_id for one in outcomes] == [one.artifact_id for one in new]
        assert [one for one in outcomes if one.error] == []
        assert shelf.register_many(new[:2000], defer=True) == outcomes[:2000]
        first = shelf.get(new[0].artifact_id)
        assert (first.inspection, first.kind, first.size_bytes) == (None, ArtifactKind.ADAPTER, 0)
    daemon.kill()
    (models / "7").mkdir()
    for name, data in adapter_files(pair("q_proj")).items():
        (models / "7" / name).write_bytes(data)
    daemon.start()
    with daemon.connect() as shelf:
        with shelf.acquire("acme/lora-00007") as lease:
            assert lease.artifact.inspection is not None
            assert len(lease) == 2
        with pytest.raises(errors.SourceNotFound):
            shelf.acquire("acme/lora-00008")
        assert shelf.get("acme/lora-00008").state is ArtifactState.FAILED


def test_each_of_many_is_told_how_it_went(shared: Daemon, models: Path) -> None:
    one, two = (str(write(models / f"{n}.safetensors", filled(n))) for n in (1, 2))
    with shared.connect() as shelf:
        outcomes = shelf.register_many(
            [
                NewArtifact("a", one),
                NewArtifact("../b", one),
                NewArtifact("c", "/etc/passwd"),
                NewArtifact("d", ""),
                NewArtifact("e", one, base="a"),
                NewArtifact("a", two),
                NewArtifact("f", two, keep=True),
                NewArtifact("g", two, digest="md5:1"),
            ]
        )
        reasons = [one.error.reason if one.error else "" for one in outcomes]
        assert sorted({reasons[0], reasons[5]}) == ["", "SPEC_MISMATCH"]
        del reasons[5], reasons[0]
        assert reasons == ["INVALID_ID", "SOURCE_NOT_ALLOWED", "INVALID_SPEC", "INVALID_SPEC", "", "INVALID_SPEC"]
        assert [artifact.artifact_id for artifact in shelf.list()] == ["a", "f"]
        assert shelf.get("f").keep_resident


def test_a_deferred_source_is_inspected_when_it_is_registered_again_or_loaded(shared: Daemon, models: Path) -> None:
    with shared.connect() as shelf:
        path = models / "a.safetensors"
        assert shelf.register("a", path, defer=True).kind is ArtifactKind.UNKNOWN
        with pytest.raises(errors.SourceNotFound):
            shelf.acquire("a")
        write(path, filled(1))
        again = shelf.register("a", path)
        assert again.inspection is not None
        with shelf.acquire("a") as lease:
            assert read_all(lease) == {"w": filled(1)["w"][2]}
        other = shelf.register("a", models / "b.safetensors", replace=True, defer=True)
        assert (other.inspection, other.generation, other.state) == (None, 2, ArtifactState.REGISTERED)
        write(models / "b.safetensors", filled(2))
        with shelf.acquire("a") as lease:
            assert (read_all(lease), lease.generation) == ({"w": filled(2)["w"][2]}, 2)


def test_more_than_a_thousand_at_once_are_refused(shared: Daemon) -> None:
    request = catalog_pb2.RegisterArtifactsRequest(requests=[catalog_pb2.RegisterArtifactRequest()] * 1001)
    with Plain(shared.address) as plain, refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"):
        plain.catalog.RegisterArtifacts(request)
