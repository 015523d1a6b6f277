"""The n-th system call of a kind fails, for every n, in a real daemon: strace makes it fail.

Needs ``strace`` of Debian, and root or the right to trace, and says so where it is missing.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import warmshelf
from kit.models import write_model
from kit.often import times
from kit.processes import Daemon, eventually, read_all
from warmshelf import errors

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

MIB = 1 << 20
CALLS_MAX = 60
"""After so many calls of one kind in one thread a load of this size is through."""


@contextmanager
def failing(daemon: Daemon, calls: str, how: str, number: int) -> Iterator[Path]:
    """Let the n-th of these calls of each of the daemon's threads fail; gives where strace notes them."""
    assert shutil.which("strace"), "apt-get install strace"
    notes = daemon.root / "strace"
    inject = f"inject={calls}:{how}:when={number}"
    command = ["strace", "-f", "-q", "-e", f"trace={calls}", "-e", inject, "-o", str(notes), "-p", str(daemon.pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        eventually(lambda: _traced(daemon.pid) == process.pid, "strace is there")
        try:
            yield notes
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(20)


def _traced(pid: int) -> int:
    """Return who traces every thread of a process, 0 if some are not traced."""
    tracers = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        found = re.search(r"TracerPid:\s+(\d+)", (task / "status").read_text())
        tracers.add(int(found[1]) if found else 0)
    return min(tracers)


def fail_each(daemon: Daemon, models: Path, calls: str, how: str) -> tuple[int, int]:
    """Load again and again, the n-th call failing; return how many loads failed and how many calls did."""
    tensors = write_model(models / "a.safetensors", 1, 2 * MIB)
    failed = injected = 0
    with daemon.connect() as shelf:
        shelf.register("a", models / "a.safetensors", replace=True)
        with shelf.acquire("a") as lease:
            assert read_all(lease) == tensors
        for number in range(1, times(CALLS_MAX, least=4) + 1):
            shelf.evict("a")
            with failing(daemon, calls, how, number) as notes:
                reason = _load(shelf, tensors)
            assert reason != "DAEMON_UNREACHABLE"
            failed += bool(reason)
            injected += notes.read_text().count("INJECTED")
            shelf.evict("a")
            eventually(lambda: daemon.segments() == [] and daemon.leftovers() == [], "nothing is left", 10)
            assert shelf.capacity().reserved_bytes == 0
            with shelf.acquire("a", timeout=30) as lease:
                assert read_all(lease) == tensors
    return failed, injected


def _load(shelf: warmshelf.Shelf, tensors: dict[str, bytes]) -> str:
    """Load and compare; return the reason if it is refused."""
    try:
        with shelf.acquire("a", timeout=30) as lease:
            assert read_all(lease) == tensors
    except errors.WarmshelfError as error:
        return error.reason
    return ""


@pytest.mark.parametrize("how", ["error=EIO", "error=EINTR"])
def test_whichever_read_of_a_source_fails_the_load_fails_or_is_right(daemon: Daemon, models: Path, how: str) -> None:
    """S17."""
    assert os.geteuid() == 0
    daemon.start("--budget", "64MiB")
    failed, injected = fail_each(daemon, models, "pread64,preadv,preadv2", how)
    assert injected
    assert failed or how == "error=EINTR"


@pytest.mark.parametrize(
    ("calls", "how"),
    [("fallocate", "error=ENOSPC"), ("mmap", "error=ENOMEM"), ("mlock,mlock2", "error=ENOMEM")],
)
def test_whichever_allocation_mapping_or_lock_fails_the_state_is_clean(
    daemon: Daemon, models: Path, calls: str, how: str
) -> None:
    """M11."""
    assert os.geteuid() == 0
    daemon.start("--budget", "64MiB")
    _, injected = fail_each(daemon, models, calls, how)
    assert injected
