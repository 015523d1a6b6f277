"""What only the registry in a file does."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from warmshelf.errors import DaemonInUse, Internal, InvalidConfig, RegistryUnavailable
from warmshelfd.registry.base import Registration
from warmshelfd.registry.open import open_registry, sqlite_path
from warmshelfd.registry.sqlite import SqliteRegistry


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "registry.sqlite"


async def fill(path: Path, *registrations: Registration) -> None:
    registry = SqliteRegistry(str(path))
    for registration in registrations:
        await registry.put(registration)
    await registry.close()


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


async def test_file_and_new_directories_are_for_their_owner_only(tmp_path: Path, full: Registration) -> None:
    path = tmp_path / "state" / "warmshelf" / "registry.sqlite"
    old_umask = os.umask(0)
    try:
        registry = SqliteRegistry(str(path))
        await registry.put(full)
    finally:
        os.umask(old_umask)
    modes = {p.name: p.stat().st_mode & 0o777 for p in [path.parent.parent, path.parent, *path.parent.iterdir()]}
    await registry.close()
    assert modes == {
        "state": 0o700, "warmshelf": 0o700, "registry.sqlite": 0o600, "registry.sqlite-wal": 0o600
    }  # fmt: skip


async def test_a_second_opener_is_refused_while_the_first_lives(path: Path) -> None:
    first = SqliteRegistry(str(path))
    with pytest.raises(DaemonInUse, match=r"registry\.sqlite"):
        SqliteRegistry(str(path))
    opener = "import sys; from warmshelfd.registry.sqlite import SqliteRegistry; SqliteRegistry(sys.argv[1])"
    other = subprocess.run([sys.executable, "-c", opener, str(path)], capture_output=True, text=True, check=False)
    assert "DAEMON_IN_USE" in other.stderr
    await first.close()
    await SqliteRegistry(str(path)).close()


async def test_a_newer_schema_is_refused_and_the_file_left_as_it_was(path: Path, full: Registration) -> None:
    await fill(path, full)
    execute(path, "PRAGMA user_version = 2")
    before = path.read_bytes()
    with pytest.raises(InvalidConfig, match="schema 2, this one knows up to 1") as caught:
        SqliteRegistry(str(path))
    assert caught.value.details["path"] == str(path)
    assert path.read_bytes() == before


async def test_a_file_that_is_no_database_is_refused_by_its_path_and_left_as_it_was(path: Path) -> None:
    path.write_bytes(b"no database, but somebody's notes\n" * 99)
    with pytest.raises(InvalidConfig, match=r"registry\.sqlite is not usable.*move it away"):
        SqliteRegistry(str(path))
    assert path.read_bytes().startswith(b"no database")


async def test_a_damaged_file_is_refused_by_its_path_and_left_as_it_was(path: Path, full: Registration) -> None:
    await fill(path, *(replace(full, artifact_id=f"a{n}") for n in range(100)))
    damaged = bytearray(path.read_bytes())
    damaged[4096:] = os.urandom(len(damaged) - 4096)
    path.write_bytes(damaged)
    with pytest.raises(InvalidConfig, match=r"registry\.sqlite is (damaged|not usable)"):
        SqliteRegistry(str(path))
    assert path.read_bytes() == damaged


async def test_a_database_of_another_program_is_refused(path: Path) -> None:
    execute(path, "CREATE TABLE notes (text)")
    with pytest.raises(InvalidConfig, match="no registry"):
        SqliteRegistry(str(path))


async def test_a_path_that_cannot_be_opened_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "registry.sqlite", Path("/proc/none/registry.sqlite")):
        with pytest.raises(InvalidConfig, match=str(path)):
            SqliteRegistry(str(path))


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE registrations SET record = '{}' WHERE artifact_id = 'b'",
        "UPDATE registrations SET record = CAST(x'ff00' AS TEXT) WHERE artifact_id = 'b'",
        "UPDATE registrations SET record = x'ff00' WHERE artifact_id = 'b'",
        "UPDATE registrations SET record = 17 WHERE artifact_id = 'b'",
        "UPDATE registrations SET record = replace(record, '\"b\"', '\"a\"') WHERE artifact_id = 'b'",
    ],
    ids=["empty", "not utf-8", "blob", "number", "another's"],
)
async def test_a_record_that_cannot_be_read_is_left_out_and_named_in_the_log(
    path: Path, full: Registration, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    a, b, c = (replace(full, artifact_id=artifact_id) for artifact_id in "abc")
    await fill(path, a, b, c)
    execute(path, damage)
    registry = SqliteRegistry(str(path))
    with caplog.at_level(logging.WARNING):
        assert await registry.load_all() == [a, c]
    await registry.close()
    assert "record of 'b' is left out" in caplog.text


async def test_a_store_that_fails_says_so_and_serves_again_when_it_can(path: Path, full: Registration) -> None:
    registry = SqliteRegistry(str(path))
    await registry.put(full)
    await registry._do(lambda connection: connection.execute("PRAGMA max_page_count = 1"))
    with pytest.raises(RegistryUnavailable, match="the registry: near"):
        await registry._do(lambda connection: connection.execute("nonsense"))
    large = replace(full, artifact_id="large", fingerprint="x" * 100_000)
    with pytest.raises(RegistryUnavailable, match="the registry: database or disk is full"):
        await registry.put(large)
    await registry._do(lambda connection: connection.execute("PRAGMA max_page_count = 100000"))
    await registry.put(large)
    assert await registry.load_all() == [full, large]
    await registry.close()


async def test_what_waits_while_one_commit_is_under_way_is_committed_together(path: Path, full: Registration) -> None:
    registry = SqliteRegistry(str(path))
    statements: list[str] = []
    gate = threading.Event()

    def trace_and_block(connection: sqlite3.Connection) -> None:
        connection.set_trace_callback(statements.append)
        gate.wait()

    calls = [registry._do(trace_and_block), *(registry.put(replace(full, artifact_id=f"a{n}")) for n in range(200))]
    tasks = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0)  # each has been called now
    gate.set()
    await asyncio.gather(*tasks)
    await registry.close()
    assert statements.count("COMMIT") in (1, 2)  # of the first call with or without those behind it, and of the rest


async def test_a_registration_that_would_not_be_read_back_is_refused_and_not_kept(
    path: Path, full: Registration
) -> None:
    registry = SqliteRegistry(str(path))
    with pytest.raises(Internal, match="generation"):
        await registry.put(replace(full, generation=-1))
    assert await registry.load_all() == []
    await registry.close()


def test_a_loop_that_is_gone_leaves_the_registry_usable(path: Path, full: Registration) -> None:
    registry = SqliteRegistry(str(path))
    gate = threading.Event()
    with closing(asyncio.new_event_loop()) as loop:
        tasks = [loop.create_task(call) for call in (registry._do(lambda _: gate.wait()), registry.put(full))]
        loop.run_until_complete(asyncio.sleep(0))  # each has been called now
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks))
    gate.set()

    async def load() -> list[Registration]:
        try:
            return await registry.load_all()
        finally:
            await registry.close()

    assert asyncio.run(load()) == [full]


@pytest.mark.parametrize(
    ("uri", "path"),
    [("sqlite:///var/lib/registry.sqlite", "/var/lib/registry.sqlite"), ("sqlite:///a%20b c?d", "/a%20b c?d")],
)
def test_an_sqlite_uri_names_an_absolute_path_as_it_stands(uri: str, path: str) -> None:
    assert sqlite_path(uri) == path


@pytest.mark.parametrize(
    "uri", ["sqlite://", "sqlite:///", "sqlite://host/x", "sqlite:x", "/x", "", "etcd://:SECRET@h"]
)
def test_another_uri_is_refused_with_what_is_right_and_without_secrets(uri: str) -> None:
    """B33: a password in a URI is in no error."""
    with pytest.raises(InvalidConfig, match="sqlite:///") as caught:
        open_registry(uri)
    assert "SECRET" not in str(caught.value)
