"""What a run has shown: each thing that must hold, how it was, and whether that is good enough. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import median, median_low
from typing import Any

from soak.plan import WARM_UP

Point = tuple[float, float]
Seen = Sequence[Mapping[str, Any]]

RSS_MIB_AN_HOUR_MAX = 1.0
RSS_BY_AGE_MIB_MAX = 1.0
LONG_SECONDS = 1200.0
"""A shorter run is over before pools are full and the allocator has found its size: it has some slack."""

SHORT_RSS_MIB_MAX = 12.0
SHORT_COUNT_MAX = 6
AGE_SECONDS = 4.0
"""Daemons whose ages differ by less are of one age."""

SHOWN_SECONDS_MAX = 5.0
POINTS_MAX = 600
"""Of a slope, all pairs are compared."""


@dataclass(frozen=True)
class Verdict:
    """One thing that must hold: what was found, and the most that it may be."""

    what: str
    found: float
    limit: float
    unit: str = ""

    @property
    def is_good(self) -> bool:
        return self.found <= self.limit


def slope(points: Sequence[Point]) -> float:
    """Return the median of the slopes between all pairs of points (Theil and Sen): single peaks do not move it."""
    thin = points[:: max(1, -(-len(points) // POINTS_MAX))]
    slopes = [(y - x) / (b - a) for (a, x), (b, y) in combinations(thin, 2) if b > a]
    return median(slopes) if slopes else 0.0


def drift(values: Sequence[float]) -> float:
    """Return by how much the last half's middle is above the first half's: what stays, and not what comes and goes."""
    half = len(values) // 2
    return median_low(values[half:]) - median_low(values[:half]) if half else 0.0


def after_warm_up(seen: Seen, seconds: float) -> list[Mapping[str, Any]]:
    """Return what was seen after the warm-up."""
    return [one for one in seen if one["at_seconds"] >= WARM_UP * seconds]


def rss_points(seen: Seen, node: str) -> list[Point]:
    """Return hours and MiB."""
    return [(one["at_seconds"] / 3600, one["nodes"][node]["rss_kib"] / 1024) for one in seen if node in one["nodes"]]


def rss_by_age(samples: Seen, quiet: Seen) -> float:
    """Return by how much daemons of an age were larger in the second half than in the first, in MiB."""
    middle = median([one["at_seconds"] for one in quiet])
    halves: tuple[dict[int, list[float]], ...] = ({}, {})
    for one in samples:
        if mortal := one["nodes"].get("mortal"):
            by_age = halves[one["at_seconds"] > middle]
            by_age.setdefault(int(mortal["age_seconds"] / AGE_SECONDS), []).append(mortal["rss_kib"] / 1024)
    first, second = halves
    both = [age for age in first if age in second and min(len(first[age]), len(second[age])) >= 3]
    return median([median(second[age]) - median(first[age]) for age in both]) if both else 0.0


def judge(seconds: float, samples: Seen, checkpoints: Seen, shown_seconds: Sequence[float]) -> list[Verdict]:
    """Return all that must hold."""
    samples, quiet = after_warm_up(samples, seconds), after_warm_up(checkpoints, seconds)
    last = checkpoints[-1]
    refused: Counter[str] = sum(
        (Counter(one["refused"]) for name, one in last["told"].items() if "steady" in name), Counter()
    )
    return [
        Verdict("faults at checkpoints", sum(len(one["faults"]) for one in checkpoints), 0),
        Verdict("wrong bytes, and errors that no worker may see", len(last["wrong"]), 0),
        Verdict("calls refused by the daemon that is never killed", refused.total(), 0),
        *(Verdict(f"{key} at checkpoints", max(_of(checkpoints, key)), 0) for key in ("leases", "sessions")),
        *_drifts(samples, quiet, is_long=seconds >= LONG_SECONDS),
        Verdict("until a renewed certificate is shown", max(shown_seconds, default=0.0), SHOWN_SECONDS_MAX, "s"),
    ]


def _drifts(samples: Seen, quiet: Seen, *, is_long: bool) -> Iterator[Verdict]:
    """Yield what grew: of the last half above the first half, but the slope."""
    points = rss_points(quiet, "steady")
    if is_long:
        yield Verdict("RSS of the daemon that is never killed", slope(points), RSS_MIB_AN_HOUR_MAX, "MiB/h")
    else:
        yield Verdict("RSS of the daemon that is never killed", drift([y for _, y in points]), SHORT_RSS_MIB_MAX, "MiB")
    by_age = RSS_BY_AGE_MIB_MAX if is_long else SHORT_RSS_MIB_MAX
    yield Verdict("RSS of the daemon that is killed, at equal ages", rss_by_age(samples, quiet), by_age, "MiB")
    counted = {
        "files it has open beside segments": [one["nodes"]["steady"]["fds"] for one in quiet],
        "its threads": [one["nodes"]["steady"]["threads"] for one in quiet],
    }
    for what, values in counted.items():
        yield Verdict(what, drift(values), 0 if is_long else SHORT_COUNT_MAX)
    found = max(drift([one["told"][name]["own"]["fds"] for one in quiet]) for name in quiet[0]["told"])
    yield Verdict("files that a process of the load has open", found, 0 if is_long else SHORT_COUNT_MAX)


def _of(seen: Seen, key: str) -> list[float]:
    return [node[key] for one in seen for node in one["nodes"].values()]


def rows_of(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return them as a file has them."""
    return [{**asdict(one), "found": round(one.found, 3), "is_good": one.is_good} for one in verdicts]
