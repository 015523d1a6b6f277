"""How much of everything happens in how long. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction

WEEK_MINUTES = 120
WARM_UP = 0.15
"""Of a run: caches fill, pools of threads grow, the allocator finds its size. What is judged comes after it."""

CHECKPOINT_SECONDS = 120.0
CHECKPOINT_COUNT_MIN = 4
SAMPLE_SECONDS = 5.0
SAMPLE_COUNT_MIN = 8


@dataclass(frozen=True)
class Counts:
    """How often each thing happens."""

    acquires: int
    registrations: int
    worker_deaths: int
    daemon_kills: int
    redis_outages: int
    rotations: int

    def of(self, share: float) -> Counts:
        """Return so much of it, at least one of each."""
        return Counts(**{name: math.ceil(count * share) for name, count in asdict(self).items()})


WEEK = Counts(
    acquires=1_000_000,
    registrations=100_000,
    worker_deaths=2_000,
    daemon_kills=200,
    redis_outages=50,
    rotations=20,
)


@dataclass(frozen=True)
class Plan:
    """A run: how long, and how much in all."""

    seconds: float
    counts: Counts

    def rate(self, what: str) -> float:
        """Return how often a second something happens."""
        return float(getattr(self.counts, what) / self.seconds)

    def events(self) -> list[tuple[float, str]]:
        """Return when, in seconds from the beginning, what is done to the fleet or asked of it; in order."""
        return sorted(self._events())

    def _events(self) -> Iterator[tuple[float, str]]:
        for name in ("daemon_kills", "redis_outages", "rotations"):
            yield from self._spread(name, getattr(self.counts, name))
        yield from self._spread("sample", max(SAMPLE_COUNT_MIN, int(self.seconds / SAMPLE_SECONDS)))
        yield from self._spread("checkpoint", max(CHECKPOINT_COUNT_MIN, int(self.seconds / CHECKPOINT_SECONDS)))

    def _spread(self, name: str, count: int) -> Iterator[tuple[float, str]]:
        """Yield even distances; each name is shifted a little, so that not all happens at the same moments."""
        shift = Fraction(
            1 + sorted(("daemon_kills", "redis_outages", "rotations", "sample", "checkpoint")).index(name), 6
        )
        yield from ((float((number + shift) / count) * self.seconds, name) for number in range(count))


def plan_of(minutes: float, share: float | None = None) -> Plan:
    """Return the plan of a run: its part of a week's two hours, or another share of the week."""
    return Plan(minutes * 60, WEEK.of(minutes / WEEK_MINUTES if share is None else share))
