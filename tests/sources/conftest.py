"""An allowed directory, one beside it that is not allowed, and a check that nothing stays open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmshelfd.sources.file import FileOpener


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) <= before  # what other tests left may have been closed meanwhile


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "allowed"
    path.mkdir()
    return path


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.mkdir()
    return path


@pytest.fixture
def opener(root: Path) -> FileOpener:
    return FileOpener([str(root)])
