"""The control group's memory ends, and the kernel kills the daemon."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kit.models import write_model
from kit.processes import Daemon, eventually, read_all
from warmshelf import errors

pytestmark = pytest.mark.nightly

MIB = 1 << 20
CGROUPS = Path("/sys/fs/cgroup")


class Group:
    """A control group for memory: of version 1 or 2, whichever this machine has."""

    def __init__(self, name: str) -> None:
        is_first = (CGROUPS / "memory").is_dir()
        self.path = (CGROUPS / "memory" if is_first else CGROUPS) / f"warmshelf-test-{os.getpid()}-{name}"
        self.path.mkdir()
        self._limit, self._usage = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes") if is_first else ("memory.max", "memory.current")
        )

    def limit(self, size_bytes: int) -> None:
        (self.path / self._limit).write_text(str(size_bytes))

    @property
    def usage_bytes(self) -> int:
        return int((self.path / self._usage).read_text())

    def close(self) -> None:
        with suppress(OSError):  # what is charged to it goes with the arena
            self.path.rmdir()


class Confined(Daemon):
    """A daemon in a group."""

    group: Group

    def command(self, *options: str) -> list[str]:
        enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
        return ["sh", "-c", enter, str(self.group.path), *super().command(*options)]


@pytest.fixture
def groups() -> Iterator[list[Group]]:
    made = [Group("one"), Group("two")]
    yield made
    for group in made:
        group.close()


@pytest.fixture
def confined(tmp_path: Path, models: Path, groups: list[Group]) -> Iterator[Confined]:
    """A daemon in the first group, not started yet."""
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm", ignore_cleanup_errors=True) as arena:
        it = Confined(tmp_path, Path(arena), models)
        it.group = groups[0]
        yield it
        if it.process is not None:
            it.kill(signal.SIGTERM)
            it.check()


def test_a_daemon_killed_for_memory_during_a_load_is_followed_by_one_that_serves(
    confined: Confined, models: Path, groups: list[Group]
) -> None:
    """D9, M7: what was resident is, what was being loaded is not, and its room is free."""
    small = write_model(models / "small.safetensors", 1, 8 * MIB)
    large = write_model(models / "large.safetensors", 2, 256 * MIB)
    confined.start("--budget", "320MiB")
    with confined.connect() as shelf:
        for name in ("small", "large"):
            shelf.register(name, models / f"{name}.safetensors")
        held = shelf.acquire("small")
        groups[0].limit(groups[0].usage_bytes + 64 * MIB)
        with pytest.raises(errors.WarmshelfError):
            shelf.acquire("large", timeout=10)
        assert confined.wait() == -signal.SIGKILL
        assert read_all(held) == small
        confined.group = groups[1]
        confined.start("--budget", "320MiB")
        assert shelf.get("large").state.value == "registered"
        for name, tensors in (("small", small), ("large", large)):
            with shelf.acquire(name, timeout=60) as lease:
                assert read_all(lease) == tensors


def test_what_a_dead_daemons_group_is_charged_for_is_in_the_next_ones_books(
    confined: Confined, models: Path, groups: list[Group]
) -> None:
    """M8: pages of a memory file system stay with the group that touched them first."""
    write_model(models / "a.safetensors", 1, 64 * MIB)
    confined.start("--budget", "128MiB")
    with confined.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        shelf.acquire("a").release()
        before = shelf.capacity()
    confined.kill()
    assert groups[0].usage_bytes > 60 * MIB
    confined.group = groups[1]
    confined.start("--budget", "128MiB")
    with confined.connect() as shelf:
        eventually(lambda: shelf.capacity().resident_bytes == before.resident_bytes, "the books are the file system's")
        assert shelf.capacity().free_bytes == before.free_bytes
    assert groups[1].usage_bytes < 64 * MIB + before.resident_bytes // 2
