"""However much was done, a daemon remembers no more than what there is and what a named limit allows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from kit.growth import grown, sizes_within
from kit.inner_core import InnerCore
from kit.models import filled, safetensors_bytes
from warmshelf.errors import ArtifactNotFound, RegistryUnavailable, SourceNotAllowed, SourceNotFound
from warmshelfd import inspecting, memo, parts
from warmshelfd.leasing import AcquireOptions
from warmshelfd.registry.base import Registration
from warmshelfd.registry.sqlite import SqliteRegistry

COUNT = 40
"""How often each thing is done; whatever grows by half of that grows with it."""

LIMIT = 16
"""Of what is remembered by design, so that it is full after a few of them."""

MEMO_BYTES_MAX = 4 << 10
"""The same, of headers."""

Work = Callable[[InnerCore, str], Awaitable[object]]


class TakesNothingNew(SqliteRegistry):
    """A registry that refuses new IDs when told to."""

    def __init__(self, uri: str, **_of_shared_ones: object) -> None:
        super().__init__(uri.removeprefix("sqlite://"))
        self.is_refusing = False

    async def put_new(self, registration: Registration) -> None:
        if self.is_refusing:
            raise RegistryUnavailable("nothing new is taken")
        await super().put_new(registration)


@pytest.fixture
async def core(tmp_path: Path, arena_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[InnerCore]:
    """One whose sources are small, and whose limits are reached soon."""
    monkeypatch.setattr(parts, "open_registry", TakesNothingNew)
    monkeypatch.setattr(memo, "_SEEN_MAX", LIMIT)
    monkeypatch.setattr(inspecting, "_MEMO_BYTES_MAX", MEMO_BYTES_MAX)
    for number, name in enumerate("ab"):
        (tmp_path / f"{name}.safetensors").write_bytes(safetensors_bytes(filled(number)))
    it = InnerCore(tmp_path, str(arena_dir), change_count_max=LIMIT)
    yield it
    await it.check()
    await it.stop()


async def churn(core: InnerCore, name: str) -> None:
    await core.register("b", name)
    core.release(await core.acquire(name))
    await core.shelf.evict(name, drain=False)
    core.release(await core.acquire(name))
    await core.register("a", name, replace=True)
    await core.shelf.remove(name)


async def hold_a_session(core: InnerCore, name: str) -> None:
    await core.register("b", name)
    session_id, _ = core.leasing.open_session(name)
    core.leasing.release(session_id, "lost on its way")
    await core.leasing.acquire(session_id, name, AcquireOptions(), 20.0)
    await core.shelf.remove(name)
    core.leasing.close_session(session_id)


async def fail(core: InnerCore, name: str) -> None:
    with pytest.raises(SourceNotFound):
        await core.register(name, name)
    with pytest.raises(SourceNotAllowed):
        await core.register(f"/etc/{name}", name)
    with pytest.raises(ArtifactNotFound):
        await core.acquire(name)


async def be_refused(core: InnerCore, name: str) -> None:
    core.registry.is_refusing = True
    with pytest.raises(RegistryUnavailable):
        await core.register("b", name)
    core.registry.is_refusing = False


async def fail_to_load(core: InnerCore, name: str) -> None:
    core.path(name).write_bytes(core.path("b").read_bytes())
    await core.register(name, name)
    core.path(name).unlink()
    with pytest.raises(SourceNotFound):
        await core.acquire(name)
    await core.shelf.remove(name)


async def alias(core: InnerCore, name: str) -> None:
    await core.register("b", "b")
    await core.shelf.aliases.set(name, "b", "")
    core.release(await core.acquire(name))
    await core.shelf.aliases.remove(name, "")


async def watch(core: InnerCore, name: str) -> None:
    async with aclosing(core.observing.watch(0)) as changes:
        await core.register("b", name)
        await anext(changes)
        await core.shelf.remove(name)


async def give_up(core: InnerCore, name: str) -> None:
    await core.register("b", name)
    waiting = core.acquire(name)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    await core.shelf.remove(name)


@pytest.mark.parametrize("work", [churn, hold_a_session, fail, fail_to_load, alias, watch, give_up, be_refused])
async def test_what_was_done_and_undone_leaves_nothing_in_any_container(core: InnerCore, work: Work) -> None:
    await do(core, work, "warm-up")
    before = sizes_within(core.daemon)
    await do(core, work, "again")
    assert grown(before, sizes_within(core.daemon), COUNT // 2) == []


async def do(core: InnerCore, work: Work, what: str) -> None:
    for number in range(COUNT):
        await work(core, f"{what}-{number}")
    await core.check()
