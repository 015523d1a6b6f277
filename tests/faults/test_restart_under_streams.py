"""A thousand streams at once: who is served how, and what a kill in the middle does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kit.models import write_model
from kit.often import times
from kit.processes import Daemon, Worker

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

READ = """
import sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import warmshelf
address, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
shelf = warmshelf.connect(address)
with shelf.acquire("a", timeout=120) as lease:
    right = {name: bytes(lease[name]) for name in lease}
ready = threading.Barrier(count + 1)
first = threading.Event()

def read(_):
    ready.wait()
    began = time.monotonic()
    with shelf.acquire("a", timeout=400) as lease:
        assert lease.transport == "streamed"
        same = all(lease[name] == data for name, data in right.items())
        first.set()
        return same, time.monotonic() - began

print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(count) as pool:
    reading = [pool.submit(read, number) for number in range(count)]
    ready.wait()
    first.wait(300)
    print("some", flush=True)
    ends = [one.result() for one in reading]
print(sum(same for same, _ in ends), min(s for _, s in ends), max(s for _, s in ends),
      sum(1 / s for _, s in ends), flush=True)
"""

CLIENTS = 10
SIZE = 2 << 20
SLOWEST_SHARE = 0.25


@pytest.fixture
def readers(daemon: Daemon, models: Path, start_worker: Callable[..., Worker]) -> list[Worker]:
    """Processes that are about to read, together by as many streams as a night has."""
    write_model(models / "a.safetensors", 1, SIZE)
    daemon.start("--budget", "64MiB")
    with daemon.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        shelf.acquire("a").release()
    each = times(1000, least=50) // CLIENTS
    made = [start_worker(READ, daemon.tcp_address, str(each), str(SIZE)) for _ in range(CLIENTS)]
    assert [worker.line(60) for worker in made] == ["ready"] * CLIENTS
    for worker in made:
        worker.tell()
    return made


def ends_of(readers: list[Worker]) -> list[tuple[int, float, float, float]]:
    """Return of each how many streams were right, its shortest and longest time, and the sum of its rates."""
    found = []
    for worker in readers:
        words = worker.line(400).split()
        if len(words) != 4:
            worker.end()
            pytest.fail(worker.noise)
        found.append((int(words[0]), float(words[1]), float(words[2]), float(words[3])))
    return found


def test_a_thousand_streams_live_through_a_kill(daemon: Daemon, readers: list[Worker]) -> None:
    """N14."""
    assert readers[0].line(300) == "some"
    daemon.kill()
    daemon.start("--budget", "64MiB")
    assert [worker.line(300) for worker in readers[1:]] == ["some"] * (CLIENTS - 1)
    assert sum(right for right, *_ in ends_of(readers)) == times(1000, least=50) // CLIENTS * CLIENTS


def test_a_thousand_streams_share_fairly(readers: list[Worker]) -> None:
    """C9: the slowest has a quarter of the mean rate, or more."""
    assert [worker.line(300) for worker in readers] == ["some"] * CLIENTS
    ends = ends_of(readers)
    count = times(1000, least=50) // CLIENTS * CLIENTS
    assert sum(right for right, *_ in ends) == count
    mean = sum(rates for *_, rates in ends) / count
    assert 1 / max(longest for _, _, longest, _ in ends) >= SLOWEST_SHARE * mean, ends
