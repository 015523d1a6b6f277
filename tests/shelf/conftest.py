"""A core in the test's own process, whose registry can be made to answer late."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kit.inner_core import InnerCore, SlowToAnswer, write_sources
from warmshelfd import parts


@pytest.fixture
async def core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[InnerCore]:
    monkeypatch.setattr(parts, "open_registry", SlowToAnswer)
    write_sources(tmp_path)
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm") as arena:
        it = InnerCore(tmp_path, arena)
        yield it
        await it.check()
        await it.stop()
