"""The benchmarks' own code, run on tiny artifacts: it must measure every row. No time is judged."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

ROW_COUNTS = {"mapped": 4, "cold": 4, "stream": 1, "memory": 1, "restart": 3, "health": 1}
"""Rows of each benchmark, where file systems may be mounted."""


def measure(out, *arguments):
    command = [sys.executable, "-m", "benchmarks.run", "--quick", "--out", str(out), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench")
    done = measure(out)
    assert done.returncode == 0, done.stdout + done.stderr
    return out, done.stdout


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ROW_COUNTS)
def test_every_row_has_numbers_for_both_sides(measured, name):
    rows = json.loads((measured[0] / f"{name}.json").read_text())["rows"]
    assert len(rows) == ROW_COUNTS[name] - (2 if name == "cold" and os.geteuid() else 0)
    for row in rows:
        samples = [*row["ours"]["samples"], *row["other"]["samples"]]
        assert all(math.isfinite(sample) and sample > 0 for sample in samples), row
        assert len(row["ours"]["samples"]) >= 2
        assert math.isfinite(row["ratio"])


def test_the_table_and_the_files_say_what_was_run_and_where(measured):
    out, printed = measured
    found = json.loads((out / "health.json").read_text())
    assert "--quick" in found["command"]
    assert found["machine"]["cores"] == os.cpu_count()
    assert "health check" in printed
    assert found["command"] in printed.replace("\n", "")


def test_nothing_but_the_samples_stays(measured):
    assert sorted(path.name for path in measured[0].iterdir()) == sorted(f"{name}.json" for name in ROW_COUNTS)


def test_an_unknown_row_is_named_with_those_there_are(tmp_path):
    done = measure(tmp_path, "--rows", "cold,nonsense")
    assert done.returncode == 2
    assert "no such row: nonsense" in done.stderr
    assert "restart" in done.stderr
