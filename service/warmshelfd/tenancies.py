"""All tenancies of one daemon: the tenants', and that of what belongs to none.

They share an arena's budget, and nothing else that anybody could see. Opens, starts and stops
them together; does not know who calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from warmshelf.errors import DaemonInUse, InvalidConfig
from warmshelfd.landlord import Landlord, Lodger
from warmshelfd.memory.arena import Arena
from warmshelfd.settings import Settings
from warmshelfd.tenancy import Common, Tenancy
from warmshelfd.tenant_settings import NOBODY, TenantSettings, check_shares, is_tenant_name, shares_bytes
from warmshelfd.tenants import refuse_shares, settings_of

_SWEEP_SECONDS = 1.0
"""How often it is looked whether anybody still maps what a former tenant left."""

_log = logging.getLogger(__name__)


class Tenancies:
    """The tenancies by the tenants' names. Event loop only."""

    def __init__(self, settings: Settings, arena: Arena, common: Common) -> None:
        """Open everything.

        Raises:
            InvalidConfig: the shares do not fit into the budget, or something cannot be used.
            DaemonInUse: another daemon has something of it.
        """
        tenants = settings.tenant
        refuse_shares(settings, arena.whole_budget_bytes)
        self._former = _former(arena, {tenant.name for tenant in tenants})
        if tenants:
            arena.limit(lambda budget: budget - shares_bytes(tenants, budget))
        self.own = Tenancy(NOBODY, settings, arena, common)
        self._by_name: Mapping[str, Tenancy] = {NOBODY: self.own, **dict(_opened(tenants, settings, arena, common))}
        shares = {tenant.name: tenant.share for tenant in tenants}
        self.landlord = Landlord(
            [
                Lodger(name, shares[name].of if name in shares else _nothing_of, one.shelf.residency)
                for name, one in self._by_name.items()
            ]
        )
        if tenants:
            self.own.resizing.why_not = partial(check_shares, tenants)
            self.own.resizing.try_shrink = self.landlord.try_shrink
            self.own.resizing.on_set = self._set_floors

    def _set_floors(self) -> None:
        for one in self:
            one.set_floor()

    def __iter__(self) -> Iterator[Tenancy]:
        return iter(self._by_name.values())

    @property
    def names(self) -> frozenset[str]:
        """The tenants' names."""
        return frozenset(self._by_name) - {NOBODY}

    def of(self, name: str) -> Tenancy:
        """Return the tenancy of a tenant that there is."""
        return self._by_name[name]

    async def start(self) -> None:
        """Read what is known and take in what is there, of each no more than leaves the others their shares."""
        with ExitStack() as promised:
            kept = {one.name: promised.enter_context(self.landlord.share_kept(one.name)) for one in self}
            for one in self:
                kept[one.name].release()
                await one.start()

    def begin(self, address: str) -> list[asyncio.Task[None]]:
        """Begin what goes on for as long as the daemon runs."""
        tasks = [task for one in self for task in one.begin(address)]
        return [*tasks, asyncio.create_task(self._sweep_former())]

    async def stop(self) -> None:
        """Let everything go."""
        for one in reversed(list(self)):
            await one.stop()
        for arena in self._former:
            arena.close()

    async def _sweep_former(self) -> None:
        while self._former:
            await asyncio.sleep(_SWEEP_SECONDS)
            for arena in self._former:
                await asyncio.to_thread(arena.usage)  # gives back what nobody maps any more


def _opened(
    tenants: Sequence[TenantSettings], settings: Settings, arena: Arena, common: Common
) -> Iterator[tuple[str, Tenancy]]:
    for tenant in tenants:
        within = arena.open_within(tenant.name, tenant.most_bytes)
        yield tenant.name, Tenancy(tenant.name, settings_of(settings, tenant), within, common)


def _former(arena: Arena, names: Collection[str]) -> list[Arena]:
    """Give back the memory of tenants that there are no more; return their arenas, where some of it may be mapped."""
    former = list(_within(arena, names))
    for within in former:
        if count := within.purge():
            _log.warning("%s is no tenant's any more: %d segments of it were removed", within.directory, count)
    return former


def purge(arena: Arena) -> int:
    """Remove every segment, whoever's; return how many. Only while no daemon has the arena."""
    count = arena.purge()
    for within in _within(arena, ()):
        count += within.purge()
        within.close()
    return count


def _within(arena: Arena, but: Collection[str]) -> Iterator[Arena]:
    """Yield the arenas of tenants in an arena, but for some."""
    for name in arena.names_within():
        if name not in but and is_tenant_name(name):
            try:
                yield arena.open_within(name, _nothing_of)
            except (DaemonInUse, InvalidConfig) as error:  # whatever it is, it is not ours
                _log.warning("%s in the arena is left alone: %s", name, error)


def _nothing_of(_budget_bytes: int) -> int:
    return 0
