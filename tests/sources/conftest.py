"""An allowed directory, one beside it that is not allowed, and a check that nothing stays open."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from kit.fault_proxy import FaultProxy
from kit.redis_server import RedisServer, redis_server
from kit.weed import ACCESS_KEY, SECRET_KEY, Weed
from warmshelfd.formats.base import FormatLimits
from warmshelfd.formats.tensorizer_pieces import tensor_pieces
from warmshelfd.redis_wire import Patience
from warmshelfd.sources.file import FileOpener
from warmshelfd.sources.redis import RedisOpener
from warmshelfd.sources.settings import SourceSettings


@pytest.fixture(autouse=True)
def nothing_stays_open(request: pytest.FixtureRequest) -> Iterator[None]:
    if {"s3", "daemon"} & set(request.fixturenames):  # connections to S3 are kept for the next source
        yield
        return
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


QUICK = Patience(silence_seconds=0.2, work_seconds=1.0, retry_seconds=0.3)


@pytest.fixture
def redis_opener() -> Callable[..., RedisOpener]:
    """Makes openers of Redis that give up soon."""

    def make(*allowed: str, scheme: str = "redis", settings: Sequence[SourceSettings] = ()) -> RedisOpener:
        find_pieces = partial(tensor_pieces, limits=FormatLimits())
        return RedisOpener(scheme, allowed, settings, find_pieces, QUICK)

    return make


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the server's keys where the settings of ``kit.s3_opening`` look for them."""
    monkeypatch.setenv("KEY_OF_TEST", ACCESS_KEY)
    monkeypatch.setenv("SECRET_OF_TEST", SECRET_KEY)


@pytest.fixture
def proxy(s3: Weed) -> Iterator[FaultProxy]:
    """A proxy before the server, in which faults can be made."""
    with FaultProxy(s3.host, s3.port) as it:
        yield it
