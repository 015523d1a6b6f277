"""Daemons, of a test's own or shared, and workers."""

from __future__ import annotations

import gc
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.processes import Daemon, Worker, eventually
from kit.scrape import HTTP, Pages, pages_of

BUDGET = "256MiB"


@pytest.fixture
def arena_dir() -> Iterator[Path]:
    with _arena() as path:
        yield Path(path)


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
    return daemon.start("--budget", BUDGET)


@pytest.fixture
def served(daemon: Daemon) -> Daemon:
    """A daemon with the operators' pages, and room for three models of 8 MiB."""
    return daemon.start("--budget", "31MiB", "--adapter-floor", "0", *HTTP)


@pytest.fixture
def pages(served: Daemon) -> Pages:
    return pages_of(served)


@pytest.fixture(scope="session")
def _one_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with _arena() as arena:
        it = Daemon(tmp_path_factory.mktemp("shared"), Path(arena), tmp_path_factory.getbasetemp())
        it.start("--budget", BUDGET)
        yield it
        assert it.kill(signal.SIGTERM) == 0


@pytest.fixture
def shared(_one_daemon: Daemon) -> Iterator[Daemon]:
    """A daemon that serves, with a budget of 256 MiB, and that tests use one after another.

    For tests that do nothing to the daemon itself. Each must leave nothing behind once
    its artifacts are removed: no lease, no byte, no bug in the log.
    """
    yield _one_daemon
    with _one_daemon.connect() as shelf:
        for artifact in shelf.list():
            shelf.remove(artifact.artifact_id)
        eventually(lambda: not shelf.leases(), "every lease has ended")
    gc.collect()  # a test's frames may be part of a cycle, and with them what it had mapped
    eventually(lambda: _one_daemon.arena_bytes() == 0, "every byte is given back")
    _one_daemon.check()


@pytest.fixture
def start_worker() -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def start(code: str, *arguments: str) -> Worker:
        workers.append(Worker(code, *arguments))
        return workers[-1]

    yield start
    for worker in workers:
        worker.end()


def _arena() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm", ignore_cleanup_errors=True)
