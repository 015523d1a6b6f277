"""Aliases in a registry that nodes share: the store decides each move, the node's copy keeps what it said.

For the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from warmshelf.errors import AliasMoved, RegistryUnavailable
from warmshelf.types import Alias
from warmshelfd.redis_wire import RedisAwayError, RedisRefusedError
from warmshelfd.registry.aliases import MARK
from warmshelfd.registry.base import Listener, Registry
from warmshelfd.registry.redis_sync import RedisSync
from warmshelfd.registry.shared import Shared
from warmshelfd.registry.sqlite import SqliteRegistry
from warmshelfd.registry.telling import Numbers

MOVE_SECONDS = 3.0
"""How long the move of an alias waits for the store: it is done by all nodes' leave or not at all."""


class SharedAliases:
    """The aliases that a node knows of."""

    def __init__(self, copy: SqliteRegistry, sync: RedisSync, revisions: Numbers) -> None:
        """``revisions`` are those known of all that the store has, by its names there."""
        self._copy = copy
        self._sync = sync
        self._revisions = revisions
        self._aliases: dict[str, Alias] = {}  # as the copy has them
        self._keeping: set[asyncio.Future[object]] = set()  # on their way to the copy
        self._moving: Counter[str] = Counter()  # how many moves of an alias are under way here; no key has 0

    async def load(self) -> list[Alias]:
        """Return what the copy has. The store has to tell each once more."""
        aliases = await self._copy.load_aliases()
        self._aliases = {alias.name: alias for alias in aliases}
        self._revisions.update({MARK + name: 0 for name in self._aliases})
        return aliases

    async def swap(self, before: Alias | None, after: Alias) -> Alias:
        """Move an alias if the store has it as it was before; errors as ``Registry.swap_alias``."""
        with self._move(after.name):
            revision = await self._written(after.name, before, after)
            if self._is_newer(after.name, revision):
                self._aliases[after.name] = after
                await self._copy.swap_alias(None, after)
        return self._aliases.get(after.name, after)

    async def remove(self, before: Alias) -> None:
        """Remove an alias if the store has it as it was before; errors as ``Registry.remove_alias``."""
        with self._move(before.name):
            revision = await self._written(before.name, before, None)
            if self._is_newer(before.name, revision):
                self._aliases.pop(before.name, None)
                await self._copy.remove_alias(before)

    @contextmanager
    def _move(self, name: str) -> Iterator[None]:
        """Keep an alias's number meanwhile: what others did since may be heard before the store's answer is."""
        self._moving[name] += 1
        try:
            yield
        finally:
            self._moving[name] -= 1
            if not self._moving[name]:
                del self._moving[name]
            self._forget_removed(name)

    async def _written(self, name: str, before: Alias | None, after: Alias | None) -> int:
        try:
            writing = asyncio.wrap_future(self._sync.swap_alias(name, before, after))
            revision = await asyncio.wait_for(writing, MOVE_SECONDS)
        except (RedisAwayError, RedisRefusedError, asyncio.TimeoutError):
            raise RegistryUnavailable("the registry that nodes share did not take the move; look what it has") from None
        if not revision:
            raise AliasMoved(f"alias {name!r} was moved by another node meanwhile", name=name)
        return revision

    def found(self, shared: Shared, listener: Listener | None) -> None:
        """Take what the store has of an alias, which may be that it was removed."""
        name, theirs = shared.artifact_id.removeprefix(MARK), shared.alias
        mine = self._aliases.get(name)
        if not self._is_newer(name, shared.revision):
            if mine is not None and mine != theirs:  # the store went back in time
                self._sync.swap_alias(name, theirs, mine)
        elif mine != theirs:
            self._take(name, mine, theirs, listener)
        self._forget_removed(name)

    def _take(self, name: str, mine: Alias | None, theirs: Alias | None, listener: Listener | None) -> None:
        if theirs is not None:
            self._aliases[name] = theirs
            self._keep(self._copy.swap_alias(mine, theirs))
            if listener is not None:
                listener.hear_alias(theirs)
        elif mine is not None:
            del self._aliases[name]
            self._keep(self._copy.remove_alias(mine))
            if listener is not None:
                listener.hear_alias_removed(name)

    def _keep(self, work: Coroutine[Any, Any, object]) -> None:
        """Have the copy take it up; its thread keeps the order."""
        keeping = asyncio.ensure_future(work)
        self._keeping.add(keeping)
        keeping.add_done_callback(self._keeping.discard)

    def missing(self, name: str) -> None:
        """Write again what the store has lost; should others be first, theirs is found."""
        if (alias := self._aliases.get(name)) is not None:
            self._sync.swap_alias(name, None, alias)

    def _forget_removed(self, name: str) -> None:
        """Forget the number of a removal that is done with, or a node would remember every alias there ever was."""
        if name not in self._aliases and name not in self._moving:
            self._revisions.drop(MARK + name)

    def _is_newer(self, name: str, revision: int) -> bool:
        """Say whether what the store has is newer than all that was taken; it is taken then."""
        if revision <= self._revisions.get(MARK + name):
            return False
        self._revisions.update({MARK + name: revision})
        return True


class HasSharedAliases(Registry):
    """The part of a registry that nodes share which is about aliases."""

    _aliases: SharedAliases

    async def load_aliases(self) -> list[Alias]:
        """As the interface says: what this node's copy has."""
        return await self._aliases.load()

    async def swap_alias(self, before: Alias | None, after: Alias) -> Alias:
        """As the interface says."""
        self._check_up()
        return await self._aliases.swap(before, after)

    async def remove_alias(self, before: Alias) -> None:
        """As the interface says."""
        self._check_up()
        await self._aliases.remove(before)

    def _check_up(self) -> None:
        if not self.is_up:
            raise RegistryUnavailable("the registry that nodes share is not in reach: no alias can be moved now")
