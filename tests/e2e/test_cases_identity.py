"""One ID, one content: what happens when the same ID comes with other bytes, or the same bytes under another ID."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

import warmshelf
from kit.models import filled, pattern, safetensors_bytes, write_model
from kit.plain import Plain, refused
from kit.processes import Daemon, eventually, read_all
from warmshelf import errors

ONES, TWOS = filled(1), filled(2)
CHUNK = 1 << 20


@pytest.fixture
def t1(models: Path) -> Path:
    path = models / "t1.safetensors"
    path.write_bytes(safetensors_bytes(ONES))
    return path


@contextmanager
def both_ways(daemon: Daemon) -> Iterator[list[warmshelf.Shelf]]:
    """A worker that maps and one that streams."""
    with daemon.connect() as mapping, warmshelf.connect(daemon.tcp_address) as streaming:
        yield [mapping, streaming]


def value_of(lease: warmshelf.Lease) -> int:
    """Return the value that all bytes of the tensor ``w`` have."""
    (value,) = set(lease["w"])
    return value


def test_other_bytes_under_a_known_id_are_refused_and_the_first_are_still_served(shared: Daemon, t1: Path) -> None:
    """B01: a warm and a cold worker, both ways, never see the new bytes, which nobody asked for."""
    with both_ways(shared) as warm, both_ways(shared) as cold:
        warm[0].register("t1", t1)
        held = [shelf.acquire("t1", timeout=20) for shelf in warm]
        eventually(lambda: warm[0].get("t1").digest != "", "the digest is known")
        t1.write_bytes(safetensors_bytes(TWOS))
        with pytest.raises(errors.SourceChanged) as caught:
            warm[0].register("t1", t1)
        assert caught.value.details["expected"] != caught.value.details["actual"]
        again = [shelf.acquire("t1", timeout=20) for shelf in (*warm, *cold)]
        for lease in (*held, *again):
            assert (value_of(lease), lease.generation) == (1, 1)
        assert {lease.transport for lease in again} == {"mapped", "streamed"}
        assert not any(lease.superseded for lease in held)


def test_another_source_under_a_known_id_is_refused_naming_the_field(shared: Daemon, t1: Path, models: Path) -> None:
    """B01, B04: a rejected registration changes nothing and leaves nothing."""
    other = models / "other.safetensors"
    other.write_bytes(safetensors_bytes(ONES))
    with shared.connect() as shelf:
        known = shelf.register("t1", t1)
        with pytest.raises(errors.SpecMismatch, match=r"source\.uri"):
            shelf.register("t1", other)
        with pytest.raises(errors.SpecMismatch, match=r"expected_digest"):
            shelf.register("t1", t1, digest=f"blake3:{'0' * 64}")
        assert shelf.get("t1") == known
        assert shared.segments() == []


def test_an_equal_registration_changes_nothing_and_loads_nothing(shared: Daemon, t1: Path) -> None:
    """B01, B04."""
    with shared.connect() as shelf:
        known = shelf.register("t1", t1)
        assert shelf.register("t1", f"file://{t1}") == known
        with shelf.acquire("t1", timeout=20) as lease:
            segments = shared.segments()
            shelf.register("t1", t1)
            assert shelf.get("t1").state is warmshelf.ArtifactState.READY
            with shelf.acquire("t1", timeout=20) as again:
                assert again.generation == lease.generation == 1
            assert shared.segments() == segments
        assert [a.artifact_id for a in shelf.list()] == ["t1"]


@pytest.mark.parametrize("moved", [False, True], ids=["same file rewritten", "another file"])
def test_replace_makes_generation_2_while_old_leases_keep_generation_1(
    shared: Daemon, t1: Path, models: Path, moved: bool
) -> None:
    """B01: a worker can tell that its copy is old, and no answer mixes two generations."""
    second = models / "second.safetensors" if moved else t1
    with both_ways(shared) as warm, both_ways(shared) as cold:
        warm[0].register("t1", t1)
        old = [shelf.acquire("t1", timeout=20) for shelf in warm]
        second.write_bytes(safetensors_bytes(TWOS))
        assert warm[0].register("t1", second, replace=True).generation == 2
        for shelf in (*warm, *cold):
            with shelf.acquire("t1", timeout=20) as lease:
                assert (value_of(lease), lease.generation, lease.superseded) == (2, 2, False)
        assert [(value_of(lease), lease.generation) for lease in old] == [(1, 1)] * 2
        eventually(lambda: all(lease.superseded for lease in old), "the warm workers were told")
        assert len(shared.segments()) == 2
        for lease in old:
            lease.release()
        eventually(lambda: len(shared.segments()) == 1, "the old generation went with its last lease")


def test_a_stream_that_runs_across_a_replacement_ends_with_the_old_bytes(shared: Daemon, models: Path) -> None:
    """B01: one fetch running across the change."""
    source = models / "t1.safetensors"
    source.write_bytes(safetensors_bytes({"w": ("U8", (8 << 20,), pattern(1, 8 << 20))}))
    with Plain(shared.tcp_address) as plain, warmshelf.connect(shared.tcp_address) as worker:
        plain.register("t1", source)
        lease_id = plain.acquire("t1").lease.lease_id
        whole = b"".join(chunk.data for chunk in plain.read(lease_id))
        stream = plain.read(lease_id)
        parts = [next(stream).data]
        source.write_bytes(safetensors_bytes({"w": ("U8", (8 << 20,), pattern(2, 8 << 20))}))
        assert plain.register("t1", source, replace=True).generation == 2
        with worker.acquire("t1", timeout=20) as lease:
            assert lease["w"] == pattern(2, 8 << 20)
            parts += [chunk.data for chunk in stream]
            assert b"".join(parts) == whole
            resumed = b"".join(chunk.data for chunk in plain.read(lease_id, offset=CHUNK))
            assert resumed == whole[CHUNK:]


def test_one_directory_under_two_ids_takes_its_room_once_and_each_lives_alone(shared: Daemon, models: Path) -> None:
    """B04: with the directory of a base; at the end the arena is as at the start."""
    tensors = write_model(models / "base" / "model.safetensors", 3)
    (models / "base" / "config.json").write_text('{"architectures": ["Tiny"]}')
    with shared.connect() as shelf:
        for artifact_id in ("a", "b"):
            shelf.register(artifact_id, models / "base")
            shelf.acquire(artifact_id, timeout=20).release()
        (size_bytes,) = {artifact.size_bytes for artifact in shelf.list()}
        eventually(lambda: shared.arena_bytes() == size_bytes, "both share one segment")
        shelf.register("a", models / "base")
        assert shared.arena_bytes() == size_bytes
        shelf.remove("a")
        with shelf.acquire("b", timeout=20, resident_only=True) as lease:
            assert read_all(lease) == tensors
            assert lease.config == {"architectures": ["Tiny"]}
        with pytest.raises(errors.ArtifactNotFound):
            shelf.acquire("a", timeout=5)
        shelf.remove("b")
        eventually(lambda: shared.arena_bytes() == 0, "all bytes are given back")


def test_an_id_that_is_not_resident_is_refused_if_nothing_may_be_loaded(shared: Daemon, t1: Path) -> None:
    with shared.connect() as shelf:
        shelf.register("t1", t1)
        with pytest.raises(errors.NotResident):
            shelf.acquire("t1", timeout=5, resident_only=True)
        assert shared.segments() == []
        assert shelf.get("t1").state is warmshelf.ArtifactState.REGISTERED
        shelf.acquire("t1", timeout=20).release()
        shelf.acquire("t1", timeout=5, resident_only=True).release()


HOSTILE_IDS = [
    *("", " ", ".", "..", "/", "/etc/passwd", "../../etc", "a/../b", "a//b", "a/", "a\nb", "a\0b", "a b"),
    *("\u0430", "e\u0301", "a" * 256, "a%2Fb", ".hidden", "-rf", "a\\b", "{id}", "a?b", "a*"),
]


@pytest.mark.parametrize("artifact_id", HOSTILE_IDS, ids=ascii)
def test_a_hostile_id_is_refused_by_the_daemon_and_by_the_library(shared: Daemon, t1: Path, artifact_id: str) -> None:
    """B05, B54: the same rule on both sides; nothing is cleaned, folded or made a path."""
    with Plain(shared.tcp_address) as plain, refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ID"):
        plain.register(artifact_id, t1)
    with shared.connect() as shelf:
        with pytest.raises(errors.InvalidId):
            shelf.register(artifact_id, t1)
        assert shelf.list() == []


def test_ids_that_look_alike_have_their_own_bytes(shared: Daemon, models: Path) -> None:
    """B05: case, slash, at sign and colon are kept, mapped and streamed."""
    ids = ["org/a", "org_a", "Org/A", "org/a@v2", "a:b", "a+b", "a-b", "a.b", "a" * 255]
    for number, artifact_id in enumerate(ids):
        (models / f"{number}.safetensors").write_bytes(safetensors_bytes(filled(number)))
        with shared.connect() as shelf:
            shelf.register(artifact_id, models / f"{number}.safetensors")
    with both_ways(shared) as shelves:
        for shelf in shelves:
            for number, artifact_id in enumerate(ids):
                with shelf.acquire(artifact_id, timeout=20) as lease:
                    assert value_of(lease) == number
        assert sorted(a.artifact_id for a in shelves[0].list()) == sorted(ids)
