"""What two nodes do to one ID in the same moment, with the answer of the store on its way or lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.redis_server import RedisServer
from warmshelf.types import ArtifactSpec, Source, Sync, SyncState
from warmshelfd.registry.base import Heard, Listener, Registration
from warmshelfd.registry.open import open_registry
from warmshelfd.registry.redis_link import Link
from warmshelfd.registry.redis_place import parse_place
from warmshelfd.registry.redis_store import REGISTRATIONS, RedisStore
from warmshelfd.registry.shared import Change, Verdict, essence

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from warmshelf.types import Alias
    from warmshelfd.registry.base import Registry

DIGEST = "blake3:" + "7" * 64


class Hears(Listener):
    """Keeps what it is told of registrations."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []

    async def hear(self, heard: Heard) -> bool:
        self.heard.append(heard)
        return True

    def hear_alias(self, alias: Alias) -> None:
        pass

    def hear_alias_removed(self, name: str) -> None:
        pass

    def note_sync(self, artifact_id: str) -> None:
        pass


class Other:
    """Another node, as far as it writes: with a connection of its own, in the caller's breath."""

    def __init__(self, server: RedisServer) -> None:
        self._store = RedisStore(lambda: None)
        self._wire = Link(parse_place(server.uri()), lambda: ("", b""), None, REGISTRATIONS).connect()

    def close(self) -> None:
        self._wire.close()

    def head(self) -> int:
        self._wire.allow(5.0)
        return self._store.head(self._wire)

    def registration(self, artifact_id: str) -> Registration | None:
        self._wire.allow(5.0)
        (found,) = self._store.get(self._wire, [artifact_id])
        return found.registration if found else None

    def has(self, artifact_id: str) -> bool:
        return self.registration(artifact_id) is not None

    def replaces(self, before: Registration, after: Registration | None) -> None:
        self._wire.allow(5.0)
        change = Change(before.artifact_id, 1, essence(before), "", after)
        (decision,) = self._store.write(self._wire, [change])
        assert decision.verdict is Verdict.WRITE

    def removes_alias(self, alias: Alias) -> None:
        """Remove an alias once the store has it so; returns when everybody has been told, or could have been."""
        end = time.monotonic() + 10
        self._wire.allow(10.0)
        while not self._store.swap_alias(self._wire, alias.name, alias, None):
            assert time.monotonic() < end
        time.sleep(0.3)


@pytest.fixture
def server(shared_redis: RedisServer) -> RedisServer:
    with shared_redis.client() as client:
        client.flushall()
    return shared_redis


@pytest.fixture
def mine(full: Registration) -> Registration:
    """Registered by a node, and not loaded yet."""
    spec = ArtifactSpec(Source("file:///models/mine"), full.kind)
    return Registration(full.artifact_id, spec, full.kind, full.register_time)


@asynccontextmanager
async def opened(server: RedisServer, copy: Path, listener: Listener) -> AsyncIterator[Registry]:
    registry = open_registry(server.uri(), copy_path=str(copy))
    try:
        await registry.load_all()
        registry.start(listener)
        await until(lambda: registry.is_up)
        yield registry
    finally:
        await registry.close()


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0)


async def test_what_another_writes_right_behind_ones_own_change_is_heard(
    server: RedisServer, tmp_path: Path, mine: Registration
) -> None:
    """The loop stands still between the store's answer and the change of the other, as it may under load."""
    theirs = replace(mine, spec=replace(mine.spec, source=Source("file:///models/theirs")))
    with closing(Other(server)) as other:
        hears = Hears()
        async with opened(server, tmp_path / "copy", hears) as registry:
            await registry.put_new(mine)
            before = other.head()
            await registry.put(replace(mine, digest=DIGEST))
            await until(lambda: other.head() > before)
            other.replaces(mine, theirs)
            time.sleep(0.3)  # stops the loop: the answer to its own change and the other's come in one turn
            await until(lambda: any(one.registration == theirs for one in hears.heard))


async def test_what_is_removed_while_it_is_first_published_is_removed_everywhere(
    server: RedisServer, tmp_path: Path, mine: Registration
) -> None:
    with closing(Other(server)) as other:
        async with opened(server, tmp_path / "copy", Hears()) as registry:
            server.pause()
            try:
                putting = asyncio.ensure_future(registry.put_new(mine))
                await until(lambda: registry.sync_of(mine.artifact_id) is not None)
                began = time.monotonic()
                await until(lambda: time.monotonic() > began + 0.1)  # it is on its way to the store by now
                await registry.delete(mine.artifact_id)
            finally:
                server.resume()
            await putting
            head = other.head()
            await until(lambda: other.head() > head or not other.has(mine.artifact_id))
            await until(lambda: not other.has(mine.artifact_id))
        async with opened(server, tmp_path / "copy", Hears()) as registry:
            assert await registry.load_all() == []


async def test_a_number_that_a_store_lost_does_not_come_again(
    server: RedisServer, tmp_path: Path, mine: Registration
) -> None:
    """A node that is away keeps the number of what the store lost; what others make of the ID must have another."""
    theirs = replace(mine, spec=replace(mine.spec, source=Source("file:///models/theirs")))
    with closing(Other(server)) as other, server.client() as client:
        async with opened(server, tmp_path / "copy", Hears()) as registry:
            await registry.put_new(mine)
            value, head = client.hget(REGISTRATIONS, mine.artifact_id), other.head()
            await registry.put(replace(mine, digest=DIGEST))
            await until(lambda: registry.sync_of(mine.artifact_id).state is SyncState.PUBLISHED)  # type: ignore[union-attr]
        assert other.head() == head + 1
        client.hset(REGISTRATIONS, mapping={mine.artifact_id: value, "#head": head})
        client.xtrim("{warmshelf}:changes", 0)
        hears = Hears()
        async with opened(server, tmp_path / "copy", hears):
            assert other.head() > head + 1
            other.replaces(mine, theirs)
            await until(lambda: any(one.registration == theirs for one in hears.heard))


class Waits(Hears):
    """Takes what it hears up only once it may, as a node whose turn with the ID is somebody else's."""

    def __init__(self) -> None:
        super().__init__()
        self.may = asyncio.Event()

    async def hear(self, heard: Heard) -> bool:
        await super().hear(heard)
        await self.may.wait()
        return True


@pytest.mark.parametrize("is_removed", [False, True])
async def test_what_is_pinned_between_hearing_and_taking_up_does_not_undo_what_was_heard(
    server: RedisServer, tmp_path: Path, mine: Registration, is_removed: bool
) -> None:
    theirs = None if is_removed else replace(mine, spec=replace(mine.spec, source=Source("file:///models/theirs")))
    with closing(Other(server)) as other:
        waits = Waits()
        async with opened(server, tmp_path / "copy", waits) as registry:
            await registry.put_new(mine)
            other.replaces(mine, theirs)
            await until(lambda: len(waits.heard) == 1)
            await registry.put(replace(mine, digest=DIGEST))
            await until(lambda: registry.sync_of(mine.artifact_id) != Sync(SyncState.QUEUED))
            assert other.registration(mine.artifact_id) == theirs
            waits.may.set()
            await until(lambda: len(waits.heard) == 2)  # it was told once more, for its change was refused
