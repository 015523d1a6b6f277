"""Workers that connect, acquire and die, one after another."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.models import write_model
from kit.often import times
from kit.processes import Daemon, Worker, eventually

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]

MOTHER = """
import os, signal, sys
import warmshelf
import warmshelf.client
for line in sys.stdin:
    children = []
    for number in range(int(line)):
        child = os.fork()
        if not child:
            shelf = warmshelf.connect(sys.argv[1 + number % 2])
            lease = shelf.acquire("a", timeout=60)
            assert lease["layer.0.weight"][0] == lease["layer.0.weight"][0]
            os.kill(os.getpid(), signal.SIGKILL)
        children.append(child)
    deaths = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(deaths.count(-signal.SIGKILL), flush=True)
"""
"""Forks workers before it has used gRPC itself; each dies with its lease."""

ABREAST = 4
GROWTH_BYTES_MAX = 8 << 20


def test_workers_that_acquire_and_die_leave_the_daemon_as_it_was(
    daemon: Daemon, models: Path, start_worker: Callable[..., Worker]
) -> None:
    """W8."""
    write_model(models / "a.safetensors", 1)
    daemon.start()
    with daemon.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        shelf.acquire("a").release()
        mother = start_worker(MOTHER, daemon.address, daemon.tcp_address)
        for _ in range(times(20, least=3)):
            _let_die(mother)
        eventually(lambda: not shelf.leases(), "the leases of the first have ended")
        opened, memory = _opened(daemon), daemon.memory_bytes()
        for _ in range(times(500, least=5)):
            _let_die(mother)
        eventually(lambda: not shelf.leases(), "every lease has ended")
        eventually(lambda: _opened(daemon) <= opened, "descriptors are as before")
        assert daemon.memory_bytes() < memory + GROWTH_BYTES_MAX
        assert len(daemon.segments()) == 1


def _let_die(mother: Worker) -> None:
    mother.tell(str(ABREAST))
    assert mother.line(60) == str(ABREAST)


def _opened(daemon: Daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))
