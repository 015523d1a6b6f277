"""Artifacts in Redis, in our own layout: from ``warmshelf push --store`` to bytes in a worker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import warmshelf
from kit.adapters import CONFIG, adapter_files, pair
from kit.models import pattern, safetensors_bytes, write_model
from kit.processes import Daemon, eventually, read_all
from kit.redis_server import RedisServer, redis_server
from warmshelf import ArtifactState, errors
from warmshelf.redis_layout import chunk_key, manifest_key
from warmshelf.redis_store import write_directory

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as it:
        yield it


@pytest.fixture
def daemon_of_redis(daemon: Daemon, server: RedisServer) -> Iterator[Daemon]:
    yield daemon.start("--budget", "64MiB", "--allow-source", server.uri("models"))
    with server.client() as client:
        client.flushall()


def write_adapter(directory: Path) -> dict[str, bytes]:
    """Write an adapter of more than one chunk and return its tensors."""
    directory.mkdir()
    shapes = {**pair("q_proj", rank=8, columns=70_000, rows=60_000), **pair("k_proj", rank=8)}
    files = adapter_files(shapes, r=8)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    from safetensors import deserialize  # noqa: PLC0415

    return {name: bytes(row["data"]) for name, row in deserialize(files["adapter_model.safetensors"])}


def push(daemon: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "warmshelf.cli", "--address", daemon.address, "push", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_pushed_adapter_comes_back_by_its_id_alone(
    daemon_of_redis: Daemon, server: RedisServer, tmp_path: Path
) -> None:
    """Pushed, mapped, streamed, evicted, and after a restart without its directory: always the same bytes."""
    daemon, tensors = daemon_of_redis, write_adapter(tmp_path / "adapter")
    config = (tmp_path / "adapter" / CONFIG).read_bytes()
    done = push(daemon, "org/a:1", str(tmp_path / "adapter"), "--store", server.uri("models"), "--output", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["spec"]["source"]["uri"] == server.uri("models/org/a%3A1")
    for path in (tmp_path / "adapter").iterdir():
        path.unlink()
    with daemon.connect() as shelf, warmshelf.connect(daemon.tcp_address) as far:
        for attempt in (shelf, far):
            with attempt.acquire("org/a:1", timeout=20) as lease:
                assert lease.transport == ("mapped" if attempt is shelf else "streamed")
                assert read_all(lease) == tensors
                assert lease.config_json == config
            shelf.evict("org/a:1")
        digest = shelf.get("org/a:1").digest
    daemon.kill()
    daemon.start("--budget", "64MiB", "--allow-source", server.uri("models"))
    with daemon.connect() as shelf, shelf.acquire("org/a:1", timeout=20) as lease:
        assert read_all(lease) == tensors
        assert lease.artifact.digest == digest
