"""A registry with many artifacts in it, made without a daemon."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone

from kit.processes import Daemon
from warmshelf.types import ArtifactKind, ArtifactSpec, Source
from warmshelfd.registry.base import Registration
from warmshelfd.registry.sqlite import SqliteRegistry


def register_offline(daemon: Daemon, adapter_count: int, base_count: int) -> list[str]:
    """Fill a registry with bases, and with adapters of each in turn; return the adapters' IDs."""
    now = datetime.now(timezone.utc)
    bases = [f"meta/base-{number:02}" for number in range(base_count)]
    registrations = [
        Registration(base, ArtifactSpec(Source(f"file:///models/{base}")), ArtifactKind.BASE, now) for base in bases
    ]
    names = []
    for number in range(adapter_count):
        name = f"acme/{number % base_count:02}/customer-{number:05}+support@v{number % 7}"
        source = Source(f"file:///models/{name}")
        spec = ArtifactSpec(source, ArtifactKind.ADAPTER, bases[number % base_count])
        registrations.append(Registration(name, spec, ArtifactKind.ADAPTER, now))
        names.append(name)
    asyncio.run(_fill(str(daemon.registry), registrations))
    return names


async def _fill(path: str, registrations: list[Registration]) -> None:
    registry = SqliteRegistry(path)
    await asyncio.gather(*map(registry.put, registrations))
    await registry.close()
