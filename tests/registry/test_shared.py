"""What nodes make of each other's changes when these meet, or when a node ends in the midst."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kit.redis_server import RedisServer
from warmshelf.errors import SpecMismatch
from warmshelf.types import Alias, Source, Sync, SyncState
from warmshelfd.registry.base import Heard, Listener, Registration, Registry
from warmshelfd.registry.open import open_registry
from warmshelfd.registry.shared import Change, Shared, Verdict, essence, judge

ONE, TWO, THREE = (f"blake3:{sign * 64}" for sign in "123")


def of(full: Registration, uri: str = "file:///models/a", digest: str = "") -> Registration:
    return replace(full, spec=replace(full.spec, source=Source(uri)), digest=digest, follow=False)


@pytest.mark.parametrize(
    ("seen", "mine", "revision", "theirs", "verdict"),
    [
        (("a", ""), ("a", ONE), 1, ("a", ""), Verdict.WRITE),
        (("a", ""), ("a", ONE), 2, ("a", TWO), Verdict.OTHER_DIGEST),
        (("a", ""), ("a", ONE), 2, ("b", TWO), Verdict.FOLLOW),
        (("a", ""), ("a", ONE), 2, ("b", ""), Verdict.FOLLOW),
        (("a", ""), ("c", ONE), 2, ("b", TWO), Verdict.OTHER_SPEC),
        (("a", ""), ("a", ONE), 2, None, Verdict.FOLLOW),
        (("a", ""), None, 2, ("b", ""), Verdict.OTHER_SPEC),
        (None, ("a", ONE), 2, ("b", ""), Verdict.OTHER_SPEC),
        (None, ("a", ONE), 2, ("a", ONE), Verdict.FOLLOW),
        (None, ("a", ONE), 2, None, Verdict.WRITE),
    ],
)
def test_what_becomes_of_a_change(
    full: Registration,
    seen: tuple[str, str] | None,
    mine: tuple[str, str] | None,
    revision: int,
    theirs: tuple[str, str] | None,
    verdict: Verdict,
) -> None:
    """A node that has only pinned what it loaded follows those who have replaced or removed it meanwhile."""
    known = essence(of(full, *seen)) if seen else ""
    change = Change(full.artifact_id, 1 if seen else 0, known, "", of(full, *mine) if mine else None)
    assert judge(change, Shared(full.artifact_id, revision, of(full, *theirs) if theirs else None)) is verdict


class Ear(Listener):
    """Puts what it hears into the registry, as a node does; then hangs, if so told, as one that is being killed."""

    def __init__(self, registry: Registry, *, hangs: bool = False) -> None:
        self.registry = registry
        self.hangs = hangs
        self.heard: dict[str, Registration | None] = {}
        self.first: Callable[[], object] | None = None  # called once, before the next is looked at

    async def hear(self, heard: Heard) -> bool | None:
        if self.first is not None:
            self.first, first = None, self.first
            first()
            await asyncio.sleep(0)
        if not heard.holds():
            return None
        if heard.registration is None:
            await self.registry.delete(heard.artifact_id)
        else:
            await self.registry.put(heard.registration)
        self.heard[heard.artifact_id] = heard.registration
        while self.hangs:
            await asyncio.sleep(1)
        return True

    def hear_alias(self, alias: Alias) -> None:
        pass

    def hear_alias_removed(self, name: str) -> None:
        pass

    def note_sync(self, artifact_id: str) -> None:
        pass


@contextlib.asynccontextmanager
async def node(server: RedisServer, copy: Path, *, hangs: bool = False) -> AsyncIterator[tuple[Registry, Ear]]:
    registry = open_registry(server.uri(), copy_path=str(copy))
    ear = Ear(registry, hangs=hangs)
    await registry.load_all()
    registry.start(ear)
    try:
        await until(lambda: registry.is_up)
        yield registry, ear
    finally:
        await registry.close()


async def until(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@pytest.fixture
def server(shared_redis: RedisServer) -> RedisServer:
    with shared_redis.client() as client:
        client.flushall()
    return shared_redis


def head(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.hget("{warmshelf}:registrations", "#head"))


@pytest.mark.parametrize("digest", ["", ONE])
async def test_a_node_that_is_killed_while_it_takes_changes_up_brings_nothing_back(
    server: RedisServer, tmp_path: Path, full: Registration, digest: str
) -> None:
    mine = of(full, digest=digest)
    kept = replace(mine, artifact_id="kept")
    async with node(server, tmp_path / "a") as (a, _):
        await a.put(mine)
        await a.put(kept)
        await until(lambda: all(a.sync_of(r.artifact_id).state is SyncState.PUBLISHED for r in (mine, kept)))  # type: ignore[union-attr]
        async with node(server, tmp_path / "b", hangs=True) as (_, ear):
            await until(lambda: len(ear.heard) == 2)
        await a.delete(mine.artifact_id)
        other = of(kept, "file:///models/other", TWO)
        await a.put(other)
        await until(lambda: a.sync_of("kept").state is SyncState.PUBLISHED)  # type: ignore[union-attr]
        async with node(server, tmp_path / "b") as (b, ear):
            await until(lambda: ear.heard.keys() == {"kept", mine.artifact_id})
            assert ear.heard[mine.artifact_id] is None
            assert essence(ear.heard["kept"]) == essence(other)
            assert [r.artifact_id for r in await b.load_all()] == ["kept"]
        assert [essence(r) for r in await a.load_all()] == [essence(other)]


async def test_who_registers_what_it_has_only_just_heard_of_does_not_win(
    server: RedisServer, tmp_path: Path, full: Registration
) -> None:
    """Two nodes register an ID at once: the store has the first one's, and the second may hear of it in between."""
    theirs, mine = of(full, "file:///models/a"), of(full, "file:///models/b")
    async with node(server, tmp_path / "a") as (a, _), node(server, tmp_path / "b", hangs=True) as (b, ear):
        await a.put_new(replace(theirs, artifact_id="first"))  # b hangs with this one, so that what follows waits
        await until(lambda: "first" in ear.heard)
        await a.put_new(theirs)
        before = head(server)
        await until(
            lambda: b.sync_of(mine.artifact_id) is not None and b.sync_of(mine.artifact_id).state is not SyncState.LOCAL
        )  # type: ignore[union-attr]
        with pytest.raises(SpecMismatch):
            await b.put_new(mine)
        assert head(server) == before


@pytest.mark.parametrize("theirs", ["removed", "replaced", "pinned"])
async def test_what_was_heard_before_a_change_of_ones_own_is_not_taken_up(
    server: RedisServer, tmp_path: Path, full: Registration, theirs: str
) -> None:
    """The change is judged by what the node had taken up before: it is not lost, and it brings back nothing."""
    first = of(full)
    mine = of(full, "file:///models/mine") if theirs == "pinned" else replace(first, keep_resident=False)
    other = {"removed": None, "replaced": of(full, "file:///models/theirs"), "pinned": of(full, digest=ONE)}[theirs]
    wanted = mine if theirs == "pinned" else other
    async with node(server, tmp_path / "a") as (a, _), node(server, tmp_path / "b") as (b, ear):
        await a.put(first)
        await until(lambda: first.artifact_id in ear.heard)
        changes: list[asyncio.Task[None]] = []
        ear.first = lambda: changes.append(asyncio.create_task(b.put(mine)))
        await (a.delete(first.artifact_id) if other is None else a.put(other))
        await until(lambda: bool(changes) and changes[0].done())
        await until(lambda: _is_settled(a, b, first.artifact_id))
        for registry in (a, b):
            await agreed(registry, wanted)


async def agreed(registry: Registry, wanted: Registration | None, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while [essence(one) for one in await registry.load_all()] != ([essence(wanted)] if wanted else []):
        assert time.monotonic() < deadline, [one.spec.source for one in await registry.load_all()]
        await asyncio.sleep(0.01)


def _is_settled(a: Registry, b: Registry, artifact_id: str) -> bool:
    return all(one.sync_of(artifact_id) != Sync(SyncState.QUEUED) for one in (a, b))


async def test_who_takes_a_change_up_does_not_write_it_again(
    server: RedisServer, tmp_path: Path, full: Registration
) -> None:
    async with node(server, tmp_path / "a") as (a, _), node(server, tmp_path / "b") as (b, ear):
        for number, digest in enumerate(["", ONE, TWO, THREE] * 5):
            await a.put(replace(of(full, digest=digest), artifact_id=f"of/{number}"))
        await until(lambda: len(ear.heard) == 20)
        before = head(server)
        await a.put(replace(of(full, digest=ONE), artifact_id="last"))
        await until(lambda: "last" in ear.heard)
        await b.put(replace(of(full), artifact_id="own"))  # would come behind what b writes of the last
        await until(lambda: b.sync_of("own") == Sync(SyncState.PUBLISHED))
        assert head(server) == before + 2
        assert {b.sync_of(artifact_id).state for artifact_id in ear.heard} == {SyncState.PUBLISHED}  # type: ignore[union-attr]


async def test_what_is_removed_while_its_registration_is_about_to_be_published_stays_removed(
    server: RedisServer, tmp_path: Path, full: Registration
) -> None:
    """Between taking a change from the queue and giving it to the store, the node reads its own copy."""
    last = replace(of(full), artifact_id="last")
    async with node(server, tmp_path / "a") as (a, _), node(server, tmp_path / "b") as (b, ear):
        for number in range(100):
            artifact_id = f"id-{number}"
            await a.put(replace(of(full), artifact_id=artifact_id))
            for _ in range(number % 5):  # at another place each time
                await asyncio.sleep(0)
            await a.delete(artifact_id)
        await a.put(last)
        await until(lambda: "last" in ear.heard)
        await until(lambda: all(one.sync_of(f"id-{n}") != Sync(SyncState.QUEUED) for one in (a, b) for n in range(100)))
        await agreed(b, last)
    async with node(server, tmp_path / "c") as (c, _):
        await agreed(c, last)
