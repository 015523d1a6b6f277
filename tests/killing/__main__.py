"""Kills the daemon at every point, round after round: ``python -m killing [--rounds N] [--seconds S] [--seed N]``.

Every round has each point once, in another order. The first thing that is wrong ends the
run; its seed tells it again. What was proven goes to the file of ``--out``.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from killing.points import POINTS, chain
from killing.scene import Scene, Wrong, opened
from kit.evidence import bound_of, write_evidence


def main() -> int:
    """Kill, and return 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="killing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="at most")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no new round after so long")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--out", type=Path, help="file of evidence to write")
    asked = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="warmshelf-killing-") as root, opened(Path(root), asked.seed) as scene:
        try:
            reports = kill_rounds(scene, asked.rounds, begun + asked.seconds)
        except Wrong as wrong:
            print(f"seed {asked.seed}: {wrong}")
            return 1
        facts = facts_of(scene, reports, asked.seed, time.monotonic() - begun)
    print(f"seed {asked.seed}: {facts['kills']} kills at {len(POINTS)} points, nothing wrong")
    if asked.out:
        write_evidence(asked.out, facts)
    return 0


def kill_rounds(scene: Scene, round_count: int, deadline: float) -> list[dict[str, Any]]:
    """Kill at every point in each round, look at everything in the end, and return what the workers have seen."""
    names = list(POINTS)
    for number in range(round_count):
        if time.monotonic() > deadline:
            break
        scene.chance.shuffle(names)
        for name in chain(names):
            scene.kill_at(name)
        print(f"round {number + 1}: {scene.kills.total()} kills", flush=True)
    return scene.last_look()


def facts_of(scene: Scene, seen: list[dict[str, Any]], seed: int, seconds: float) -> Mapping[str, Any]:
    """Return what a run without a fault has shown."""
    reports = {report["transport"]: report for report in seen}
    kills = scene.kills.total()
    return {
        "what": "SIGKILL of the daemon at every failpoint under load; wrong, foreign, stale or lost bytes, things left",
        "seed": seed,
        "seconds": round(seconds),
        "kills": kills,
        "faults": 0,
        "bound_95": bound_of(kills),
        "looks": scene.looks,
        "bytes_compared": {
            "after restarts": scene.bytes_compared,
            **{f"by the {transport} worker": report["bytes_read"] for transport, report in reports.items()},
        },
        "reads_by_workers": {transport: report["reads"] for transport, report in reports.items()},
        "points": dict(sorted(scene.kills.items())),
    }


if __name__ == "__main__":
    sys.exit(main())
