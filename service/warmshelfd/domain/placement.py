"""What fits, and what must leave first: the whole policy of the arena, as one pure function.

``plan`` decides; the caller evicts, and asks again if the kernel says that a
victim is still in use. It knows sizes and the order of use. It does not know
files, leases or time: whoever asks says what is held.

The rules:

1. Larger than the budget: never, and nobody is evicted for it.
2. Victims are the least recently used of what is not held.
3. An adapter may take the place of adapters and bases. A base may take that of
   bases, and of adapters as long as those that stay have the floor together. The
   floor is no reserve: what adapters do not use, bases may.
4. If all that may leave is still too little, nobody leaves.
5. Nobody leaves in vain: without any one of the victims there is no room.
6. A smaller budget has a base's rights, with the floor that goes with it; where that does
   not suffice, it has an adapter's: the floor is against bases, not against operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from warmshelf.types import ArtifactKind


@dataclass(frozen=True, slots=True)
class Need:
    """What wants to come in. An unknown kind has a base's rights."""

    size_bytes: int
    kind: ArtifactKind


@dataclass(frozen=True, slots=True)
class ArenaView:
    """The arena as it is now.

    Attributes:
        budget_bytes: all that it may ever hold.
        free_bytes: of these, neither used nor promised.
        unnamed_bytes: unlinked but still mapped; they come free on their own.
        adapter_floor_bytes: what bases must leave to the adapters that are there.
    """

    budget_bytes: int
    free_bytes: int
    unnamed_bytes: int
    adapter_floor_bytes: int


@dataclass(frozen=True, slots=True)
class Resident:
    """A segment in the arena.

    Attributes:
        segment_id, artifact_id, kind, size_bytes: which, and how large.
        last_use_order: lower is longer ago.
        held: leased, mapped, kept or still loading: it cannot leave.
    """

    segment_id: str
    artifact_id: str
    kind: ArtifactKind
    size_bytes: int
    last_use_order: int
    held: bool


@dataclass(frozen=True, slots=True)
class Fits:
    """There is room once the victims have left, if any; least recently used first."""

    victims: tuple[Resident, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """There is no room before something is given back.

    Attributes:
        size_bytes: what was asked for.
        missing_bytes: what would be missing if all that may leave had left.
        free_bytes: free now.
        evictable_bytes: what may leave for this need.
        held_bytes: leased, mapped, kept or loading.
        floor_bytes: not held, but left to the adapters by their floor.
        unnamed_bytes: unlinked, still mapped.
    """

    size_bytes: int
    missing_bytes: int
    free_bytes: int
    evictable_bytes: int
    held_bytes: int
    floor_bytes: int
    unnamed_bytes: int


@dataclass(frozen=True, slots=True)
class Never:
    """It is larger than the whole arena."""

    size_bytes: int
    budget_bytes: int


Plan = Fits | Wait | Never


def plan(request: Need, arena: ArenaView, residents: Sequence[Resident]) -> Plan:
    """Say how the request can be met."""
    if request.size_bytes > arena.budget_bytes:
        return Never(request.size_bytes, arena.budget_bytes)
    missing = request.size_bytes - arena.free_bytes
    if missing <= 0:
        return Fits()
    evictable = may_leave(request, arena, residents)
    if missing <= _sum(evictable):
        return Fits(_victims(evictable, missing))
    held = [resident for resident in residents if resident.held]
    return Wait(
        size_bytes=request.size_bytes,
        missing_bytes=missing - _sum(evictable),
        free_bytes=arena.free_bytes,
        evictable_bytes=_sum(evictable),
        held_bytes=_sum(held),
        floor_bytes=_sum(residents) - _sum(held) - _sum(evictable),
        unnamed_bytes=arena.unnamed_bytes,
    )


def plan_shrink(size_bytes: int, arena: ArenaView, residents: Sequence[Resident]) -> Plan:
    """Say who must leave for a budget that is so much smaller; ``arena`` has the new floor, and the old budget."""
    missing = max(size_bytes - arena.free_bytes, 0)
    full = replace(arena, budget_bytes=missing, free_bytes=0)
    outcome = plan(Need(missing, ArtifactKind.BASE), full, residents)
    return outcome if isinstance(outcome, Fits) else plan(Need(missing, ArtifactKind.ADAPTER), full, residents)


def may_leave(request: Need, arena: ArenaView, residents: Sequence[Resident]) -> list[Resident]:
    """Return who may leave for this request, all at once if need be, least recently used first.

    An adapter too large for what the floor still spares is passed over for the
    next. That may spare an adapter's size more than the best choice would, which is
    a knapsack problem and not worth solving.
    """
    idle = sorted((r for r in residents if not r.held), key=lambda r: r.last_use_order)
    if request.kind is ArtifactKind.ADAPTER:
        return idle
    spare = _sum([r for r in residents if r.kind is ArtifactKind.ADAPTER]) - arena.adapter_floor_bytes
    evictable = []
    for resident in idle:
        if resident.kind is ArtifactKind.ADAPTER:
            if resident.size_bytes > spare:
                continue
            spare -= resident.size_bytes
        evictable.append(resident)
    return evictable


def _victims(evictable: Sequence[Resident], missing: int) -> tuple[Resident, ...]:
    """Return the least recently used that make the room together, and none that is not needed for it."""
    victims: list[Resident] = []
    spare = -missing
    for resident in evictable:
        if spare >= 0:
            break
        victims.append(resident)
        spare += resident.size_bytes
    # A large victim may make earlier, smaller ones needless: the more recent are spared first.
    needed = []
    for resident in reversed(victims):
        if resident.size_bytes <= spare:
            spare -= resident.size_bytes
        else:
            needed.append(resident)
    return tuple(reversed(needed))


def _sum(residents: Sequence[Resident]) -> int:
    return sum(resident.size_bytes for resident in residents)
