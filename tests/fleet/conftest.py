"""A Redis of each test's own, and the fleet on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.fleet import Fleet, fleet_on
from kit.redis_server import RedisServer, redis_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    directory = tmp_path / "redis"
    directory.mkdir()
    with redis_server(directory) as it:
        yield it


@pytest.fixture
def fleet(server: RedisServer, tmp_path: Path) -> Iterator[Fleet]:
    """No node yet: a test makes those that it wants."""
    with fleet_on(server, tmp_path) as it:
        yield it
