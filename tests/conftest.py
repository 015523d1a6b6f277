"""What holds for all tests: a busy machine is no failure of what is tested; servers and daemons that several share."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from kit.processes import Daemon, Worker
from kit.weed import Bucket, Weed, weed

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weed]:
    """A real S3 server, one for all tests; each takes a bucket of its own."""
    with weed(tmp_path_factory.mktemp("weed")) as it:
        yield it


@pytest.fixture
def bucket(s3: Weed, request: pytest.FixtureRequest) -> Bucket:
    """An empty bucket."""
    return s3.bucket(f"b{abs(hash(request.node.nodeid)) % 10**12}")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Where a daemon's sources lie."""
    path = tmp_path / "models"
    path.mkdir()
    return path


@pytest.fixture
def arena_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm", ignore_cleanup_errors=True) as path:
        yield Path(path)


@pytest.fixture
def daemon(request: pytest.FixtureRequest, tmp_path: Path, arena_dir: Path, models: Path) -> Iterator[Daemon]:
    """A daemon that is not started yet; of a module's own kind, if it names one as ``DAEMON``.

    At the end it must stop well, with no bug in its log and nothing left over.
    """
    kind: type[Daemon] = getattr(request.module, "DAEMON", Daemon)
    it = kind(tmp_path, arena_dir, models)
    yield it
    if it.process is not None:
        it.kill(signal.SIGTERM)
        it.check()


@pytest.fixture
def start_worker() -> Iterator[Callable[..., Worker]]:
    """Starts workers that end with the test."""
    workers: list[Worker] = []

    def start(code: str, *arguments: str) -> Worker:
        workers.append(Worker(code, *arguments))
        return workers[-1]

    yield start
    for worker in workers:
        worker.end()
