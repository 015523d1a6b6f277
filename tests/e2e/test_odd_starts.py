"""What is odd at the start, or in what is asked for, is said in the words that help."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import warmshelf
from kit.models import write_model
from kit.plain import refused
from kit.processes import Daemon
from kit.pushes import PlainPush
from warmshelf import errors

pytestmark = pytest.mark.e2e


def test_an_arena_on_a_disk_is_used_and_said_in_the_ready_line_and_the_log(tmp_path: Path) -> None:
    (tmp_path / "arena").mkdir(mode=0o700)
    (tmp_path / "models").mkdir()
    daemon = Daemon(tmp_path, tmp_path / "arena", tmp_path / "models").start("--budget", "8MiB")
    tensors = write_model(tmp_path / "models" / "a.safetensors", 1)
    with daemon.connect() as shelf:
        shelf.register("a", tmp_path / "models" / "a.safetensors")
        with shelf.acquire("a", timeout=20) as lease:
            assert bytes(lease["layer.0.weight"]) == tensors["layer.0.weight"]
    assert daemon.kill(15) == 0
    assert "WARNING=not-in-memory" in daemon.ready_line
    assert "not in memory" in daemon.log.read_text()


def test_an_arena_in_memory_is_not_warned_of(running: Daemon) -> None:
    assert "WARNING" not in running.ready_line
    assert "not in memory" not in running.log.read_text()


@pytest.fixture
def small_shm(tmp_path: Path) -> Iterator[Path]:
    """A memory file system of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system of a known size")
    path = tmp_path / "shm"
    path.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", str(path)], check=True)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_file_system_that_is_smaller_than_the_budget_is_warned_of_and_used(
    tmp_path: Path, models: Path, small_shm: Path
) -> None:
    """B42: what cannot fit is refused before a byte is read, what fits is served, and makes room for the next."""
    daemon = Daemon(tmp_path, small_shm, models).start("--budget", "10MiB")
    assert "budget=1048576 " in daemon.ready_line
    assert f"lacking={9 << 20} WARNING=file-system-too-small" in daemon.ready_line
    assert "less than the budget" in daemon.log.read_text()
    sizes = {"large": 2 << 20, "one": 400 << 10, "two": 400 << 10, "three": 400 << 10}
    with daemon.connect() as shelf:
        for tag, (name, size) in enumerate(sizes.items()):
            write_model(models / f"{name}.safetensors", tag, size=size)
            shelf.register(name, models / f"{name}.safetensors")
        with pytest.raises(errors.LargerThanArena):
            shelf.acquire("large", timeout=20)
        for name in ("one", "two", "three"):
            with shelf.acquire(name, timeout=20) as lease:
                assert lease.transport == "mapped"
        assert shelf.get("one").state == "registered"
    with warmshelf.connect(daemon.tcp_address) as shelf, shelf.acquire("one", timeout=20) as lease:
        assert lease.transport == "streamed"
    assert daemon.kill(15) == 0
    daemon.check()


@pytest.mark.parametrize("budget", ["1KiB", "16383"])
def test_a_budget_that_no_segment_fits_into_is_refused_at_start(daemon: Daemon, budget: str) -> None:
    daemon.start("--budget", budget, wait=False)
    assert daemon.wait() != 0
    assert "the smallest segment takes 16384" in daemon.log.read_text()
    daemon.process = None


def test_an_adapter_is_not_its_own_base(shared: Daemon, models: Path) -> None:
    write_model(models / "a.safetensors", 1)
    with shared.connect() as shelf:
        with pytest.raises(errors.InvalidSpec, match="its own base"):
            shelf.register("a", models / "a.safetensors", base="a")
        with (
            PlainPush(shared.address, {"x": b"x"}) as push,
            refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_SPEC"),
        ):
            push.begin("a", base_artifact_id="a")
        assert shelf.list() == []


def test_an_empty_directory_and_a_short_bucket_are_called_what_they_are(shared: Daemon, models: Path) -> None:
    (models / "empty").mkdir()
    with shared.connect() as shelf:
        with pytest.raises(errors.UnsupportedFormat, match="has no files"):
            shelf.register("a", models / "empty")
        with pytest.raises(errors.InvalidSpec, match="3 to 255"):
            shelf.register("a", "s3://b/k")


@pytest.mark.parametrize("command", [["list"], ["list", "--output", "json"], ["--version"]])
def test_output_that_cannot_be_written_is_told_in_a_line(shared: Daemon, command: list[str]) -> None:
    arguments = [sys.executable, "-m", "warmshelf.cli", "--address", shared.address, *command]
    with open("/dev/full", "w") as full:
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=30)
    assert done.returncode == 1
    assert done.stderr == "warmshelf: the output cannot be written: No space left on device\n"
