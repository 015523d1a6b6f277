"""One run: does what the plan says when it says so, and keeps what was seen."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from soak.judging import judge, rows_of
from soak.looking import checkpoint, sample
from soak.plan import Plan
from soak.stage import Stage

OUTAGES = ("hung", "emptied")
OUTAGE_SHARE = 0.1
"""Of the time between two outages, what one takes."""

OUTAGE_SECONDS_MAX = 10.0
SAMPLES_KEPT = 240
"""In the file of evidence: enough for the picture."""


@dataclass
class Seen:
    """What a run has seen and done."""

    samples: list[Mapping[str, Any]] = field(default_factory=list)
    checkpoints: list[Mapping[str, Any]] = field(default_factory=list)
    shown_seconds: list[float] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


class _Run:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._begun = time.monotonic()
        self._outage_until = 0.0
        self.seen = Seen()

    def go(self) -> Seen:
        plan = self._stage.plan
        self._stage.go()
        for at, name in plan.events():
            self._wait(at)
            getattr(self, f"_{name}")()
        self._wait(plan.seconds)
        self._checkpoint()
        self.seen.seconds = time.monotonic() - self._begun
        return self.seen

    def _wait(self, at: float) -> None:
        """Wait for a moment of the run; an outage that ends before it ends in time."""
        for until in sorted({min(at, self._outage_until), at} if self._stage.outage else {at}):
            time.sleep(max(0.0, self._begun + until - time.monotonic()))
            if self._stage.outage and until >= self._outage_until:
                self._stage.end_outage()

    def _daemon_kills(self) -> None:
        self._stage.kill()
        self.seen.done["daemon_kills"] += 1

    def _redis_outages(self) -> None:
        count = self.seen.done["redis_outages"]
        self._stage.end_outage()
        self._stage.begin_outage(OUTAGES[count % len(OUTAGES)])
        distance = self._stage.plan.seconds / self._stage.plan.counts.redis_outages
        self._outage_until = time.monotonic() - self._begun + min(OUTAGE_SECONDS_MAX, OUTAGE_SHARE * distance)
        self.seen.done["redis_outages"] += 1

    def _rotations(self) -> None:
        self.seen.shown_seconds.append(self._stage.rotate())
        self.seen.done["rotations"] += 1

    def _sample(self) -> None:
        self.seen.samples.append(sample(self._stage, self._begun))

    def _checkpoint(self) -> None:
        self._stage.end_outage()
        self.seen.checkpoints.append(it := checkpoint(self._stage, self._begun))
        counts = _totals(it["told"])
        text = f"{counts['acquires']:,} acquires, {counts['registrations']:,} registrations"
        rss = {name: node["rss_kib"] >> 10 for name, node in it["nodes"].items()}
        print(
            f"{it['at_seconds']:.0f} s: {text}, {self.seen.done['daemon_kills']} kills; RSS {rss} MiB",
            *it["faults"],
            *it["wrong"],
            sep="\n  ",
            flush=True,
        )


def run(stage: Stage) -> Seen:
    """Carry out the stage's plan."""
    return _Run(stage).go()


def _totals(told: Mapping[str, Mapping[str, Any]]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for one in told.values():
        totals.update(one["counts"])
    return totals


def facts_of(seen: Seen, plan: Plan, seed: int, note: str) -> dict[str, Any]:
    """Return what the file of evidence says."""
    verdicts = judge(plan.seconds, seen.samples, seen.checkpoints, seen.shown_seconds)
    last = seen.checkpoints[-1]
    counts = _totals(last["told"]) + seen.done
    return {
        "what": "two daemons with TLS and a registry in Redis under load, one killed over and over, one never",
        "seed": seed,
        "seconds": round(seen.seconds),
        "note": note,
        "planned": asdict(plan.counts),
        "done": {name: counts[name] for name in asdict(plan.counts)},
        "counts": dict(sorted(counts.items())),
        "refused": {name: one["refused"] for name, one in last["told"].items() if one["refused"]},
        "brought_back": sum(one["brought_back"] for one in seen.checkpoints),
        "faults": sum(len(one["faults"]) + len(one["wrong"]) for one in seen.checkpoints),
        "verdicts": rows_of(verdicts),
        "checkpoints": [
            {key: one[key] for key in ("at_seconds", "nodes", "redis", "faults", "wrong")} for one in seen.checkpoints
        ],
        "samples": _thinned(seen.samples),
    }


def _thinned(samples: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return list(samples[:: max(1, -(-len(samples) // SAMPLES_KEPT))])
