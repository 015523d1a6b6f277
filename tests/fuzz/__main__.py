"""Fuzzes targets one after another: ``python -m fuzz [--seconds S] [--corpus DIR] [TARGET ...]``.

Each runs in a process of its own, guided by coverage (atheris). What is found stands in
the corpus directory as ``found-...`` and fails the run; what widened the coverage stays
there for the next run.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.evidence import bound_of, write_evidence

READERS, OUTSIDE = "fuzz.targets", "fuzz.outside"

TARGETS = {
    "safetensors": READERS,
    "tensorizer": READERS,
    "adapter-config": READERS,
    "adapter-weights": READERS,
    "weights-index": READERS,
    "source-uri": READERS,
    "segment-header": READERS,
    "segment-tables": READERS,
    "registry-record": READERS,
    "chunk-frame": READERS,
    "redis-layout": READERS,
    "store-value": OUTSIDE,
    "node-word": OUTSIDE,
    "redis-reply": OUTSIDE,
    "other-uri": OUTSIDE,
    "http-request": OUTSIDE,
    "requests": "fuzz.served",
}
"""Every target, and the module that only its child imports: instrumented, and no more than it needs."""

INPUT_BYTES_MAX = 64 << 10
GRACE_SECONDS = 120
"""What a target may take beside its fuzzing: starting, and measuring its corpus."""


def main() -> int:
    """Fuzz, and return 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="of each target")
    parser.add_argument("--corpus", type=Path, help="directory that keeps what was learnt; default: a new one")
    parser.add_argument("--out", type=Path, help="file of evidence to write")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; default: all")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warmshelf-fuzz-", dir="/dev/shm") as fresh:
        corpus = asked.corpus or Path(fresh, "corpus")
        results = {name: fuzz(name, asked.seconds, corpus / name, fresh) for name in asked.targets or TARGETS}
    if asked.out:
        write_evidence(asked.out, facts_of(results, asked.seconds))
    return int(None in results.values())


def facts_of(results: Mapping[str, int | None], seconds: int) -> Mapping[str, Any]:
    """Return what the file of evidence says: how many inputs each target was given."""
    counts = {name: count or 0 for name, count in results.items()}
    total = sum(counts.values())
    return {
        "what": "inputs guided by coverage: errors without a type, more memory or time than an input's size allows",
        "seconds_each": seconds,
        "executions": total,
        "found": sum(count is None for count in results.values()),
        "bound_95": bound_of(total),
        "targets": counts,
    }


def fuzz(name: str, seconds: int, corpus: Path, temporary: str) -> int | None:
    """Fuzz one target; print and return how much was tried, None if anything was found.

    A child ends without cleaning up, so what it makes is made in a directory of ours.
    """
    corpus.mkdir(parents=True, exist_ok=True)
    # The fuzzer's own limit counts the largest size its process ever had, also as a copy of ours; the oracle measures.
    limits = (f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES_MAX}", "-timeout=10", "-rss_limit_mb=0")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "fuzz.child",
            TARGETS[name],
            name,
            corpus,
            *limits,
            "-print_final_stats=1",
            f"-artifact_prefix={corpus}/found-",
        ],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="backslashreplace",
        timeout=seconds + GRACE_SECONDS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": temporary},
    )
    executed = re.search(r"number_of_executed_units: (\d+)", done.stdout)
    count = int(executed[1]) if executed else 0
    print(f"{name}: {count} inputs, {'nothing found' if not done.returncode else 'FOUND'}", flush=True)
    if done.returncode:
        print(done.stdout[-4000:], flush=True)
    return None if done.returncode else count


if __name__ == "__main__":
    sys.exit(main())
