"""What a program does with a Shelf, and what becomes of it when the daemon or the process changes."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import warmshelf
from kit.models import pattern
from kit.segments import SegmentFile, write_segment
from kit.standin import StandIn
from warmshelf._incoming import source_uri
from warmshelf.errors import (
    ArtifactNotFound,
    InvalidId,
    InvalidRequest,
    InvalidSpec,
    LeaseLost,
    MalformedArtifact,
)
from warmshelf.types import ArtifactKind, LoadPhase
from warmshelf.v1 import artifact_pb2

Put = Callable[[SegmentFile], SegmentFile]


@pytest.fixture
def shelf(stand_in: StandIn, segment: SegmentFile, put: Put) -> Iterator[warmshelf.Shelf]:
    stand_in.add("org/a", put(segment))
    with warmshelf.connect(stand_in.address, timeout=20) as it:
        yield it


# --- the catalog ---


def test_a_registration_says_what_was_meant(shelf: warmshelf.Shelf) -> None:
    digest = "blake3:" + "0" * 64
    artifact = shelf.register(
        "org/b", "s3://bucket/x y", base="org/a", digest=digest, revision="r1", follow=True, keep=True
    )
    assert artifact.spec.source == warmshelf.Source("s3://bucket/x y", "r1", digest)
    assert (artifact.spec.kind, artifact.spec.base_id) == (ArtifactKind.ADAPTER, "org/a")
    assert artifact.follow
    assert artifact.keep_resident


def test_without_a_base_the_kind_is_read_from_the_source(shelf: warmshelf.Shelf) -> None:
    assert shelf.register("org/b", "s3://bucket/x").spec.kind is ArtifactKind.UNKNOWN


@pytest.mark.parametrize(
    ("source", "uri"),
    [
        ("/models/a b%.safetensors", "file:///models/a%20b%25.safetensors"),
        ("/models/../x/", "file:///x"),
        (Path("/models/ü"), "file:///models/%C3%BC"),
        ("file:///models/a%20b", "file:///models/a%20b"),
        ("s3://bucket/a b", "s3://bucket/a b"),
    ],
)
def test_a_path_becomes_a_uri_and_a_uri_stays(source: str | Path, uri: str) -> None:
    assert source_uri(source) == uri


def test_a_relative_path_is_of_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert source_uri("models/a") == f"file://{tmp_path}/models/a"


def test_no_source_is_not_this_directory() -> None:
    with pytest.raises(InvalidSpec):
        source_uri("")


def test_an_id_outside_the_grammar_is_refused_before_a_call(shelf: warmshelf.Shelf) -> None:
    """B05."""
    for call in (shelf.get, shelf.load, shelf.acquire, shelf.evict, shelf.remove, shelf.leases):
        with pytest.raises(InvalidId):
            call("../etc")
    with pytest.raises(InvalidId):
        shelf.register("a\n", "file:///a")


def test_a_listing_has_every_page(shelf: warmshelf.Shelf) -> None:
    for name in ("b", "c", "d", "e"):
        shelf.register(f"org/{name}", "file:///x")
    assert [artifact.artifact_id for artifact in shelf.list()] == ["org/a", "org/b", "org/c", "org/d", "org/e"]


def test_a_load_tells_how_far_it_is_and_ends_with_the_artifact(shelf: warmshelf.Shelf) -> None:
    steps = list(shelf.load("org/a"))
    assert [step.done_bytes for step in steps[:3]] == [0, 5, 10]
    assert steps[-1].phase is LoadPhase.SEAL
    assert steps[-1].artifact is not None
    assert steps[-1].artifact.artifact_id == "org/a"


def test_a_load_that_is_closed_leaves_the_shelf_usable(shelf: warmshelf.Shelf) -> None:
    steps = shelf.load("org/a")
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert shelf.get("org/a").artifact_id == "org/a"


def test_the_load_of_an_unknown_id_is_not_found(shelf: warmshelf.Shelf) -> None:
    with pytest.raises(ArtifactNotFound):
        next(iter(shelf.load("nobody")))


def test_a_closed_shelf_refuses_further_calls(shelf: warmshelf.Shelf) -> None:
    shelf.close()
    shelf.close()
    with pytest.raises(InvalidRequest, match="closed"):
        shelf.get("org/a")


# --- leases ---


def test_an_acquired_artifact_is_mapped_and_reads_as_a_mapping(shelf: warmshelf.Shelf) -> None:
    with shelf.acquire("org/a") as lease:
        assert (lease.transport, lease.fallback_reason, lease.generation) == ("mapped", "", 1)
        assert list(lease) == ["a.weight", "b.weight", "scalar", "empty"]
        assert len(lease) == 4
        assert "a.weight" in lease
        assert "c.weight" not in lease
        assert lease["a.weight"] == pattern(1, 600_000)
        assert lease.layout.generation == 1
        assert lease.layout.tensors[0].name == "a.weight"
        assert lease.layout.segments[0].segment_id in Path("/proc/self/maps").read_text()
        with pytest.raises(KeyError):
            lease["c.weight"]


def test_a_config_travels_byte_for_byte_and_parsed(shelf: warmshelf.Shelf, stand_in: StandIn) -> None:
    """B13: a byte order mark too."""
    with shelf.acquire("org/a") as lease:
        assert lease.config_json == b'\xef\xbb\xbf{"r": 1}'
        assert lease.config == {"r": 1}
        assert sorted(lease.files) == ["adapter_config.json", "config.json"]
    stand_in.artifacts["org/a"].kind = artifact_pb2.ARTIFACT_KIND_ADAPTER
    with shelf.acquire("org/a") as lease:
        assert lease.config == {"lora_alpha": 8}


@pytest.mark.parametrize(("text", "fails"), [(b"", False), (b"[]", True), (b"{", True), (b"\xff", True)])
def test_a_config_that_is_no_json_object_is_malformed(
    shelf: warmshelf.Shelf, stand_in: StandIn, put: Put, text: bytes, fails: bool
) -> None:
    stand_in.add("org/c", put(write_segment({"w": ("U8", (1,), b"x")}, files={"config.json": text})))
    with shelf.acquire("org/c") as lease:
        if fails:
            with pytest.raises(MalformedArtifact):
                _ = lease.config
        else:
            assert lease.config == {}
        assert lease.config_json == text


def test_a_view_outlives_the_lease_which_itself_lets_go(shelf: warmshelf.Shelf, segment: SegmentFile) -> None:
    lease = shelf.acquire("org/a")
    view = lease["a.weight"]
    lease.release()
    lease.release()
    assert view == pattern(1, 600_000)
    with pytest.raises(LeaseLost, match="released"):
        lease["a.weight"]
    del view
    gc.collect()
    assert segment.segment_id not in Path("/proc/self/maps").read_text()


def test_views_outlive_the_shelf(stand_in: StandIn, segment: SegmentFile, put: Put) -> None:
    stand_in.add("org/a", put(segment))
    with warmshelf.connect(stand_in.address) as shelf:
        lease = shelf.acquire("org/a")
    stand_in.stop()
    assert lease["a.weight"] == pattern(1, 600_000)
    lease.release()


def test_each_acquire_maps_anew(shelf: warmshelf.Shelf) -> None:
    """B45."""
    with shelf.acquire("org/a") as one, shelf.acquire("org/a") as other:
        one["a.weight"][0] = 255
        assert other["a.weight"] == pattern(1, 600_000)
        assert one != other
    with shelf.acquire("org/a") as later:
        assert later["a.weight"] == pattern(1, 600_000)


def test_what_a_worker_honours_is_never_sent_as_an_empty_list(shelf: warmshelf.Shelf, stand_in: StandIn) -> None:
    """B07: on the wire an empty list means anything."""
    for features in (None, (), ("dora",)):
        shelf.acquire("org/a", features=features, rank_max=8, resident_only=True).release()
    assert [list(request.features) for request in stand_in.acquires] == [[], ["lora"], ["lora", "dora"]]
    assert {request.rank_max for request in stand_in.acquires} == {8}
    assert all(request.resident_only for request in stand_in.acquires)


def test_leases_come_together_on_one_session(shelf: warmshelf.Shelf, stand_in: StandIn) -> None:
    leases: list[warmshelf.Lease] = []
    threads = [threading.Thread(target=lambda: leases.append(shelf.acquire("org/a"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(leases) == 8
    assert len(stand_in.sessions) == 1
    assert len(shelf.leases()) == 8
    for lease in leases:
        lease.release()
    assert shelf.leases() == []


def test_the_holder_is_named(stand_in: StandIn, segment: SegmentFile, put: Put) -> None:
    stand_in.add("org/a", put(segment))
    with warmshelf.connect(stand_in.address, holder="pod-ü/\udc80") as shelf:
        shelf.acquire("org/a").release()
        assert list(stand_in.sessions.values()) == ["pod-ü/\\udc80"]
    assert stand_in.wait_sessions(0)
    with warmshelf.connect(stand_in.address) as shelf:
        shelf.acquire("org/a").release()
        assert str(os.getpid()) in next(iter(stand_in.sessions.values()))


# --- ways to the bytes ---


def test_an_arena_that_is_not_here_is_streamed_around(
    stand_in: StandIn, segment: SegmentFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B47: results are equal, and the daemon is told why."""
    stand_in.add("org/a", segment)
    monkeypatch.setenv("WARMSHELF_ARENA", str(tmp_path / "nowhere"))
    with warmshelf.connect(stand_in.address) as shelf, shelf.acquire("org/a") as lease:
        assert (lease.transport, lease.fallback_reason) == ("streamed", "arena_not_visible")
        assert lease["a.weight"] == pattern(1, 600_000)
    assert [read.fallback_reason for read in stand_in.reads] == ["arena_not_visible"]


def test_over_tcp_a_named_arena_is_mapped(tcp_stand_in: StandIn, segment: SegmentFile, put: Put, arena: Path) -> None:
    tcp_stand_in.add("org/a", put(segment))
    tcp_stand_in.arena_directory = str(arena)
    with warmshelf.connect(tcp_stand_in.address) as shelf, shelf.acquire("org/a") as lease:
        assert (lease.transport, lease.fallback_reason) == ("streamed", "tcp")
    with warmshelf.connect(tcp_stand_in.address, arena=arena) as shelf, shelf.acquire("org/a") as lease:
        assert lease.transport == "mapped"


def test_a_daemon_that_names_no_arena_streams(stand_in: StandIn, segment: SegmentFile) -> None:
    stand_in.add("org/a", segment)
    stand_in.arena_directory = ""
    with warmshelf.connect(stand_in.address) as shelf, shelf.acquire("org/a") as lease:
        assert (lease.transport, lease.fallback_reason) == ("streamed", "arena_not_visible")


# --- the daemon's death ---


def test_after_a_restart_the_next_acquire_works_and_old_leases_are_harmless(
    shelf: warmshelf.Shelf, stand_in: StandIn
) -> None:
    """B53."""
    old = shelf.acquire("org/a")
    stand_in.stop()
    assert old["a.weight"] == pattern(1, 600_000)
    stand_in.start()
    with shelf.acquire("org/a", timeout=10) as new:
        assert new["a.weight"] == pattern(1, 600_000)
        old.release()
        assert len(stand_in.leases) == 1


def test_a_daemon_that_is_away_for_a_moment_is_waited_for(
    shelf: warmshelf.Shelf, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B53: the first call after a restart does not fail."""
    monkeypatch.setattr("warmshelf._channel.FIRST_CONTACT_SECONDS", 0.1)  # long enough: it has answered before
    shelf.acquire("org/a").release()
    stand_in.stop()
    timer = threading.Timer(0.5, stand_in.start)
    timer.start()
    assert shelf.get("org/a").artifact_id == "org/a"
    with shelf.acquire("org/a") as lease:
        assert lease.transport == "mapped"
    timer.join()


def test_a_session_that_the_daemon_forgot_is_opened_anew(shelf: warmshelf.Shelf, stand_in: StandIn) -> None:
    shelf.acquire("org/a").release()
    forgotten = set(stand_in.sessions)
    stand_in.sessions.clear()
    with shelf.acquire("org/a") as lease:
        assert lease["a.weight"] == pattern(1, 600_000)
        assert stand_in.wait_sessions(1)
        assert not forgotten & set(stand_in.sessions)


def test_each_shelf_has_a_connection_of_its_own(tcp_stand_in: StandIn, segment: SegmentFile) -> None:
    tcp_stand_in.add("org/a", segment)
    with warmshelf.connect(tcp_stand_in.address) as one, warmshelf.connect(tcp_stand_in.address) as other:
        one.acquire("org/a")
        other.acquire("org/a")
        assert len(tcp_stand_in.peers) == 2
        one.close()
        assert tcp_stand_in.wait_sessions(1)
        assert len(other.leases()) == 1


def test_a_release_without_a_daemon_is_harmless(shelf: warmshelf.Shelf, stand_in: StandIn) -> None:
    """B53."""
    lease = shelf.acquire("org/a")
    stand_in.stop()
    lease.release()


@pytest.mark.parametrize("options", [{"features": "dora"}, {"rank_max": 1 << 40}, {"rank_max": -1}])
def test_what_a_worker_cannot_mean_is_refused_before_a_call(options: dict[str, object]) -> None:
    with warmshelf.connect("unix:///nowhere/api.sock") as shelf, pytest.raises(InvalidRequest, match="rank_max"):
        shelf.acquire("a", **options)  # type: ignore[arg-type]
