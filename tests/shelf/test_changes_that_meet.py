"""Calls about one artifact that meet while one of them waits: neither undoes the other, now or after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kit.models import Tensor, filled, pattern, safetensors_bytes
from warmshelf.errors import LoadCancelled
from warmshelf.types import Artifact, ArtifactSpec, ArtifactState, Source
from warmshelfd import app
from warmshelfd.app import Daemon
from warmshelfd.config import parse
from warmshelfd.leasing import AcquireOptions, Granted
from warmshelfd.memory.arena import Arena
from warmshelfd.registry.base import Registration
from warmshelfd.registry.sqlite import SqliteRegistry
from warmshelfd.shelf import RegisterOptions, Shelf

SLOW: dict[str, Tensor] = {"w": ("U8", (24 << 20,), pattern(1, 24 << 20))}
"""Its load takes long enough to be met."""


class SlowToAnswer(SqliteRegistry):
    """A registry that does at once what it is told, and of one write says so only when it is allowed to."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri.removeprefix("sqlite://"))
        self.is_slow = False  # the next write is the one
        self.waiting, self.allowed = asyncio.Event(), asyncio.Event()

    async def put(self, registration: Registration) -> None:
        is_slow, self.is_slow = self.is_slow, False
        await super().put(registration)
        if is_slow:
            self.waiting.set()
            await self.allowed.wait()


class Core:
    """A daemon without its servers, in this process, with sources ``a`` and ``b``."""

    def __init__(self, root: Path, arena: str) -> None:
        self.root = root
        argv = ["--listen", "unix:///nowhere/api.sock", "--arena", arena, "--budget", "128MiB", "--pin", "off"]
        argv += ["--registry", f"sqlite://{root}/registry.sqlite", "--allow-source", f"file://{root}"]
        settings, _ = parse(argv, {})
        self.arena = Arena.open(settings.arena, settings.budget, settings.pin)
        daemon = Daemon(settings, self.arena)
        self.shelf: Shelf = daemon._shelf
        self.leasing = daemon._leasing
        self.session_id, _ = self.leasing.open_session("test")

    @property
    def registry(self) -> Any:
        return self.shelf._registry

    def path(self, name: str) -> Path:
        return self.root / f"{name}.safetensors"

    def register(self, name: str = "a", **options: bool) -> asyncio.Task[Artifact]:
        """Begin to register the ID ``x`` for a source."""
        spec = ArtifactSpec(Source(f"file://{self.path(name)}"))
        return asyncio.create_task(self.shelf.register("x", spec, RegisterOptions(**options)))

    def acquire(self) -> asyncio.Task[Granted]:
        return asyncio.create_task(self.leasing.acquire(self.session_id, "x", AcquireOptions(), 20.0))

    async def until(self, state: ArtifactState) -> None:
        """Wait until the artifact is in a state."""
        while self.shelf.get("x").state is not state:
            await asyncio.sleep(0)

    async def check(self) -> None:
        """Wait for what runs by itself; then the registry knows what the catalog knows."""
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            _, hanging = await asyncio.wait(others, timeout=10)
            assert not hanging
        rows = {row.artifact_id: _kept(row) for row in await self.registry.load_all()}
        assert rows == {entry.artifact_id: _kept(entry) for entry in self.shelf.catalog}
        self.shelf.catalog.check()

    async def stop(self) -> None:
        self.leasing.close_session(self.session_id)
        await self.shelf.stop()
        self.arena.close()


def _kept(known: Any) -> tuple[object, ...]:
    names = ("spec", "keep_resident", "follow", "generation", "digest", "fingerprint", "segment_id")
    return tuple(getattr(known, name) for name in names)


@pytest.fixture
async def core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Core]:
    monkeypatch.setattr(app, "open_registry", SlowToAnswer)
    for name, tensors in (("a", SLOW), ("b", filled(2))):
        (tmp_path / f"{name}.safetensors").write_bytes(safetensors_bytes(tensors))
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm") as arena:
        it = Core(tmp_path, arena)
        yield it
        await it.check()
        await it.stop()


async def test_what_is_asked_for_during_a_load_stands_after_it(core: Core) -> None:
    await core.register()
    waiting = core.acquire()
    await core.until(ArtifactState.LOADING)
    artifact = await core.register(keep_resident=True, follow=True)
    assert (artifact.state, artifact.keep_resident) == (ArtifactState.LOADING, True)
    granted = await waiting
    assert (granted.artifact.keep_resident, granted.artifact.follow) == (True, True)


async def test_a_load_that_lands_while_its_id_is_registered_again_keeps_its_bytes(core: Core) -> None:
    await core.register("b")
    core.registry.is_slow = True
    again = core.register("b", keep_resident=True)
    await core.registry.waiting.wait()
    granted = await core.acquire()
    core.registry.allowed.set()
    assert (await again).keep_resident
    assert core.shelf.catalog.get("x").segment_id == granted.segment.segment_id


async def test_bytes_loaded_anew_while_their_source_is_looked_at_stay(core: Core) -> None:
    await core.register("b")
    first = await core.acquire()
    await core.check()
    core.leasing.release(core.session_id, first.lease.lease_id)
    os.utime(core.path("b"))
    core.registry.is_slow = True
    again = core.register("b", keep_resident=True)
    await core.registry.waiting.wait()
    await core.shelf.evict("x", drain=False)
    second = await core.acquire()
    core.registry.allowed.set()
    await again
    assert core.shelf.catalog.get("x").segment_id == second.segment.segment_id != first.segment.segment_id


async def test_the_registration_of_an_id_that_is_removed_meanwhile_does_not_bring_it_back(core: Core) -> None:
    await core.register("b")
    for options in ({"keep_resident": True}, {"replace": True}):
        again = core.register("a" if "replace" in options else "b", **options)
        await asyncio.sleep(0)  # it looks at the source now
        await core.shelf.remove("x")
        await again
        assert list(core.shelf.catalog) == []
        assert await core.registry.load_all() == []
        await core.register("b")


async def test_a_replaced_artifact_is_not_brought_back_by_a_load_of_the_old_one(core: Core) -> None:
    await core.register()
    waiting = core.acquire()
    await core.until(ArtifactState.LOADING)
    core.registry.is_slow = True
    replacing = core.register("b", replace=True)
    await asyncio.wait([waiting])  # it is stopped, or has all the time to write
    core.registry.allowed.set()
    await replacing
    with contextlib.suppress(LoadCancelled):
        await waiting
    assert core.shelf.get("x").spec.source.uri == f"file://{core.path('b')}"


async def test_a_registration_that_nobody_waits_for_any_more_is_whole(core: Core) -> None:
    core.registry.is_slow = True
    registering = core.register("b")
    await core.registry.waiting.wait()
    registering.cancel()
    await asyncio.wait([registering])
    assert core.shelf.get("x").state is ArtifactState.REGISTERED


async def test_a_load_that_is_stopped_just_when_room_may_have_come_waits_no_longer(core: Core) -> None:
    await core.register("b")
    everything = core.arena.reserve(core.arena.budget_bytes)
    waiting = core.acquire()
    while not (load := core.shelf.flights.find("x")) or load.room is None:
        await asyncio.sleep(0)
    await asyncio.sleep(0)  # now it waits
    core.shelf.residency.notify()
    core.shelf.flights.abandon("x")
    with pytest.raises(LoadCancelled):
        await waiting
    everything.release()
    assert (await core.acquire()).lease.generation == 1
