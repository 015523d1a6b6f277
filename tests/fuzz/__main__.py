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
from pathlib import Path

READERS = "fuzz.targets"

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
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; default: all")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warmshelf-fuzz-", dir="/dev/shm") as fresh:
        corpus = asked.corpus or Path(fresh, "corpus")
        results = [fuzz(name, asked.seconds, corpus / name, fresh) for name in asked.targets or TARGETS]
    return int(not all(results))


def fuzz(name: str, seconds: int, corpus: Path, temporary: str) -> bool:
    """Fuzz one target; say whether nothing was found, and print how much was tried.

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
    print(f"{name}: {executed[1] if executed else 'no'} inputs, {'nothing found' if not done.returncode else 'FOUND'}")
    if done.returncode:
        print(done.stdout[-4000:])
    return not done.returncode


if __name__ == "__main__":
    sys.exit(main())
