"""Writing a directory into Redis: all of it or nothing, and errors without what a server said."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from kit.ports import free_port
from kit.redis_faults import Says, Silent
from kit.redis_server import RedisServer, redis_server
from warmshelf import errors, redis_store
from warmshelf.redis_layout import CHUNK_BYTES, manifest_key
from warmshelf.redis_store import StoreAccess, write_directory


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), arguments=["--maxmemory", "24mb"]) as it:
        yield it


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with server.client() as it:
        yield it
        it.flushall()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "written"
    path.mkdir()
    (path / "model.safetensors").write_bytes(os.urandom(9 * CHUNK_BYTES + 1))
    (path / "config.json").write_bytes(b"{}")
    return path


def test_progress_is_told_in_bytes_up_to_the_last(server: RedisServer, client: redis.Redis, directory: Path) -> None:
    told: list[int] = []
    write_directory(server.uri(), "a", directory, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 9 * CHUNK_BYTES + 1 + 2
    assert len(told) == 3


def test_the_directorys_own_files_are_written_also_behind_links(
    server: RedisServer, client: redis.Redis, directory: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere.json").write_bytes(b"[]")
    (directory / "link.json").symlink_to(tmp_path / "elsewhere.json")
    (directory / ".hidden").write_bytes(b"x")
    (directory / "below").mkdir()
    (directory / "below" / "x.json").write_bytes(b"x")
    write_directory(server.uri(), "a", directory)
    files = {key.split(b":")[3] for key in client.keys("*") if not key.endswith(b":manifest")}
    assert files == {b"model.safetensors", b"config.json", b"link.json"}


def test_a_writing_that_fails_leaves_what_was_there(
    server: RedisServer, client: redis.Redis, directory: Path, tmp_path: Path
) -> None:
    """Out of memory in the middle: the first writing is still whole, and of the second nothing stays for good."""
    write_directory(server.uri(), "a", directory)
    before = {key: client.get(key) for key in client.keys("*") if client.type(key) == b"string"}
    (directory / "more.bin").write_bytes(os.urandom(20 * CHUNK_BYTES))
    with pytest.raises(errors.SourceUnavailable, match="out of memory"):
        write_directory(server.uri(), "a", directory)
    assert {key: client.get(key) for key in before} == before
    assert client.hget(manifest_key("a"), "etag").decode() in next(iter(before)).decode()
    left = set(client.keys("*")) - before.keys() - {manifest_key("a")}
    assert all(client.ttl(key) > 0 for key in left)


def test_a_file_that_grows_or_shrinks_while_it_is_read_is_not_written(
    server: RedisServer, client: redis.Redis, directory: Path
) -> None:
    file = directory / "model.safetensors"
    for change in (lambda: file.write_bytes(b"x"), lambda: os.truncate(file, 20 * CHUNK_BYTES)):
        with pytest.raises(errors.SourceChangedDuringLoad, match=r"model\.safetensors"):
            write_directory(server.uri(), "a", directory, progress=lambda _, change=change: change())
        assert not client.exists(manifest_key("a"))
        file.write_bytes(os.urandom(9 * CHUNK_BYTES + 1))


def test_chunks_that_the_server_lost_are_noticed(server: RedisServer, client: redis.Redis, directory: Path) -> None:
    """As when it evicts: no manifest is written over a hole."""

    def lose(_: int) -> None:
        keys = client.keys("*model.safetensors:0")
        if keys:
            client.delete(*keys)

    with pytest.raises(errors.SourceUnavailable, match="lost chunks"):
        write_directory(server.uri(), "a", directory, progress=lose)
    assert not client.exists(manifest_key("a"))


@pytest.mark.parametrize("path", ["missing", "empty"])
def test_a_directory_that_is_not_there_or_has_no_files_is_refused(
    path: str, server: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(errors.InvalidRequest, match=path):
        write_directory(server.uri(), "a", tmp_path / path)


def test_what_the_server_says_is_not_repeated(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B33: servers repeat the arguments of commands that they do not know."""
    monkeypatch.setattr(redis_store, "SOCKET_SECONDS", 0.2)
    monkeypatch.setenv("WARMSHELF_STORE_PASSWORD", "canary-31")
    for server in (Says(b"-ERR unknown command `HELLO`, with args beginning with: `canary-31`\r\n" * 9), Silent()):
        with server, pytest.raises(errors.SourceUnavailable) as caught:
            write_directory(f"redis://127.0.0.1:{server.port}/0", "a", directory)
        assert "canary-31" not in f"{caught.value} {caught.value.details}"
        assert f"127.0.0.1:{server.port}" in caught.value.message


def test_a_wrong_password_names_the_variables(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    with (
        redis_server(tmp_path / "redis", password="right") as server,
        pytest.raises(errors.SourceUnavailable, match="WARMSHELF_STORE_PASSWORD"),
    ):
        write_directory(server.uri(), "a", directory, access=StoreAccess(password="wrong"))


def test_a_server_that_is_not_there_is_unavailable(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.SourceUnavailable, match="cannot be reached"):
        write_directory(f"redis://127.0.0.1:{free_port()}/0", "a", directory)


def test_without_the_library_the_error_names_the_extra(
    directory: Path, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(errors.InvalidRequest, match=r"pip install 'warmshelf\[redis\]'"):
        write_directory(server.uri(), "a", directory)
