"""The whole path: from a file on disk to tensors in workers, and across the daemon's death."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import warmshelf
from kit.models import write_model
from kit.processes import Daemon, read_all
from warmshelf import errors


def test_a_registered_file_is_acquired_mapped_and_streamed_with_the_same_bytes(shared: Daemon, models: Path) -> None:
    tensors = write_model(models / "a.safetensors", 1)
    with shared.connect() as shelf:
        artifact = shelf.register("org/a", f"file://{models}/a.safetensors")
        assert artifact.inspection is not None
        assert artifact.inspection.tensor_count == len(tensors)
        with shelf.acquire("org/a", timeout=20) as lease:
            assert lease.transport == "mapped"
            assert read_all(lease) == tensors
    with warmshelf.connect(shared.tcp_address) as shelf, shelf.acquire("org/a", timeout=20) as lease:
        assert lease.transport == "streamed"
        assert read_all(lease) == tensors


def test_an_unknown_id_is_not_found(shared: Daemon) -> None:
    with shared.connect() as shelf, pytest.raises(errors.ArtifactNotFound):
        shelf.acquire("nobody/knows", timeout=5)


def test_after_a_kill_the_bytes_are_served_again_without_the_source(daemon: Daemon, models: Path) -> None:
    """B53, B39 (c): registered IDs and sealed bytes outlive the daemon."""
    tensors = write_model(models / "a.safetensors", 1)
    daemon.start()
    with daemon.connect() as shelf:
        shelf.register("org/a", f"file://{models}/a.safetensors")
        lease = shelf.acquire("org/a", timeout=20)
        assert daemon.kill(signal.SIGKILL) == -signal.SIGKILL
        (models / "a.safetensors").unlink()
        daemon.start()
        assert read_all(lease) == tensors  # the old mapping
        again = shelf.acquire("org/a", timeout=20)
        assert again.transport == "mapped"
        assert read_all(again) == tensors
        assert shelf.get("org/a").generation == 1
        lease.release()
        again.release()


def test_an_evicted_artifact_is_loaded_again_by_its_id_alone(shared: Daemon, models: Path) -> None:
    tensors = write_model(models / "a.safetensors", 1)
    with shared.connect() as shelf:
        shelf.register("org/a", f"file://{models}/a.safetensors")
        shelf.acquire("org/a", timeout=20).release()
        assert shelf.evict("org/a").state is warmshelf.ArtifactState.REGISTERED
        assert shared.segments() == []
        with shelf.acquire("org/a", timeout=20) as lease:
            assert read_all(lease) == tensors
            assert lease.generation == 1


def test_a_removed_artifact_is_unknown_at_once_and_its_holder_keeps_the_bytes(shared: Daemon, models: Path) -> None:
    tensors = write_model(models / "a.safetensors", 1)
    with shared.connect() as shelf:
        shelf.register("org/a", f"file://{models}/a.safetensors")
        lease = shelf.acquire("org/a", timeout=20)
        shelf.remove("org/a")
        with pytest.raises(errors.ArtifactNotFound):
            shelf.get("org/a")
        assert read_all(lease) == tensors
        lease.release()
