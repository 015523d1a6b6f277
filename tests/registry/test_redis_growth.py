"""Two nodes do and undo the same things at once, over outages: neither remembers more for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

import pytest

from kit.growth import grown, sizes_within
from kit.redis_server import RedisServer
from registry.test_redis_crossing import Hears, opened, until
from warmshelf.errors import AliasMoved, RegistryUnavailable, SpecMismatch
from warmshelf.types import Alias, AliasMove, ArtifactSpec, Source
from warmshelfd.registry.base import Heard, Registration, Registry
from warmshelfd.registry.redis import RedisRegistry

COUNT = 40


class Follows(Hears):
    """Takes up whatever it is told, as a node does, and keeps nothing of it."""

    registry: Registry

    async def hear(self, heard: Heard) -> bool | None:
        if not heard.holds():
            return None
        if heard.registration is not None:
            await self.registry.put(heard.registration)
        else:
            await self.registry.delete(heard.artifact_id)
        return True


@pytest.fixture
def server(shared_redis: RedisServer) -> RedisServer:
    with shared_redis.client() as client:
        client.flushall()
    return shared_redis


async def test_what_two_nodes_do_and_undo_at_once_leaves_nothing_in_any_container(
    server: RedisServer, tmp_path: Path, full: Registration
) -> None:
    hears = Follows(), Follows()
    async with opened(server, tmp_path / "one", hears[0]) as one, opened(server, tmp_path / "two", hears[1]) as two:
        hears[0].registry, hears[1].registry = one, two
        await cross(server, one, two, full, "warm-up")
        before = [sizes_within(node) for node in (one, two)]
        await cross(server, one, two, full, "again")
        after = [sizes_within(node) for node in (one, two)]
        assert [grown(*sizes, COUNT // 2) for sizes in zip(before, after, strict=True)] == [[], []]


async def cross(server: RedisServer, one: Registry, two: Registry, full: Registration, what: str) -> None:
    """Register and remove IDs and aliases on both nodes at once, with the store away for a moment; wait for rest."""
    for number in range(COUNT):
        name = f"{what}/{number}"
        mine = Registration(name, ArtifactSpec(Source("file:///models/a"), full.kind), full.kind, full.register_time)
        theirs = replace(mine, spec=replace(mine.spec, source=Source(f"file:///models/{'ab'[number % 2]}")))
        alias = Alias(name, (AliasMove("x", full.register_time),))
        if number == COUNT // 2:
            server.pause()
        await both(one.put_new(mine), two.put_new(theirs))
        if number == COUNT // 2:
            server.resume()
            await until(lambda: one.is_up and two.is_up)
        await both(one.put(replace(mine, keep_resident=True)), two.swap_alias(None, alias))
        await both(one.delete(name), two.delete(name))
        await both(one.remove_alias(alias), two.remove_alias(alias))
    for node in (one, two):
        await until(lambda node=node: is_at_rest(node))  # type: ignore[misc]


async def both(*calls: Awaitable[object]) -> None:
    """Await calls side by side; whoever loses is told so."""
    for error in await asyncio.gather(*calls, return_exceptions=True):
        assert error is None or isinstance(error, Alias | AliasMoved | RegistryUnavailable | SpecMismatch)


def is_at_rest(node: Registry) -> bool:
    assert isinstance(node, RedisRegistry)
    return node.is_up and not (node._dirty or node._publishing or node._heard.qsize() or node._taking_up)
