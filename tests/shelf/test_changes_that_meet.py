"""Calls about one artifact that meet while one of them waits: neither undoes the other, now or after a restart."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kit.models import Tensor, filled, pattern, safetensors_bytes
from warmshelf.types import Artifact, ArtifactSpec, ArtifactState, Source
from warmshelfd import app
from warmshelfd.app import Daemon
from warmshelfd.config import parse
from warmshelfd.leasing import AcquireOptions, Granted
from warmshelfd.memory.arena import Arena
from warmshelfd.registry.base import Registration
from warmshelfd.registry.sqlite import SqliteRegistry
from warmshelfd.shelf import RegisterOptions, Shelf

SLOW: dict[str, Tensor] = {"w": ("U8", (48 << 20,), pattern(1, 48 << 20))}
"""Its load takes long enough to be met."""


class SlowToAnswer(SqliteRegistry):
    """A registry that does at once what it is told, and says so when the gate is open."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri.removeprefix("sqlite://"))
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = asyncio.Event()  # somebody stands at the gate

    async def put(self, registration: Registration) -> None:
        await super().put(registration)
        if not self.gate.is_set():
            self.waiting.set()
        await self.gate.wait()


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
            await asyncio.wait(others)
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
    core.registry.gate.clear()
    again = core.register("b", keep_resident=True)
    await core.registry.waiting.wait()
    waiting = core.acquire()
    while not core.shelf.flights.find("x"):
        await asyncio.sleep(0)
    core.registry.gate.set()
    await asyncio.wait([waiting, again])
    assert (await waiting).artifact.keep_resident
    assert core.shelf.get("x").state is ArtifactState.READY


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
    core.registry.gate.clear()
    replacing = core.register("b", replace=True)
    await core.registry.waiting.wait()  # written; and now the load has all the time to write too
    while core.shelf.flights.find("x") and core.shelf.get("x").spec.source.uri.endswith("a.safetensors"):
        if waiting.done():
            break
        await asyncio.sleep(0.001)
    core.registry.gate.set()
    await asyncio.wait([waiting, replacing])
    assert core.shelf.get("x").spec.source.uri == f"file://{core.path('b')}"


async def test_a_registration_that_nobody_waits_for_any_more_is_whole(core: Core) -> None:
    core.registry.gate.clear()
    registering = core.register("b")
    await core.registry.waiting.wait()
    registering.cancel()
    await asyncio.wait([registering])
    core.registry.gate.set()
    assert core.shelf.get("x").state is ArtifactState.REGISTERED


async def test_a_changed_source_that_is_looked_at_while_it_is_loaded_anew_leaves_the_new_bytes(core: Core) -> None:
    """The look takes long; meanwhile the old bytes are given back and loaded again, into another segment."""
    await core.register()
    first = await core.acquire()
    await core.check()
    core.leasing.release(core.session_id, first.lease.lease_id)
    os.utime(core.path("a"))
    again = core.register(keep_resident=True)
    while core.shelf._registering and not again.done() and core.shelf.get("x").state is ArtifactState.READY:
        await core.shelf.evict("x", drain=False)
    second = await core.acquire()
    await again
    assert core.shelf.catalog.get("x").segment_id == second.segment.segment_id != first.segment.segment_id
    assert core.shelf.residency.get(second.segment.segment_id).segment is second.segment
