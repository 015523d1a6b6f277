"""Real stores, and daemons that keep what is pushed there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.fleet import Fleet, fleet_on
from kit.redis_server import RedisServer, redis_server
from kit.stores import RedisStore, S3Store, Store


@pytest.fixture(scope="session")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as it:
        yield it


@pytest.fixture
def server(_server: RedisServer) -> Iterator[RedisServer]:
    """An empty Redis server that tests use one after another."""
    yield _server
    with _server.client() as client:
        client.flushall()


@pytest.fixture(params=["s3", "redis"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """An empty store; it runs again at the end."""
    it: Store
    if request.param == "redis":
        it = RedisStore(request.getfixturevalue("server"))
    else:
        it = S3Store(request.getfixturevalue("bucket"))
    yield it
    it.resume()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Nodes that share a registry of the test's own; none yet."""
    directory, root = tmp_path / "redis", tmp_path / "nodes"
    directory.mkdir()
    root.mkdir()
    with redis_server(directory) as registry, fleet_on(registry, root) as it:
        yield it
