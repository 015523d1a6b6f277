"""Equal content under several IDs is held once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kit.models import write_model
from kit.processes import Daemon, eventually, read_all
from warmshelf import ArtifactState, errors


def _both(shelf, models: Path) -> dict[str, bytes]:  # type: ignore[no-untyped-def]
    tensors = write_model(models / "a.safetensors", 1)
    shutil.copy(models / "a.safetensors", models / "b.safetensors")
    for name in "ab":
        shelf.register(name, f"file://{models}/{name}.safetensors")
        shelf.acquire(name, timeout=20).release()
    return tensors


def test_two_ids_of_one_content_take_room_once_and_each_outlives_the_other(running: Daemon, models: Path) -> None:
    """B04: the books of both layers agree, and at the end everything is back at the start."""
    with running.connect() as shelf:
        tensors = _both(shelf, models)
        eventually(lambda: len(running.segments()) == 1, "both share one segment")
        assert shelf.register("a", f"file://{models}/a.safetensors").state is ArtifactState.READY
        assert len({shelf.get(name).digest for name in "ab"}) == 1
        lease = shelf.acquire("b", timeout=20)
        shelf.remove("a")
        assert read_all(lease) == tensors
        with shelf.acquire("b", timeout=20) as again:
            assert read_all(again) == tensors
        assert len(running.segments()) == 1
        lease.release()
        shelf.remove("b")
        eventually(lambda: running.segments() == [], "nothing is left")


def test_a_lease_on_one_id_does_not_keep_the_other_from_being_evicted(running: Daemon, models: Path) -> None:
    with running.connect() as shelf:
        tensors = _both(shelf, models)
        eventually(lambda: len(running.segments()) == 1, "both share one segment")
        with shelf.acquire("a", timeout=20) as lease:
            assert shelf.evict("b").state is ArtifactState.REGISTERED
            with pytest.raises(errors.Leased):
                shelf.evict("a")
            assert read_all(lease) == tensors
            with shelf.acquire("b", timeout=20) as other:  # shared again, without a second copy
                assert read_all(other) == tensors
            assert len(running.segments()) == 1


def test_shared_bytes_are_adopted_for_every_id(daemon: Daemon, models: Path) -> None:
    daemon.start()
    with daemon.connect() as shelf:
        tensors = _both(shelf, models)
        eventually(lambda: len(daemon.segments()) == 1, "both share one segment")
    daemon.kill()
    for name in "ab":
        (models / f"{name}.safetensors").unlink()
    daemon.start()
    with daemon.connect() as shelf:
        for name in "ab":
            with shelf.acquire(name, timeout=20, resident_only=True) as lease:
                assert read_all(lease) == tensors


def test_the_least_recently_used_goes_with_all_its_ids(daemon: Daemon, models: Path) -> None:
    daemon.start("--budget", "5MiB")
    with daemon.connect() as shelf:
        _both(shelf, models)
        eventually(lambda: len(daemon.segments()) == 1, "both share one segment")
        write_model(models / "big.safetensors", 7, size=4 << 20)
        shelf.register("big", f"file://{models}/big.safetensors")
        shelf.acquire("big", timeout=20).release()
        assert [shelf.get(name).state for name in "ab"] == [ArtifactState.REGISTERED] * 2
        assert len(daemon.segments()) == 1
