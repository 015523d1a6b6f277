"""What the README shows is run: its example in Python, and its commands, against a daemon."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.models import write_model
from kit.processes import Daemon

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
SOURCE = "/models/base"

pytestmark = pytest.mark.e2e


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with the README's base among its sources."""
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm") as arena:
        it = Daemon(tmp_path, Path(arena), tmp_path / "models")
        write_model(tmp_path / "models" / "base" / "model.safetensors", 1)
        (tmp_path / "models" / "base" / "config.json").write_text('{"model_type": "tiny"}')
        yield it.start("--budget", "64MiB")
        it.kill(signal.SIGTERM)
        it.check()


def run(daemon: Daemon, command: list[str]) -> str:
    """Run as a user would, but for the address and the place of the model; return what it prints."""
    environment = {**os.environ, "WARMSHELF_ADDRESS": daemon.address}
    words = [word.replace(SOURCE, f"{daemon.models}/base") for word in command]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_runs_and_its_tensors_outlive_the_lease(daemon: Daemon) -> None:
    pytest.importorskip("torch")
    found = re.search(r"<!-- example: .*?-->\n```python\n(.*?)```", README, re.DOTALL)
    assert found is not None
    lines = run(daemon, [sys.executable, "-c", found[1]]).splitlines()
    assert "mapped 1 4 tiny" in lines
    assert lines[-1] == "layer.0.weight torch.bfloat16 (131072,)"


def test_the_commands_run_in_the_order_in_which_they_stand(daemon: Daemon) -> None:
    commands = [shlex.split(line) for line in re.findall(r"^\$ warmshelf (.*)$", README, re.MULTILINE)]
    shown = {words[0]: run(daemon, [sys.executable, "-m", "warmshelf.cli", *words]) for words in commands}
    looking = ["list", "show", "leases", "capacity", "budget", "verify", "export"]
    assert list(shown) == ["register", "load", *looking, "push", "evict", "remove"]
    assert "ready" in shown["list"]
    assert "model.safetensors" in shown["show"]
    assert "registered" in shown["evict"]
