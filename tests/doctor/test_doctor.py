"""The command looks at this machine, at a real daemon, and at mounts that are wrong in one way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kit.models import write_model
from kit.processes import Daemon

COMMAND = (sys.executable, "-m", "warmshelf.cli")
NOBODY = 65534
SECONDS = 30


class Doctor:
    """What the command said: its status, and findings by check."""

    def __init__(self, *arguments: str, prefix: Sequence[str] = ()) -> None:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("WARMSHELF_")}
        environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        done = subprocess.run(
            [*prefix, *COMMAND, "doctor", "--output", "json", *arguments],
            env=environ,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        self.status = done.returncode
        assert done.stdout, done.stderr
        answer = json.loads(done.stdout)
        self.level = answer["level"]
        self.found: dict[str, dict[str, Any]] = {one["check"]: one for one in answer["findings"]}

    def levels(self, *checks: str) -> list[str]:
        return [self.found[check]["level"] for check in checks]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that serves one resident model."""
    root = tmp_path_factory.mktemp("doctor")
    (root / "models").mkdir()
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm") as arena:
        it = Daemon(root, Path(arena), root / "models").start("--budget", "64MiB", "--pin", "off")
        write_model(root / "models" / "a.safetensors", 1, size=1 << 20)
        with it.connect() as shelf:
            shelf.register("org/a", f"file://{root}/models/a.safetensors")
            list(shelf.load("org/a"))
        yield it
        assert it.kill(signal.SIGTERM) == 0
        it.check()


def test_a_node_with_a_daemon_has_no_problem(daemon: Daemon) -> None:
    said = Doctor("--address", daemon.address)
    assert said.status == 0
    assert said.levels("daemon", "versions", "arena-memory", "arena-size", "memory-limit") == ["ok"] * 5
    assert said.levels("kernel-release", "kernel-fallocate", "kernel-F_SETLEASE") == ["ok"] * 3
    assert said.found["arena-size"]["numbers"]["budget_bytes"] == 64 << 20
    assert str(daemon.arena) in said.found["arena-memory"]["text"]
    numbers = said.found["huge-pages"]["numbers"]
    assert 10e6 < numbers["small_bytes_per_second"] < 1e12
    assert numbers["page_size_bytes"] in (4096, 2 << 20)
    assert said.found["page-locking"]["level"] in ("note", "warning")  # the daemon was told not to
    assert daemon.leftovers() == []


def test_an_arena_on_a_disk_and_a_budget_that_is_too_large_are_problems(tmp_path: Path, daemon: Daemon) -> None:
    said = Doctor("--address", daemon.address, "--arena", str(tmp_path / "not" / "there"), "--budget", "900TiB")
    assert (said.status, said.level) == (1, "problem")
    assert said.levels("arena-memory", "arena-size", "memory-limit") == ["problem"] * 3
    assert "tmpfs" in said.found["arena-memory"]["advice"]
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_of_a_known_size_is_measured_against_the_budget(tmp_path: Path) -> None:
    script = 'mount -t tmpfs -o size=64m,huge=always none "$1" && shift && exec "$@"'
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system of a known size")
    prefix = ("unshare", "--mount", "sh", "-euc", script, "sh", str(tmp_path))
    address = f"unix://{tmp_path}/api.sock"
    said = Doctor("--address", address, "--arena", str(tmp_path), "--budget", "65MiB", prefix=prefix)
    assert said.found["arena-size"]["numbers"] == {
        "budget_bytes": 65 << 20,
        "total_bytes": 64 << 20,
        "free_bytes": 64 << 20,
    }
    assert said.levels("daemon", "arena-size", "huge-pages") == ["problem", "problem", "ok"]
    assert said.found["huge-pages"]["numbers"]["page_size_bytes"] == 2 << 20
    assert said.status == 1


def test_without_a_daemon_the_node_is_checked_and_the_status_is_3(tmp_path: Path) -> None:
    said = Doctor("--address", f"unix://{tmp_path}/api.sock", "--budget", "1MiB")
    assert said.status == 3
    assert said.levels("daemon", "arena-memory") == ["problem", "ok"]
    assert Doctor("--worker", "--address", f"unix://{tmp_path}/api.sock").status == 3


def test_a_worker_beside_the_daemon_maps(daemon: Daemon) -> None:
    said = Doctor("--worker", "--address", daemon.address)
    assert (said.status, said.level) == (0, "note")  # this user could write, as the daemon does
    assert said.levels("worker-arena", "worker-same-arena", "worker-mapping") == ["ok"] * 3
    assert "arena-size" not in said.found


def test_a_worker_with_a_read_only_mount_elsewhere_has_the_daemons_files(daemon: Daemon, tmp_path: Path) -> None:
    script = 'mount --bind "$1" "$2" && mount -o remount,ro,bind "$2" && shift 2 && exec "$@"'
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    prefix = ("unshare", "--mount", "sh", "-euc", script, "sh", str(daemon.arena), str(tmp_path))
    said = Doctor("--worker", "--address", daemon.address, "--arena", str(tmp_path), prefix=prefix)
    assert (said.status, said.level) == (0, "ok"), said.found
    over_tcp = Doctor("--worker", "--address", daemon.tcp_address, "--arena", str(tmp_path), prefix=prefix)
    assert over_tcp.level == "ok", over_tcp.found


def test_a_worker_with_another_directory_is_told_so(daemon: Daemon, tmp_path: Path) -> None:
    said = Doctor("--worker", "--address", daemon.address, "--arena", str(tmp_path))
    assert said.status == 1
    assert said.levels("worker-same-arena", "worker-mapping") == ["problem", "problem"]
    assert str(daemon.arena) in said.found["worker-same-arena"]["text"]
    assert "segment_not_found" in said.found["worker-mapping"]["text"]
    missing = Doctor("--worker", "--address", daemon.address, "--arena", str(tmp_path / "none"))
    assert (missing.status, missing.found["worker-arena"]["level"]) == (1, "problem")


def test_a_worker_that_connects_by_tcp_and_names_no_arena_is_told_that_it_streams(daemon: Daemon) -> None:
    said = Doctor("--worker", "--address", daemon.tcp_address)
    assert (said.status, said.level) == (0, "warning")
    assert "Unix socket" in said.found["worker-mapping"]["advice"]


def test_a_worker_of_another_user_cannot_open_the_arena(daemon: Daemon) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    prefix = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
    said = Doctor("--worker", "--address", daemon.tcp_address, "--arena", str(daemon.arena), prefix=prefix)
    assert (said.status, said.found["worker-arena"]["level"]) == (1, "problem")


def test_people_get_a_table_with_what_is_worst_at_its_end(daemon: Daemon, tmp_path: Path) -> None:
    command = [*COMMAND, "doctor", "--worker", "--address", daemon.address, "--arena", str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False)
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[0].split()) == (1, ["LEVEL", "CHECK", "FOUND", "ADVICE"])
    assert lines[1].startswith("ok")
    assert lines[-1].startswith("problem")


@pytest.mark.parametrize("wrong", [("--budget", "lots"), ("--address", "nonsense")])
def test_wrong_usage_is_status_2(wrong: tuple[str, str]) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([*COMMAND, "doctor", *wrong], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
