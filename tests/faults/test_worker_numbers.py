"""A process gets the number of a worker that died."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.models import write_model
from kit.processes import Daemon, Worker, eventually

pytestmark = pytest.mark.nightly

LAST = Path("/proc/sys/kernel/ns_last_pid")
TRIES = 200

HOLD = """
import sys, warmshelf
lease = warmshelf.connect(sys.argv[1]).acquire(sys.argv[2])
print("held", flush=True)
sys.stdin.readline()
"""

LOOK = """
import os, sys
if os.getpid() != int(sys.argv[2]):
    sys.exit(7)
import warmshelf
with warmshelf.connect(sys.argv[1]) as shelf, shelf.acquire("b") as own:
    seen = [lease.artifact_id for lease in shelf.leases()]
    assert seen == ["b"], seen
"""
ANOTHER = 7


def test_who_gets_a_dead_workers_number_gets_nothing_of_his(
    daemon: Daemon, models: Path, start_worker: Callable[..., Worker]
) -> None:
    """W4: as root, who may choose the next number."""
    assert os.geteuid() == 0
    for tag, name in enumerate("ab"):
        write_model(models / f"{name}.safetensors", tag)
    daemon.start()
    with daemon.connect() as shelf:
        for name in "ab":
            shelf.register(name, models / f"{name}.safetensors")
        for _ in range(3):
            worker = start_worker(HOLD, daemon.address, "a")
            assert worker.line()
            worker.end()
            eventually(lambda: not shelf.leases(), "its lease has ended")
            assert _run_as(worker.process.pid, daemon.address) == 0
            eventually(lambda: not shelf.leases(), "no lease is left")


def _run_as(pid: int, address: str) -> int:
    """Run ``LOOK`` in a process of this number and return its status; others may be given it first."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(TRIES):
        LAST.write_text(str(pid - 1))
        child = os.posix_spawn(sys.executable, [sys.executable, "-c", LOOK, address, str(pid)], environment)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != ANOTHER:
            return status
    pytest.fail(f"no process got the number {pid}")
