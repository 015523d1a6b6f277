"""A daemon that serves."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.processes import Daemon


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm", ignore_cleanup_errors=True) as arena:
        it = Daemon(tmp_path, Path(arena), tmp_path).start("--budget", "256MiB")
        yield it
        assert it.kill(signal.SIGTERM) == 0
        it.check()
