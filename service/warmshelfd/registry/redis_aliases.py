"""Aliases in a registry that nodes share: the store decides each move, the node's copy keeps what it said.

For the event loop's thread.
"""

from __future__ import annotations

import asyncio

from warmshelf.errors import AliasMoved, RegistryUnavailable
from warmshelf.types import Alias
from warmshelfd.redis_wire import RedisAwayError, RedisRefusedError
from warmshelfd.registry.aliases import MARK
from warmshelfd.registry.base import Listener
from warmshelfd.registry.redis_sync import RedisSync
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
        self._keeping: set[asyncio.Future[Alias]] = set()  # on their way to the copy

    async def load(self) -> list[Alias]:
        """Return what the copy has. The store has to tell each once more."""
        aliases = await self._copy.load_aliases()
        self._aliases = {alias.name: alias for alias in aliases}
        self._revisions.update({MARK + name: 0 for name in self._aliases})
        return aliases

    async def swap(self, before: Alias | None, after: Alias) -> Alias:
        """Move an alias if the store has it as it was before; errors as ``Registry.swap_alias``."""
        try:
            revision = await asyncio.wait_for(asyncio.wrap_future(self._sync.swap_alias(before, after)), MOVE_SECONDS)
        except (RedisAwayError, RedisRefusedError, asyncio.TimeoutError):
            raise RegistryUnavailable("the registry that nodes share did not take the move; look what it has") from None
        if not revision:
            raise AliasMoved(f"alias {after.name!r} was moved by another node meanwhile", name=after.name)
        if self._is_newer(after, revision):
            await self._copy.swap_alias(None, after)
        return self._aliases[after.name]

    def found(self, alias: Alias, revision: int, listener: Listener | None) -> None:
        """Take what the store has."""
        mine = self._aliases.get(alias.name)
        if self._is_newer(alias, revision) and mine != alias and listener is not None:
            listener.hear_alias(alias)
            keeping = asyncio.ensure_future(self._copy.swap_alias(mine, alias))  # the copy's thread keeps the order
            self._keeping.add(keeping)
            keeping.add_done_callback(self._keeping.discard)
        elif mine is not None and mine != alias:  # the store went back in time
            self._sync.swap_alias(alias, mine)

    def missing(self, name: str) -> None:
        """Write again what the store has lost; should others be first, theirs is found."""
        if (alias := self._aliases.get(name)) is not None:
            self._sync.swap_alias(None, alias)

    def _is_newer(self, alias: Alias, revision: int) -> bool:
        """Take an alias as the store has it, unless a later one was taken already; say whether it was taken."""
        if revision <= self._revisions.get(MARK + alias.name):
            return False
        self._revisions.update({MARK + alias.name: revision})
        self._aliases[alias.name] = alias
        return True
