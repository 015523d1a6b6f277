"""``warmshelf push`` and ``register-many`` against a daemon."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kit.models import filled
from kit.processes import Daemon, read_all
from kit.shelf_sources import write, write_adapter

pytestmark = pytest.mark.e2e


def run(daemon: Daemon, *words: str, stdin: str = "") -> tuple[int, str, str]:
    command = [sys.executable, "-m", "warmshelf.cli", *words, "--address", daemon.address]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_directory_is_pushed_and_shown(shared: Daemon, tmp_path: Path) -> None:
    home = write_adapter(tmp_path / "home")
    status, out, noise = run(shared, "push", "acme/a", str(home), "--base", "acme/base", "--output", "json")
    assert (status, noise) == (0, "")
    found = json.loads(out)
    assert (found["artifact_id"], found["kind"]) == ("acme/a", "ARTIFACT_KIND_ADAPTER")
    with shared.connect() as shelf, shelf.acquire("acme/a") as lease:
        assert len(lease) == 2
    write(tmp_path / "other.safetensors", filled(1))
    status, out, noise = run(shared, "push", "acme/a", str(tmp_path / "other.safetensors"))
    assert (status, out, noise.partition(":")[0]) == (1, "", "SPEC_MISMATCH")
    assert run(shared, "push", "b", str(tmp_path / "nothing"))[0] == 1
    assert run(shared, "push", "b")[0] == 2


def test_lines_are_registered_and_what_is_deferred_says_so(shared: Daemon, models: Path, tmp_path: Path) -> None:
    path = write(models / "a.safetensors", filled(1))
    lines = "\n".join(json.dumps({"id": name, "source": str(path)}) for name in ("a", "b", "../c"))
    status, out, noise = run(shared, "register-many", "-", "--defer", stdin=lines + "\n\n")
    assert (status, out) == (1, "registered 2 of 3\n")
    assert noise.startswith("../c: INVALID_ID")
    assert "not inspected yet" in run(shared, "show", "a")[1]
    with shared.connect() as shelf, shelf.acquire("a") as lease:
        assert read_all(lease) == {"w": filled(1)["w"][2]}
    assert "not inspected yet" not in run(shared, "show", "a")[1]
    file = tmp_path / "x.jsonl"
    file.write_text('{"id": "d", "source": "' + str(path) + '", "keep": true}')
    status, out, _ = run(shared, "register-many", str(file), "--output", "json")
    assert (status, json.loads(out)["results"]) == (0, [{"artifact_id": "d"}])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("x", "line 2"),
        ("[]", "no JSON object"),
        ('{"id": "a"}', "source is missing"),
        ('{"source": "a"}', "id is missing"),
        ('{"id": "a", "source": 1}', "no str"),
        ('{"id": "a", "source": "b", "keep": 1}', "no bool"),
        ('{"id": "a", "source": "b", "bass": "c"}', "'bass' is no field"),
    ],
)
def test_a_line_that_is_not_right_is_named_and_nothing_is_registered(shared: Daemon, line: str, why: str) -> None:
    status, _, noise = run(shared, "register-many", "-", stdin='{"id": "ok", "source": "/x"}\n' + line)
    assert status == 2
    assert why in noise
    with shared.connect() as shelf:
        assert shelf.list() == []
