"""A daemon without its servers in the test's own process, for tests that say exactly what happens when."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from kit.models import Tensor, filled, pattern, safetensors_bytes
from warmshelf.types import Artifact, ArtifactSpec, ArtifactState, Source
from warmshelfd.app import Daemon
from warmshelfd.config import parse
from warmshelfd.leasing import AcquireOptions, Granted
from warmshelfd.memory.arena import Arena
from warmshelfd.registering import RegisterOptions
from warmshelfd.registry.base import Registration
from warmshelfd.registry.sqlite import SqliteRegistry
from warmshelfd.shelf import Shelf

SLOW: dict[str, Tensor] = {"w": ("U8", (24 << 20,), pattern(1, 24 << 20))}
"""Its load takes long enough to be met."""


class SlowToAnswer(SqliteRegistry):
    """A registry that does at once what it is told, and of one write says so only when it is allowed to."""

    def __init__(self, uri: str, **_of_shared_ones: object) -> None:
        super().__init__(uri.removeprefix("sqlite://"))
        self.is_slow = False  # the next write is the one
        self.waiting, self.allowed = asyncio.Event(), asyncio.Event()

    async def put(self, registration: Registration) -> None:
        is_slow, self.is_slow = self.is_slow, False
        await super().put(registration)
        if is_slow:
            self.waiting.set()
            await self.allowed.wait()


class InnerCore:
    """A daemon without its servers. Its sources are ``a``, which is slow, and ``b``; ``limits`` are other settings."""

    def __init__(self, root: Path, arena: str, **limits: int) -> None:
        self.root = root
        argv = ["--listen", "unix:///nowhere/api.sock", "--arena", arena, "--budget", "128MiB", "--pin", "off"]
        argv += ["--registry", f"sqlite://{root}/registry.sqlite", "--allow-source", f"file://{root}"]
        settings, _ = parse(argv, {f"WARMSHELF_{name.upper()}": str(limit) for name, limit in limits.items()})
        self.arena = Arena.open(settings.arena, settings.budget, settings.pin)
        self.daemon = Daemon(settings, self.arena).tenancies.own
        self.shelf: Shelf = self.daemon.shelf
        self.leasing, self.observing = self.daemon.leasing, self.daemon.observing
        self.session_id, _ = self.leasing.open_session("test")

    @property
    def registry(self) -> Any:
        return self.shelf.registry

    def path(self, name: str) -> Path:
        return self.root / f"{name}.safetensors"

    def register(
        self, name: str = "a", artifact_id: str = "x", digest: str = "", **options: bool
    ) -> asyncio.Task[Artifact]:
        """Begin to register an ID for a source."""
        spec = ArtifactSpec(Source(f"file://{self.path(name)}", "", digest))
        return asyncio.create_task(self.shelf.register(artifact_id, spec, RegisterOptions(**options)))

    def acquire(self, artifact_id: str = "x") -> asyncio.Task[Granted]:
        return asyncio.create_task(self.leasing.acquire(self.session_id, artifact_id, AcquireOptions(), 20.0))

    def release(self, granted: Granted) -> None:
        self.leasing.release(self.session_id, granted.lease.lease_id)

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


def write_sources(root: Path) -> None:
    for name, tensors in (("a", SLOW), ("b", filled(2))):
        (root / f"{name}.safetensors").write_bytes(safetensors_bytes(tensors))
