"""A shelf three ways: on a daemon and mapped, on a daemon and streamed, and without a daemon."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import warmshelf
from kit.processes import Daemon, eventually
from kit.shelf_sources import write_adapter, write_base
from warmshelf.testing import FakeShelf

BUDGET_BYTES = 16 << 20
HOLDER = "a worker"


@pytest.fixture
def base(models: Path) -> Path:
    return write_base(models / "base")


@pytest.fixture
def adapter(models: Path) -> Path:
    return write_adapter(models / "adapter")


@pytest.fixture(scope="session")
def _daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm", ignore_cleanup_errors=True) as arena:
        it = Daemon(tmp_path_factory.mktemp("contract"), Path(arena), tmp_path_factory.getbasetemp())
        it.start("--budget", str(BUDGET_BYTES), "--adapter-floor", "0%")
        yield it
        assert it.kill(signal.SIGTERM) == 0
        it.check()


@pytest.fixture(params=["mapped", "streamed", "fake"])
def shelf(request: pytest.FixtureRequest) -> Iterator[warmshelf.Shelf]:
    """A shelf on which nothing is registered, with a budget of 16 MiB."""
    if request.param == "fake":
        with FakeShelf(budget_bytes=BUDGET_BYTES, holder=HOLDER) as fake:
            yield fake
        return
    daemon = request.getfixturevalue("_daemon")
    address = daemon.address if request.param == "mapped" else daemon.tcp_address
    with warmshelf.connect(address, holder=HOLDER, timeout=20) as it:
        yield it
    _clean(daemon)


def _clean(daemon: Daemon) -> None:
    """Remove everything; then nothing is left, whatever the test did."""
    with daemon.connect() as shelf:
        for artifact in shelf.list():
            shelf.remove(artifact.artifact_id)
        eventually(lambda: not shelf.leases(), "every lease has ended")
    eventually(lambda: daemon.segments() == [], "every segment is gone")
    daemon.check()
