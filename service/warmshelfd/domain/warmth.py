"""What is worth its place in memory: what to bring back after a reboot, which bases have been idle for too long.

Pure: brings neither the time nor what is held with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from warmshelf.types import ArtifactKind
from warmshelfd.domain.placement import Resident


@dataclass(frozen=True, slots=True)
class Used:
    """An artifact that was in memory before, and is not now.

    Attributes:
        artifact_id, kind: which.
        segment_id: the segment it had; what shares one content had the same.
        size_bytes: what that took.
        use_time: when it was last used.
    """

    artifact_id: str
    kind: ArtifactKind
    segment_id: str
    size_bytes: int
    use_time: datetime


@dataclass(frozen=True, slots=True)
class Idle:
    """A segment that nobody holds: its last use, and since when it is seen so, by a clock that never steps back."""

    last_use_order: int
    since_seconds: float


def choose_restored(used: Sequence[Used], free_bytes: int) -> list[Used]:
    """Return what to load again, the most recently used first, so that all of it fits into what is free.

    One that is too large for what is left is passed over for older ones that are not.
    """
    chosen: list[Used] = []
    there: set[str] = set()
    for one in sorted(used, key=lambda one: one.use_time, reverse=True):
        size = 0 if one.segment_id in there else one.size_bytes
        if size <= free_bytes:
            chosen.append(one)
            there.add(one.segment_id)
            free_bytes -= size
    return chosen


def watch_idle(residents: Sequence[Resident], before: Mapping[str, Idle], now_seconds: float) -> dict[str, Idle]:
    """Return since when each base is idle: unheld and without a use; by segment."""
    idle = {}
    for resident in residents:
        if resident.kind is ArtifactKind.BASE and not resident.held:
            known = before.get(resident.segment_id)
            is_as_before = known is not None and known.last_use_order == resident.last_use_order
            since = known.since_seconds if known and is_as_before else now_seconds
            idle[resident.segment_id] = Idle(resident.last_use_order, since)
    return idle
