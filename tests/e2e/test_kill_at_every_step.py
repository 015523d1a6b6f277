"""SIGKILL at every step of a load, of an eviction, of a removal: nothing wrong, nothing lost, nothing left behind.

Each is looked at closely here; ``tests/killing`` goes to every failpoint under load."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from kit.models import write_model
from kit.plain import Plain, dies
from kit.processes import Daemon, read_all
from warmshelf import errors
from warmshelfd import failpoints

URI = "file://{models}/a.safetensors"
ALIVE_LOADED = {"load.published", "load.ready", "load.landed"}
"""Steps of a load after which the next daemon finds the segment and need not load it again."""

OTHER_LOADS = {"load.aborted", "load.shared"}
"""Not on the way of a load that goes well and is the first of its content."""

LOAD_STEPS = sorted(name for name in failpoints.NAMES - OTHER_LOADS if name.startswith("load."))


@pytest.mark.parametrize("step", [*LOAD_STEPS, "load.part=2*kill"])
def test_killed_during_a_load_the_next_daemon_serves_the_right_bytes(daemon: Daemon, models: Path, step: str) -> None:
    """B39 (c): the state "loading" of a dead daemon keeps nobody from loading."""
    tensors = write_model(models / "a.safetensors", 1, size=34 << 20)
    daemon.start(failpoints=step if "=" in step else f"{step}=kill")
    with daemon.connect() as shelf:
        shelf.register("org/a", URI.format(models=models))
    with Plain(daemon.address) as plain, dies():
        plain.acquire("org/a")
    assert daemon.wait() == -signal.SIGKILL
    daemon.start()
    with daemon.connect() as shelf:
        assert daemon.leftovers() == []
        was_ready = shelf.get("org/a").state.value == "ready"
        assert was_ready is (step in ALIVE_LOADED)
        with shelf.acquire("org/a", timeout=20) as lease:
            assert read_all(lease) == tensors
            assert lease.generation == 1
        assert len(daemon.segments()) == 1


@pytest.mark.parametrize("step", ["register.inspected", "register.recorded"])
def test_killed_during_a_registration_the_id_is_known_or_unknown_and_can_be_registered(
    daemon: Daemon, models: Path, step: str
) -> None:
    tensors = write_model(models / "a.safetensors", 1)
    daemon.start(failpoints=f"{step}=kill")
    with Plain(daemon.address) as plain, dies():
        plain.register("org/a", models / "a.safetensors")
    assert daemon.wait() == -signal.SIGKILL
    daemon.start()
    with daemon.connect() as shelf:
        assert [a.artifact_id for a in shelf.list()] == (["org/a"] if step == "register.recorded" else [])
        shelf.register("org/a", URI.format(models=models))
        with shelf.acquire("org/a", timeout=20) as lease:
            assert read_all(lease) == tensors


@pytest.mark.parametrize("step", ["evict.chosen", "evict.unlinked"])
def test_killed_during_an_eviction_the_id_still_works(daemon: Daemon, models: Path, step: str) -> None:
    tensors = write_model(models / "a.safetensors", 1)
    daemon.start(failpoints=f"{step}=kill")
    with daemon.connect() as shelf:
        shelf.register("org/a", URI.format(models=models))
        shelf.acquire("org/a", timeout=20).release()
    with Plain(daemon.address) as plain, dies():
        plain.evict("org/a")
    assert daemon.wait() == -signal.SIGKILL
    daemon.start()
    with daemon.connect() as shelf, shelf.acquire("org/a", timeout=20) as lease:
        assert read_all(lease) == tensors


def test_killed_during_a_removal_the_id_stays_unknown_and_its_bytes_are_gone(daemon: Daemon, models: Path) -> None:
    write_model(models / "a.safetensors", 1)
    daemon.start(failpoints="remove.recorded=kill")
    with daemon.connect() as shelf:
        shelf.register("org/a", URI.format(models=models))
        shelf.acquire("org/a", timeout=20).release()
    with Plain(daemon.address) as plain, dies():
        plain.remove("org/a")
    assert daemon.wait() == -signal.SIGKILL
    daemon.start()
    with daemon.connect() as shelf:
        assert list(shelf.list()) == []
        assert daemon.segments() == []


def test_killed_again_and_again_while_adopting_the_whole_set_is_there_in_the_end(daemon: Daemon, models: Path) -> None:
    expected = {}
    daemon.start()
    with daemon.connect() as shelf:
        for i in range(4):
            expected[f"m{i}"] = write_model(models / f"{i}.safetensors", i)
            shelf.register(f"m{i}", f"file://{models}/{i}.safetensors")
            shelf.acquire(f"m{i}", timeout=20).release()
    daemon.kill()
    for hit in (1, 3, 4):
        daemon.start(failpoints=f"adopt.segment={hit}*kill", wait=False)
        assert daemon.wait() == -signal.SIGKILL
    for i in range(4):
        (models / f"{i}.safetensors").unlink()
    daemon.start()
    with daemon.connect() as shelf:
        for artifact_id, tensors in expected.items():
            with shelf.acquire(artifact_id, timeout=20, resident_only=True) as lease:
                assert read_all(lease) == tensors


def test_killed_in_mid_stream_the_worker_gets_the_whole_artifact_from_the_next_daemon(
    daemon: Daemon, models: Path
) -> None:
    """B53: a stream that the daemon's death cut short is never a shorter tensor set."""
    tensors = write_model(models / "a.safetensors", 1, size=24 << 20)
    daemon.start()
    with daemon.connect(arena="/nonexistent") as shelf:
        shelf.register("org/a", URI.format(models=models))
        shelf.acquire("org/a", timeout=20).release()
        daemon.kill()
        daemon.start(failpoints="stream.chunk=9*kill")
        with pytest.raises(errors.WarmshelfError) as caught:
            shelf.acquire("org/a", timeout=2)
        assert caught.value.retryable
        assert daemon.wait() == -signal.SIGKILL
        daemon.start()
        with shelf.acquire("org/a", timeout=20) as lease:
            assert lease.transport == "streamed"
            assert read_all(lease) == tensors
