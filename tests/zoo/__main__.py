"""Plants every defect, one after another: ``python -m zoo [--out FILE] [NAME ...]``; fails if one is not seen.

Every file of tests is run without a defect, too, where it must pass. Of defects that are not planted now the file of
evidence keeps what it had, with the commit of which that was so.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kit.evidence import commit, write_evidence
from zoo.defects import DEFECTS, Defect
from zoo.keeper import Copy


def main() -> int:
    """Plant, and return 1 if a defect went unseen or a test fails without one."""
    parser = argparse.ArgumentParser(prog="zoo", description=__doc__)
    parser.add_argument("--out", type=Path, help="file of evidence to write")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    asked = parser.parse_args()
    chosen = [defect for defect in DEFECTS if not asked.names or defect.name in asked.names]
    with tempfile.TemporaryDirectory(prefix="warmshelf-zoo-", dir="/dev/shm") as directory:
        Path(directory).chmod(0o755)  # daemons of other users run this copy too, or else what is installed
        copy = Copy(Path(directory))
        broken = [test for test in sorted({defect.test for defect in chosen}) if not _passes(copy, test)]
        rows = [_see(copy, defect) for defect in chosen]
    seen = sum(row["seen_by"] != "" for row in rows)
    print(f"{seen} of {len(rows)} defects seen; {len(broken)} files of tests fail without one")
    if asked.out and not broken:
        _write(asked.out, rows)
    return int(seen < len(rows) or bool(broken))


def _write(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Write what was seen now, and keep what was seen of the others."""
    before = json.loads(path.read_text()) if path.exists() else {"defects": [], "commit": ""}
    known = {row["name"]: {"commit": before["commit"], **row} for row in before["defects"]}
    known |= {row["name"]: row for row in rows}
    whole = [known[defect.name] for defect in DEFECTS if defect.name in known]
    seen = sum(row["seen_by"] != "" for row in whole)
    write_evidence(
        path, {"what": "defects planted one at a time", "planted": len(whole), "seen": seen, "defects": whole}
    )


def _passes(copy: Copy, test: str) -> bool:
    outcome = copy.run(test)
    if outcome.failed_count:
        print(f"fails without a defect: {test}\n{outcome.text[-3000:]}", flush=True)
    return not outcome.failed_count


def _see(copy: Copy, defect: Defect) -> dict[str, str]:
    with copy.planted(defect):
        outcome = copy.run(defect.test)
    seen = outcome.first if outcome.failed_count else ""
    print(f"{defect.name:24} {seen or 'NOT SEEN':90.90} {outcome.seconds:5.1f} s", flush=True)
    return {"name": defect.name, "breaks": defect.breaks, "test": defect.test, "seen_by": seen, "commit": commit()}


if __name__ == "__main__":
    sys.exit(main())
