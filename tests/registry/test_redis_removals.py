"""What a node remembers of IDs that are removed, and asks about them: nothing, however many there are."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from kit.redis_server import RedisServer
from registry.test_redis_crossing import Hears, Other, opened, until
from warmshelf.types import Alias, AliasMove, ArtifactSpec, Source
from warmshelfd.registry.base import Registration
from warmshelfd.registry.redis import RedisRegistry
from warmshelfd.registry.redis_store import REGISTRATIONS, REMOVED_KEPT_SECONDS

COUNT = 300


@pytest.fixture
def server(shared_redis: RedisServer) -> RedisServer:
    with shared_redis.client() as client:
        client.flushall()
        client.config_resetstat()
    return shared_redis


@pytest.fixture
def some(full: Registration) -> list[Registration]:
    spec = ArtifactSpec(Source("file:///models/mine"), full.kind)
    bare = Registration("a", spec, full.kind, full.register_time)
    return [replace(bare, artifact_id=f"new/{number}") for number in range(20)]


async def test_removed_ids_are_forgotten_by_who_removed_them_and_by_who_heard_of_it(
    server: RedisServer, tmp_path: Path, some: list[Registration]
) -> None:
    async with (
        opened(server, tmp_path / "one", Hears()) as one,
        opened(server, tmp_path / "two", hears := Hears()) as two,
    ):
        assert isinstance(one, RedisRegistry)
        assert isinstance(two, RedisRegistry)
        for registration in some:
            await one.put_new(registration)
        await until(lambda: len(hears.heard) == len(some))
        for registration in some:
            await one.delete(registration.artifact_id)
        await until(lambda: len(hears.heard) == 2 * len(some))
        assert {heard.registration for heard in hears.heard[len(some) :]} == {None}
        await until(lambda: not one._revisions.all())
        await until(lambda: not two._revisions.all())
        assert one._revisions.newest() == two._revisions.newest() > 0
        await one.put_new(some[0])
        await until(lambda: len(hears.heard) == 2 * len(some) + 1)
        assert hears.heard[-1].registration is not None


async def test_what_was_removed_before_a_node_came_is_neither_told_nor_remembered_nor_asked_about(
    server: RedisServer, tmp_path: Path, some: list[Registration]
) -> None:
    now = int(time.time())
    with server.client() as client, closing(Other(server)) as other:
        other.replaces(some[0], some[0])
        numbers = range(other.head() + 1, other.head() + 1 + COUNT)
        values = {f"gone/{number}": f"{number} removed {now}" for number in numbers}
        client.hset(REGISTRATIONS, mapping={**values, "#head": str(numbers[-1])})
        async with opened(server, tmp_path / "one", hears := Hears()) as one:
            assert isinstance(one, RedisRegistry)
            await until(lambda: bool(hears.heard))
            await one.put_new(some[1])  # whatever is asked after reading everything comes before this is answered
            assert {heard.artifact_id for heard in hears.heard} == {some[0].artifact_id}
            assert {*one._revisions.all()} == {some[0].artifact_id, some[1].artifact_id}
            assert one._revisions.newest() > numbers[-1]
        assert client.info("commandstats")["cmdstat_hget"]["calls"] < 20
        assert client.hlen(REGISTRATIONS) == COUNT + 3


async def test_what_was_removed_for_long_enough_is_dropped_from_the_store(
    server: RedisServer, tmp_path: Path, some: list[Registration]
) -> None:
    with server.client() as client, closing(Other(server)) as other:
        other.replaces(some[0], some[0])
        long_ago = int(time.time()) - REMOVED_KEPT_SECONDS - 1
        number = other.head() + 1
        client.hset(REGISTRATIONS, mapping={"gone": f"{number} removed {long_ago}", "#head": str(number)})
        async with opened(server, tmp_path / "one", Hears()):
            await until(lambda: not client.hexists(REGISTRATIONS, "gone"))


async def test_removed_aliases_are_forgotten_by_who_removed_them_and_by_who_heard_of_it(
    server: RedisServer, tmp_path: Path, some: list[Registration]
) -> None:
    aliases = [Alias(f"prod/{number}", (AliasMove("x", some[0].register_time),)) for number in range(20)]
    async with opened(server, tmp_path / "one", Hears()) as one, opened(server, tmp_path / "two", Hears()) as two:
        assert isinstance(one, RedisRegistry)
        assert isinstance(two, RedisRegistry)
        for alias in aliases:
            await one.swap_alias(None, alias)
        await until(lambda: len(two._revisions.all()) == len(aliases))
        for alias in aliases:
            await one.remove_alias(alias)
        await until(lambda: not one._revisions.all())
        await until(lambda: not two._revisions.all())
        assert one._revisions.newest() == two._revisions.newest() > 0
        assert not one._aliases._moving
    async with opened(server, tmp_path / "three", Hears()) as three:  # it reads that they were removed
        assert isinstance(three, RedisRegistry)
        assert not three._revisions.all()
        assert await three.load_aliases() == []


async def test_an_alias_that_another_removes_before_its_move_is_answered_stays_removed(
    server: RedisServer, tmp_path: Path, some: list[Registration]
) -> None:
    """The loop stands still from the move to the removal: that is heard before the answer to the move."""
    alias = Alias("prod/support", (AliasMove("x", some[0].register_time),))
    async with opened(server, tmp_path / "one", Hears()) as one, opened(server, tmp_path / "two", Hears()) as two:
        await one.swap_alias(None, alias)
        newer = replace(alias, history=(*alias.history, AliasMove("y", some[0].register_time)))
        moving = asyncio.ensure_future(one.swap_alias(alias, newer))
        await asyncio.sleep(0)  # it is on its way
        with closing(Other(server)) as other:
            other.removes_alias(newer)
        await moving
        await until(lambda: not one._revisions.all())
        assert await one.load_aliases() == await two.load_aliases() == []
