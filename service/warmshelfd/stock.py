"""What the daemon holds at one moment, in numbers, for whoever shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from warmshelf.types import ArtifactKind, ArtifactState


@dataclass(frozen=True, slots=True)
class Stock:
    """What the daemon holds at one moment: the values of its gauges."""

    artifacts: Mapping[ArtifactState, int]
    segments: Mapping[ArtifactKind, int]
    held_bytes: int
    idle_bytes: int
    reserved_bytes: int
    unnamed_bytes: int
    free_bytes: int
    unpinned_bytes: int
    sessions: int
    leases: int
    loads_running: int
    loads_waiting: int
    callers_waiting: int
    fleet_up: bool


def sum_of(stocks: Sequence[Stock]) -> Stock:
    """Return what several hold of one budget. What is free is free for each of them, up to its own most."""
    numbers = {name: sum(getattr(one, name) for one in stocks) for name in _ADDED}
    return Stock(
        artifacts=sum((Counter(one.artifacts) for one in stocks), Counter()),
        segments=sum((Counter(one.segments) for one in stocks), Counter()),
        free_bytes=max(one.free_bytes for one in stocks),
        fleet_up=all(one.fleet_up for one in stocks),
        **numbers,
    )


_ADDED = {field.name for field in fields(Stock)} - {"artifacts", "segments", "free_bytes", "fleet_up"}
