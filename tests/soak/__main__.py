"""Soaks a fleet: ``python -m soak [--minutes N] [--share S] [--seed N] [--out FILE] [--figure FILE]``.

Two hours are a week: N minutes have their part of what happens in one, or the share of it that
is named. What was seen goes to the file of ``--out``, and what is wrong fails the run.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from kit.evidence import write_evidence
from soak.plan import WEEK_MINUTES, plan_of
from soak.running import facts_of, run
from soak.stage import opened


def main() -> int:
    """Soak, and return 1 if anything is not as it must be."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=WEEK_MINUTES)
    parser.add_argument("--share", type=float, help="of a week; default: its part of two hours")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--note", default="", help="what the file of evidence is to say of the machine")
    parser.add_argument("--out", type=Path, help="file of evidence to write")
    parser.add_argument("--figure", type=Path, help="picture to draw")
    asked = parser.parse_args()
    plan = plan_of(asked.minutes, asked.share)
    with tempfile.TemporaryDirectory(prefix="warmshelf-soak-") as root, opened(Path(root), plan, asked.seed) as stage:
        seen = run(stage)
    facts = facts_of(seen, plan, asked.seed, asked.note)
    for row in facts["verdicts"]:
        print("good" if row["is_good"] else "BAD", f"{row['what']}: {row['found']:g} of {row['limit']:g} {row['unit']}")
    if asked.out:
        write_evidence(asked.out, facts)
    if asked.figure:
        from soak.figure import draw  # noqa: PLC0415 - matplotlib only where it is drawn

        draw(facts, asked.figure)
    return int(not all(row["is_good"] for row in facts["verdicts"]))


if __name__ == "__main__":
    sys.exit(main())
