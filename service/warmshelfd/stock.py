"""What the daemon holds at one moment, in numbers, for whoever shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
