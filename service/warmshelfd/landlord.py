"""Makes room for one tenant's loads out of what others borrowed, as ``domain.shares`` decides.

Runs on the event loop. Who waits for room, and in what order, is each tenant's own matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from warmshelf.errors import ArenaFull
from warmshelf.types import ArtifactKind
from warmshelfd.domain.placement import Fits, Need, may_leave
from warmshelfd.domain.shares import Holding, Leaving, plan_room, plan_smaller
from warmshelfd.memory.books import Claim, Reservation
from warmshelfd.memory.looking import sizes_left
from warmshelfd.metric_table import EvictReason
from warmshelfd.residency import Residency, Waiting


@dataclass(frozen=True, slots=True)
class Lodger:
    """A tenant: its name, its share given the whole budget, and its segments."""

    name: str
    share_of: Callable[[int], int]
    residency: Residency

    @property
    def share_bytes(self) -> int:
        """What it can always have."""
        return self.share_of(self.residency.arena.whole_budget_bytes)

    def holding(self, kind: ArtifactKind) -> Holding:
        """Return what it has, and what of that may leave for a load of this kind."""
        usage = self.residency.arena.usage()
        idle = may_leave(Need(0, kind), self.residency.view(), self.residency.residents())
        used_bytes = usage.resident_bytes + usage.reserved_bytes + usage.unnamed_bytes
        return Holding(self.name, self.share_bytes, used_bytes, idle)


class Landlord:
    """Those who share a budget. With one alone there is nothing to do."""

    def __init__(self, lodgers: Sequence[Lodger]) -> None:
        self.lodgers = {lodger.name: lodger for lodger in lodgers}
        self._books = lodgers[0].residency.arena.books_of_all()
        if len(lodgers) > 1:
            for lodger in lodgers:
                lodger.residency.make_room = partial(self._make_room, lodger)

    def share_bytes(self, name: str) -> int:
        """Return what a tenant can always have."""
        return self.lodgers[name].share_bytes

    @contextmanager
    def share_kept(self, name: str) -> Iterator[Claim]:
        """Keep for a tenant what it has left in its directory, up to its share, until the claim is released."""
        arena = self.lodgers[name].residency.arena
        claim = arena.claim(min(self.lodgers[name].share_bytes, sum(sizes_left(arena.volume))))
        try:
            yield claim
        finally:
            claim.release()

    async def _make_room(self, asker: Lodger, size: int, kind: ArtifactKind, waiting: Waiting) -> Reservation | None:
        """Return room for a load of one of them, or None if there cannot be any now; ``waiting`` is told why."""
        arena = asker.residency.arena
        self._probe_again()
        while True:
            leaving = self._plan(asker, size, kind)
            if leaving is None:
                waiting(asker.residency.full(size))
                return None
            claim = arena.claim(size)  # nobody else may have meanwhile what is given back for this
            try:
                is_met = await self._evict(asker.name, leaving, lambda: arena.unspent_bytes() >= 0)
            finally:
                claim.release()
            if is_met:
                break
        try:
            return arena.reserve(size)
        except ArenaFull as error:
            waiting(error)
            return None

    async def try_shrink(self, size: int, _budget_bytes: int) -> bool:
        """Let so much room leave the budget, evicting what is borrowed; False if there is too little of that now."""
        self._probe_again()
        while True:
            holdings = [one.holding(ArtifactKind.ADAPTER) for one in self.lodgers.values()]
            leaving = plan_smaller(size, holdings, self._books.unspent_bytes())
            if leaving is None:
                return False
            claim = self._books.claim(size)
            try:
                if await self._evict("", leaving, lambda: self._books.unspent_bytes() >= 0):
                    return claim.leave()
            finally:
                claim.release()

    def _plan(self, asker: Lodger, size: int, kind: ArtifactKind) -> tuple[Leaving, ...] | None:
        arena = asker.residency.arena
        if arena.usage().free_bytes >= size:
            return ()
        others = [one.holding(ArtifactKind.ADAPTER) for one in self.lodgers.values() if one is not asker]
        return plan_room(size, asker.holding(kind), arena.budget_bytes, others, arena.whole_free_bytes())

    def _probe_again(self) -> None:
        for lodger in self.lodgers.values():
            lodger.residency.probe_again()

    async def _evict(self, asker: str, leaving: Sequence[Leaving], is_enough: Callable[[], bool]) -> bool:
        """Let them go in turn, until it is enough; say False if one turns out to be in use."""
        for name, some in groupby(leaving, key=lambda one: one.tenant):
            decision = Fits(tuple(one.resident for one in some))
            reason: EvictReason = "placement" if name == asker else "share"
            if not await self.lodgers[name].residency.evict_all(decision, is_enough, reason):
                return False
        return True
