"""Plays histories and looks for their orders: ``python -m histories [--histories N] [--of-daemons N] [--seed N]``.

The first that no order explains ends it; its seed tells it again. What was found goes to the file of ``--out``.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path

from histories.playing import Unexplained, of_cores, of_daemons
from kit.evidence import bound_of, write_evidence


def main() -> int:
    """Play, and return 1 if anything was not explained."""
    parser = argparse.ArgumentParser(prog="histories", description=__doc__)
    parser.add_argument("--histories", type=int, default=12_000)
    parser.add_argument("--of-daemons", type=int, default=300)
    parser.add_argument("--abreast", type=int, default=os.cpu_count(), help="cores beside each other")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more after so long")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--out", type=Path, help="file of evidence to write")
    asked = parser.parse_args()
    begun = time.monotonic()
    try:
        tallies = [
            of_daemons(asked.of_daemons, asked.seed),
            of_cores(asked.histories, asked.seed, asked.abreast, begun + asked.seconds),
        ]
    except Unexplained as unexplained:
        print(f"seed {asked.seed}: no order explains\n{unexplained}")
        return 1
    count = sum(tally.histories for tally in tallies)
    print(f"seed {asked.seed}: {count} histories, each explained")
    if asked.out:
        facts = {
            "what": "histories of callers at once: an order of their calls that explains every answer, looked for",
            "seed": asked.seed,
            "seconds": round(time.monotonic() - begun),
            "histories": count,
            "faults": 0,
            "bound_95": bound_of(count),
            "subjects": {tally.of: tally.facts() for tally in tallies},
        }
        write_evidence(asked.out, facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
