"""A daemon of its own for each test, and workers."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.processes import Daemon, Worker


@pytest.fixture
def arena_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="warmshelf-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "models"
    path.mkdir()
    return path


@pytest.fixture
def daemon(tmp_path: Path, arena_dir: Path, models: Path) -> Iterator[Daemon]:
    """A daemon that is not started yet."""
    it = Daemon(tmp_path, arena_dir, models)
    yield it
    if it.process is not None:
        it.kill(signal.SIGTERM)
        it.check()


@pytest.fixture
def running(daemon: Daemon) -> Daemon:
    """A daemon that serves, with a budget of 256 MiB; checked at the end."""
    return daemon.start("--budget", "256MiB")


@pytest.fixture
def start_worker() -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def start(code: str, *arguments: str) -> Worker:
        workers.append(Worker(code, *arguments))
        return workers[-1]

    yield start
    for worker in workers:
        worker.end()
