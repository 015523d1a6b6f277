"""The example of a tensor-parallel group, as a user runs it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.e2e
def test_four_ranks_answer_by_id_what_one_process_answers() -> None:
    command = [sys.executable, "-m", "examples.tensor_parallel"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("agrees") == 4
