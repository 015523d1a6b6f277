"""The arena is gone when the daemon comes back, as after power loss or with a new pod's volume."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kit.models import write_model
from kit.processes import Daemon, read_all

pytestmark = pytest.mark.nightly


@pytest.fixture
def mounted(tmp_path: Path, models: Path) -> Iterator[Daemon]:
    """A daemon, not started yet, whose arena is a tmpfs of its own."""
    assert os.geteuid() == 0, "mounting needs root"
    arena = tmp_path / "arena"
    arena.mkdir()
    _mount(arena)
    daemon = Daemon(tmp_path, arena, models)
    try:
        yield daemon
        daemon.kill(signal.SIGTERM)
        daemon.check()
    finally:
        with suppress(subprocess.CalledProcessError):
            _unmount(arena)


def test_an_arena_that_was_unmounted_under_a_dead_daemon_comes_back_by_ids_alone(mounted: Daemon, models: Path) -> None:
    """D12: the same client goes on; what is mapped of the old arena keeps its bytes."""
    contents = {name: write_model(models / f"{name}.safetensors", tag) for tag, name in enumerate("abc", 1)}
    mounted.start("--budget", "64MiB")
    with mounted.connect() as shelf:
        for name in contents:
            shelf.register(name, models / f"{name}.safetensors")
        held = shelf.acquire("a")
        assert len(mounted.segments()) == 1
        mounted.kill()
        _unmount(mounted.arena)
        _mount(mounted.arena)
        assert mounted.segments() == []
        mounted.start("--budget", "64MiB")
        for name, tensors in contents.items():
            with shelf.acquire(name, timeout=20) as lease:
                assert read_all(lease) == tensors
        assert read_all(held) == contents["a"]


def _mount(directory: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", directory], check=True, timeout=10)


def _unmount(directory: Path) -> None:
    subprocess.run(["umount", "--lazy", directory], check=True, timeout=10)
