"""The daemon stands still for a while, as when its machine is paused or its debugger is attached."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import warmshelf
from kit.models import write_model
from kit.often import times
from kit.processes import Daemon, Worker, read_all

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]

HOLD = """
import sys, warmshelf
shelf = warmshelf.connect(sys.argv[1])
lease = shelf.acquire("a")
print(lease.transport, flush=True)
sys.stdin.readline()
print(all(bytes(lease[name]) for name in lease), flush=True)
"""


def test_a_daemon_that_stood_still_for_a_minute_has_lost_no_lease_and_tells_nothing_old(
    daemon: Daemon, models: Path, start_worker: Callable[..., Worker]
) -> None:
    """D8: workers at the socket and over TCP, a call under way, and a source that changes meanwhile."""
    tensors = write_model(models / "a.safetensors", 1)
    write_model(models / "b.safetensors", 2)
    daemon.start()
    with daemon.connect() as shelf:
        for name in ("a", "b"):
            shelf.register(name, models / f"{name}.safetensors", follow=name == "b")
        shelf.acquire("b").release()
        shelf.evict("b")
        workers = [start_worker(HOLD, address) for address in (daemon.address, daemon.tcp_address)]
        assert [worker.line() for worker in workers] == ["mapped", "streamed"]
        assert len(shelf.leases("a")) == 2
        daemon.process.send_signal(signal.SIGSTOP)  # type: ignore[union-attr]
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(lambda: read_all(shelf.acquire("b", timeout=200)))
            new = write_model(models / "b.safetensors", 3)
            threading.Event().wait(times(60, least=3))  # standing still for so long is the fault
            daemon.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
            assert asked.result() == new
        assert len(shelf.leases("a")) == 2
        for worker in workers:
            worker.tell()
            assert worker.line() == "True"
        with warmshelf.connect(daemon.tcp_address) as other, other.acquire("a") as lease:
            assert read_all(lease) == tensors
