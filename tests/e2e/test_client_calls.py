"""The client's and the command's calls that outlive something: watches a daemon, detached loads their caller."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import warmshelf
from kit.models import content_digest, filled, safetensors_bytes, write_model
from kit.processes import Daemon, eventually, read_all
from warmshelf import ArtifactState, Change, ChangeKind, errors

MIB = 1 << 20
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(shared: Daemon) -> Run:
    """Runs the command against the shared daemon."""

    def run_it(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "warmshelf.cli", "--address", shared.address, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    return run_it


@pytest.fixture
def loaded(shared: Daemon, models: Path) -> Path:
    """The source of an artifact ``a`` that is resident."""
    path = models / "a.safetensors"
    path.write_bytes(safetensors_bytes(filled(1)))
    with shared.connect() as shelf:
        shelf.register("a", path)
        shelf.acquire("a", timeout=20).release()
        eventually(lambda: shelf.get("a").digest != "", "its digest is known")
    return path


def told(change: Change) -> tuple[str, str]:
    return change.kind.value, change.artifact_id


def until(watch: Iterator[Change], kind: ChangeKind) -> list[Change]:
    seen = []
    for change in watch:
        seen.append(change)
        if change.kind is kind:
            return seen
    pytest.fail("the watch ended")


# --- watches ---


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("way", ["unix", "tcp"])
def test_a_watch_starts_over_when_the_daemon_was_started_anew(
    daemon: Daemon, models: Path, way: str, number: signal.Signals
) -> None:
    """B53: numbers of a daemon are not those of the next."""
    write_model(models / "a.safetensors", 1)
    daemon.start()
    address = daemon.address if way == "unix" else daemon.tcp_address
    with warmshelf.connect(address, timeout=20) as shelf, shelf.watch() as watch:
        before = until(watch, ChangeKind.COMPLETE)[-1].sequence
        shelf.register("a", models / "a.safetensors")
        assert told(next(watch)) == ("changed", "a")
        daemon.kill(number)
        daemon.start()
        seen = until(watch, ChangeKind.COMPLETE)
        assert [told(change) for change in seen] == [("started_over", ""), ("changed", "a"), ("complete", "")]
        assert seen[-1].sequence > before
        shelf.remove("a")
        assert told(next(watch)) == ("removed", "a")


def test_a_stopping_daemon_waits_for_no_watch(daemon: Daemon) -> None:
    daemon.start(env={"WARMSHELF_DRAIN_SECONDS": "25"})
    with daemon.connect() as shelf, shelf.watch() as watch:
        assert next(watch).kind is ChangeKind.COMPLETE
        start = time.monotonic()
        assert daemon.kill(signal.SIGTERM) == 0
        assert time.monotonic() - start < 15


def test_the_command_prints_changes_as_they_happen(shared: Daemon, loaded: Path) -> None:
    command = [sys.executable, "-m", "warmshelf.cli", "--address", shared.address, "watch"]
    with (
        subprocess.Popen([*command, "--output", "json"], stdout=subprocess.PIPE, text=True) as process,
        shared.connect() as shelf,
    ):
        assert process.stdout is not None
        first, complete = (json.loads(process.stdout.readline()) for _ in range(2))
        assert first["changed"]["artifact_id"] == "a"
        assert "snapshot_complete" in complete
        shelf.remove("a")
        assert json.loads(process.stdout.readline())["removed_artifact_id"] == "a"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    with subprocess.Popen([*command, "--after", "7"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline().split()[1] for _ in range(2)] == ["started_over", "complete"]
        process.stdout.close()
        process.send_signal(signal.SIGTERM)


# --- loads ---


def test_a_detached_load_goes_on_without_its_caller(daemon: Daemon, models: Path) -> None:
    tensors = write_model(models / "a.safetensors", 1, size=4 * MIB)
    daemon.start(failpoints="load.part=delay(1000)")
    with daemon.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        caller = [sys.executable, "-m", "warmshelf.cli", "--address", daemon.address, "load", "a", "--detach"]
        done = subprocess.run(caller, capture_output=True, text=True, check=True)
        _, row = done.stdout.splitlines()
        assert row.split()[0] == "a"
        assert "ready" not in row.split()
        eventually(lambda: shelf.get("a").state is ArtifactState.READY, "it is loaded")
        with shelf.acquire("a", resident_only=True) as lease:
            assert read_all(lease) == tensors


def test_a_detached_load_ends_at_its_deadline(daemon: Daemon, models: Path) -> None:
    write_model(models / "a.safetensors", 1, size=4 * MIB)
    daemon.start(failpoints="load.part=delay(2500)")
    with daemon.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        list(shelf.load("a", timeout=1.5, detach=True))
        eventually(lambda: shelf.get("a").state is ArtifactState.LOADING, "it is loading")
        eventually(lambda: shelf.get("a").state is ArtifactState.REGISTERED, "its time is up")
        eventually(lambda: daemon.leftovers() == [], "nothing is left of it")
        assert daemon.segments() == []


def test_who_joins_a_detached_load_and_leaves_does_not_stop_it(daemon: Daemon, models: Path) -> None:
    write_model(models / "a.safetensors", 1, size=4 * MIB)
    daemon.start(failpoints="load.part=delay(1000)")
    with daemon.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        list(shelf.load("a", detach=True))
        steps = shelf.load("a")
        next(steps)
        steps.close()  # type: ignore[attr-defined]
        eventually(lambda: shelf.get("a").state is ArtifactState.READY, "it is loaded")


# --- the command ---


def test_the_command_tells_capacity_leases_and_what_it_verified(shared: Daemon, run: Run, loaded: Path) -> None:
    with shared.connect(holder="pod-1") as shelf, shelf.acquire("a", timeout=20):
        table = run("leases", "a").stdout.splitlines()
        assert table[1].split()[:3] == ["a", "1", "pod-1"]
        assert json.loads(run("leases", "--output", "json").stdout)["leases"][0]["holder"] == "pod-1"
        found = json.loads(run("capacity", "--like", "a", "--output", "json").stdout)
        assert int(found["resident_bytes"]) == int(found["held_bytes"]) > 0
        assert int(found["fit_free_count"]) > 1
        assert "more like a" in run("capacity", "--like", "a").stdout
    checked = json.loads(run("verify", "a", "--output", "json").stdout)["checked_bytes"]
    assert int(checked) >= 256
    assert run("verify", "a").stdout == f"verified a: {checked} bytes\n"
    refused = run("verify", "nobody")
    assert (refused.returncode, refused.stderr.split(":")[0]) == (1, "ARTIFACT_NOT_FOUND")


def test_the_command_exports_once(run: Run, loaded: Path, tmp_path: Path) -> None:
    done = run("export", "a", "--out", str(tmp_path / "out"))
    assert done.stdout == f"exported a, generation 1, to {tmp_path}/out\n"
    assert os.listdir(tmp_path / "out") == ["model.safetensors"]
    again = run("export", "a", "--out", str(tmp_path / "out"))
    assert again.returncode == 1
    assert again.stderr.startswith("INVALID_REQUEST: directory ")
    assert json.loads(run("export", "a", "--out", str(tmp_path / "b"), "--output", "json").stdout)["generation"] == "1"
    assert run("export", "a").returncode == 2


def test_a_digest_is_waited_for_and_compared(shared: Daemon, models: Path) -> None:
    """A base's digest comes after READY; who expects one waits for it."""
    path = models / "m.safetensors"
    path.write_bytes(safetensors_bytes(filled(7, size=8 * MIB)))
    digest = content_digest(filled(7, size=8 * MIB))
    with shared.connect() as shelf:
        shelf.register("m", path)
        raised: list[BaseException] = []

        def expect_another() -> None:
            try:
                shelf.acquire("m", timeout=20, expected_digest="blake3:" + "0" * 64)
            except errors.DigestMismatch as error:
                raised.append(error)

        thread = threading.Thread(target=expect_another)
        thread.start()
        shelf.acquire("m", timeout=20, expected_digest=digest).release()
        thread.join()
        assert [error.details["actual"] for error in raised] == [digest]  # type: ignore[attr-defined]
