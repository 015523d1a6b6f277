"""The ``warmshelf`` command against a daemon: what it prints, and its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.models import content_digest, filled, safetensors_bytes, write_model
from kit.processes import Daemon

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def command(shared: Daemon) -> Command:
    """Run the command against the daemon; gives what it printed and its exit status."""

    def run(*arguments: str, address: str = shared.address) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "warmshelf.cli", *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "WARMSHELF_ADDRESS": address},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_an_artifact_is_followed_through_its_life_in_json(shared: Daemon, models: Path, command: Command) -> None:
    """The protocol's field names, and nothing else on standard output."""
    path = models / "a.safetensors"
    path.write_bytes(safetensors_bytes(filled(1)))
    digest = content_digest(filled(1))
    registered = answer(command("register", "org/a", str(path), "--digest", digest, "--output", "json"))
    assert registered["artifact_id"] == "org/a"
    assert registered["spec"]["source"] == {"uri": f"file://{path}", "revision": "", "expected_digest": digest}
    loaded = answer(command("load", "org/a", "--output", "json"))["artifacts"]
    assert [(a["state"], a["generation"], a["digest"]) for a in loaded] == [("ARTIFACT_STATE_READY", "1", digest)]
    listed = answer(command("--output", "json", "list"))["artifacts"]
    assert [a["artifact_id"] for a in listed] == ["org/a"]
    shown = answer(command("show", "org/a", "--output", "json"))
    assert shown["inspection"]["file_names"] == ["a.safetensors"]
    with shared.connect(holder="pod-7") as shelf, shelf.acquire("org/a", timeout=20):
        leases = answer(command("leases", "--output", "json"))["leases"]
        assert [(lease["artifact_id"], lease["holder"], lease["lease_id"]) for lease in leases] == [
            ("org/a", "pod-7", "")
        ]
    evicted = answer(command("evict", "org/a", "--output", "json"))
    assert evicted["state"] == "ARTIFACT_STATE_REGISTERED"
    assert answer(command("remove", "org/a", "--output", "json")) == {}
    assert shared.segments() == []


def test_what_the_daemon_refuses_is_status_1_with_reason_text_and_numbers(
    shared: Daemon, models: Path, command: Command
) -> None:
    whole = safetensors_bytes(filled(1))
    (models / "cut.safetensors").write_bytes(whole[:-1])
    write_model(models / "good.safetensors", 1)
    cut = command("register", "cut", str(models / "cut.safetensors"))
    assert (cut.returncode, cut.stdout) == (1, "")
    assert "SOURCE_TRUNCATED: cut.safetensors" in cut.stderr
    assert f"size_bytes={len(whole) - 1}" in cut.stderr
    for refused, reason in (
        (command("show", "nobody"), "ARTIFACT_NOT_FOUND"),
        (command("register", "x", "file:///etc/passwd"), "SOURCE_NOT_ALLOWED"),
        (command("register", "../x", str(models / "good.safetensors")), "INVALID_ID"),
    ):
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr.startswith(reason)
    with shared.connect() as shelf:
        shelf.register("good", models / "good.safetensors")
        with shelf.acquire("good", timeout=20):
            leased = command("evict", "good")
            assert leased.returncode == 1
            assert "LEASED" in leased.stderr
            assert "lease_count=1" in leased.stderr
        some = command("load", "nobody", "good", "--output", "json")
        assert some.returncode == 1
        assert [a["artifact_id"] for a in json.loads(some.stdout)["artifacts"]] == ["good"]


@pytest.mark.parametrize(
    "arguments", [("fly",), ("load",), ("show", "a", "--output", "xml"), ("--address", "x", "list")]
)
def test_wrong_usage_is_status_2(command: Command, arguments: tuple[str, ...]) -> None:
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr


def test_no_daemon_is_status_3(command: Command, tmp_path: Path) -> None:
    done = command("list", address=f"unix://{tmp_path}/nobody.sock")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("DAEMON_UNREACHABLE")


def test_the_tables_for_people_say_what_is_there(shared: Daemon, models: Path, command: Command) -> None:
    write_model(models / "a.safetensors", 1)
    assert command("register", "org/a", str(models / "a.safetensors"), "--keep").returncode == 0
    listed = command("list")
    assert listed.returncode == 0
    assert "org/a" in listed.stdout
    assert f"file://{models}/a.safetensors" in listed.stdout
    shown = command("show", "org/a")
    for text in ("safetensors", "kept resident", "yes", "a.safetensors"):
        assert text in shown.stdout
