"""The registry's file goes, or another comes in its place, while the daemon has it open."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kit.processes import eventually
from warmshelf.errors import RegistryUnavailable
from warmshelfd.registry import sqlite
from warmshelfd.registry.base import Registration
from warmshelfd.registry.sqlite import SqliteRegistry


def delete_file(path: Path) -> None:
    path.unlink()


def delete_log(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


def delete_directory(path: Path) -> None:
    shutil.rmtree(path.parent)


def replace_log(path: Path) -> None:
    log = path.with_name(f"{path.name}-wal")
    log.rename(path.with_name("moved"))
    log.write_bytes(b"something else")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "registry.sqlite"


async def kept(path: Path) -> list[Registration]:
    registry = SqliteRegistry(str(path))
    try:
        return await registry.load_all()
    finally:
        await registry.close()


@pytest.mark.parametrize("lose", [delete_file, delete_log, delete_directory, replace_log], ids=lambda f: f.__name__)
async def test_a_file_that_was_deleted_is_made_anew_with_all_it_held(
    path: Path, full: Registration, lose: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    registry = SqliteRegistry(str(path))
    await registry.put(full)
    lose(path)
    other = replace(full, artifact_id="other")
    with caplog.at_level(logging.ERROR):
        await registry.put(other)
        await registry.put(replace(full, artifact_id="third"))
    assert [r.getMessage() for r in caplog.records] == [f"registry {path} was deleted: made anew with its 1 records"]
    await registry.delete("third")
    await registry.close()
    assert await kept(path) == [full, other]
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_file_that_was_deleted_is_missed_also_while_nothing_is_written(
    path: Path, full: Registration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOOK_SECONDS", 0.02)
    registry = SqliteRegistry(str(path))
    await registry.put(full)
    path.unlink()
    eventually(path.exists, "it is there again")
    await registry.close()
    assert await kept(path) == [full]


async def test_another_file_in_its_place_is_not_touched_and_nothing_is_recorded(path: Path, full: Registration) -> None:
    registry = SqliteRegistry(str(path))
    await registry.put(full)
    path.rename(path.with_name("ours"))
    path.write_bytes(b"somebody's backup")
    for _ in range(2):
        with pytest.raises(RegistryUnavailable, match="was replaced while it was in use") as caught:
            await registry.put(replace(full, artifact_id="other"))
        assert str(path.parent) not in str(caught.value)
    assert path.read_bytes() == b"somebody's backup"
    path.with_name("ours").rename(path)
    await registry.put(replace(full, artifact_id="third"))
    await registry.close()
    assert [r.artifact_id for r in await kept(path)] == [full.artifact_id, "third"]


async def test_a_file_that_cannot_be_made_anew_is_tried_again(path: Path, full: Registration) -> None:
    registry = SqliteRegistry(str(path))
    await registry.put(full)
    shutil.rmtree(path.parent)
    path.parent.write_bytes(b"in the way")
    for _ in range(2):
        with pytest.raises(RegistryUnavailable, match="cannot be made anew now"):
            await registry.put(replace(full, artifact_id="other"))
    path.parent.unlink()
    await registry.put(replace(full, artifact_id="third"))
    await registry.close()
    assert [r.artifact_id for r in await kept(path)] == [full.artifact_id, "third"]
