"""A daemon of each test's own, checked at the end."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.processes import Daemon, Worker


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "models"
    path.mkdir()
    return path


@pytest.fixture
def daemon(tmp_path: Path, models: Path) -> Iterator[Daemon]:
    """A daemon that is not started yet; at the end it must stop well, with no bug in its log and nothing left over."""
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm", ignore_cleanup_errors=True) as arena:
        it = Daemon(tmp_path, Path(arena), models)
        yield it
        if it.process is not None:
            it.kill(signal.SIGTERM)
            it.check()


@pytest.fixture
def start_worker() -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def start(code: str, *arguments: str) -> Worker:
        workers.append(Worker(code, *arguments))
        return workers[-1]

    yield start
    for worker in workers:
        worker.end()
