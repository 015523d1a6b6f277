"""Who gives memory back where tenants share a budget: what is borrowed goes before what is one's own share.

Pure. A tenant's share is what it can always have; what others do not use of theirs it may borrow. Room
for a load is made by whoever would be most above its share then, the one that loads included. So nobody
who is at or below its share is asked by others, and those above it level out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from warmshelfd.domain.placement import Resident


@dataclass(frozen=True, slots=True)
class Holding:
    """What one tenant has.

    Attributes:
        tenant: its name.
        share_bytes: what it can always have.
        used_bytes: what it has, and what is promised to its loads.
        idle: what of that may leave, least recently used first.
    """

    tenant: str
    share_bytes: int
    used_bytes: int
    idle: Sequence[Resident] = ()


@dataclass(frozen=True, slots=True)
class Leaving:
    """A segment that is to leave, and whose it is."""

    tenant: str
    resident: Resident


@dataclass(slots=True)
class _Giver:
    """A tenant, and what of it stays after those that were chosen to leave."""

    holding: Holding
    used_bytes: int
    idle: list[Resident] = field(default_factory=list)

    @property
    def excess_bytes(self) -> int:
        """How far it is above its share."""
        return self.used_bytes - self.holding.share_bytes

    def give(self, resident: Resident) -> Leaving:
        self.idle.remove(resident)
        self.used_bytes -= resident.size_bytes
        return Leaving(self.holding.tenant, resident)


def plan_room(
    size_bytes: int, asker: Holding, most_bytes: int, others: Sequence[Holding], free_bytes: int
) -> tuple[Leaving, ...] | None:
    """Return who must leave for a load of the asker, in order; None if there cannot be room now.

    Args:
        size_bytes: what the load takes.
        asker: who loads.
        most_bytes: what the asker may have at most.
        others: the other tenants.
        free_bytes: what nobody uses.
    """
    mine = _Giver(asker, asker.used_bytes + size_bytes, list(asker.idle))
    theirs = [_Giver(other, other.used_bytes, list(other.idle)) for other in others]
    leaving: list[Leaving] = []
    while mine.used_bytes > most_bytes:
        if not mine.idle:
            return None
        leaving.append(mine.give(mine.idle[0]))
    missing_bytes = size_bytes - free_bytes - _sum(leaving)
    while missing_bytes > 0:
        one = _next(mine, theirs)
        if one is None:
            return None
        leaving.append(one)
        missing_bytes -= one.resident.size_bytes
    spare_own_bytes = 0 if any(one.tenant != asker.tenant for one in leaving) else most_bytes - mine.used_bytes
    return _needed(leaving, -missing_bytes, spare_own_bytes, asker.tenant)


def plan_smaller(size_bytes: int, holdings: Sequence[Holding], free_bytes: int) -> tuple[Leaving, ...] | None:
    """Return who must leave for a budget that is so much smaller, in order; None if that is not enough."""
    nobody = Holding("", 0, -size_bytes)  # who asks for what is within its share, and has nothing to give
    return plan_room(size_bytes, nobody, size_bytes, holdings, free_bytes)


def _next(mine: _Giver, theirs: Sequence[_Giver]) -> Leaving | None:
    """Return the next to leave: of whoever is most above its share and has something that may."""
    for giver in sorted(theirs, key=lambda one: -one.excess_bytes):
        if giver.excess_bytes <= max(mine.excess_bytes, 0):
            break
        chosen = _of_other(giver, is_owed=mine.excess_bytes <= 0)
        if chosen is not None:
            return giver.give(chosen)
    return mine.give(mine.idle[0]) if mine.idle else None


def _of_other(giver: _Giver, *, is_owed: bool) -> Resident | None:
    """Return what of another tenant leaves next.

    What fits into what is above its share, if there is such a thing. A segment that reaches over the share is borrowed
    as a whole: it leaves for one who is owed the room, and for nobody else.
    """
    within = next((one for one in giver.idle if one.size_bytes <= giver.excess_bytes), None)
    return within or (giver.idle[0] if giver.idle and is_owed else None)


def _needed(leaving: Sequence[Leaving], spare_bytes: int, spare_own_bytes: int, asker: str) -> tuple[Leaving, ...]:
    """Leave out who need not leave, as those that come later are large: the last chosen are spared first."""
    needed = []
    for one in reversed(leaving):
        size, is_own = one.resident.size_bytes, one.tenant == asker
        if size <= spare_bytes and (not is_own or size <= spare_own_bytes):
            spare_bytes -= size
            spare_own_bytes -= size if is_own else 0
        else:
            needed.append(one)
    return tuple(reversed(needed))


def _sum(leaving: Sequence[Leaving]) -> int:
    return sum(one.resident.size_bytes for one in leaving)
