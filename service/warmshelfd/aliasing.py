"""The use cases of aliases: set, roll back, list, and what an ID means that is one.

Runs on the event loop; no gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from warmshelf.errors import ArtifactNotFound, InvalidSpec
from warmshelf.types import Alias, check_id
from warmshelfd import failpoints
from warmshelfd.domain.aliases import before_last_move, check_meant, moved
from warmshelfd.domain.catalog import Catalog
from warmshelfd.registry.base import Registry

OnRemove = Callable[[str], None]
"""Told the name of an alias that is gone."""

OnMove = Callable[[Alias, str], None]
"""Told an alias as it is now, and what it meant before; "" for a new one."""


class Aliases:
    """The aliases known."""

    def __init__(self, catalog: Catalog, registry: Registry, clock: Callable[[], datetime]) -> None:
        self._catalog = catalog
        self._registry = registry
        self._clock = clock
        self._by_name: dict[str, Alias] = {}  # event loop only
        self._turn = asyncio.Lock()  # one move at a time
        self.on_move: list[OnMove] = []
        self.on_remove: list[OnRemove] = []

    async def start(self) -> None:
        """Read what is kept."""
        self._by_name = {alias.name: alias for alias in await self._registry.load_aliases()}

    def all(self) -> list[Alias]:
        """Return every alias, by name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def find(self, name: str) -> Alias | None:
        """Return an alias, or None."""
        return self._by_name.get(name)

    def resolve(self, artifact_id: str) -> str:
        """Return what an ID means: itself, unless no artifact has it and an alias does."""
        if artifact_id in self._catalog or (alias := self._by_name.get(artifact_id)) is None:
            return artifact_id
        return alias.artifact_id

    async def set(self, name: str, artifact_id: str, expected_id: str) -> Alias:
        """Make an alias mean an artifact; see AliasService.SetAlias for the errors."""
        check_id(name)
        if name in self._catalog:
            raise InvalidSpec(f"{name!r} is the ID of an artifact, which no alias may have", name=name)
        self._catalog.get(artifact_id)
        async with self._turn:
            before = self._by_name.get(name)
            after = moved(before, name, artifact_id, expected_id, self._clock())
            kept = await self._registry.swap_alias(before, after)
            failpoints.hit("move.recorded")
            self.take_up(kept)
            return after

    async def roll_back(self, name: str) -> Alias:
        """Make an alias mean what it did before; see AliasService.RollBackAlias for the errors."""
        alias = self._known(name)
        return await self.set(name, before_last_move(alias), alias.artifact_id)

    async def remove(self, name: str, expected_id: str) -> None:
        """Forget an alias; see AliasService.RemoveAlias for the errors."""
        async with self._turn:
            before = self._known(name)
            if expected_id:
                check_meant(before, name, expected_id)
            await self._registry.remove_alias(before)
            failpoints.hit("move.recorded")
            self.take_down(name)

    def _known(self, name: str) -> Alias:
        alias = self._by_name.get(name)
        if alias is None:
            raise ArtifactNotFound(f"there is no alias {name[:255]!r}", name=name[:255])
        return alias

    def take_down(self, name: str) -> None:
        """Have an alias no longer that the registry has forgotten."""
        if self._by_name.pop(name, None) is not None:
            for tell in self.on_remove:
                tell(name)

    def take_up(self, alias: Alias) -> None:
        """Have an alias that the registry has kept."""
        before = self._by_name.get(alias.name)
        self._by_name[alias.name] = alias
        if before != alias:
            for tell in self.on_move:
                tell(alias, before.artifact_id if before else "")
