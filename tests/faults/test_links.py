"""Workers behind links that are slow, lose packets or are pulled out."""

from __future__ import annotations

import re
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.models import write_model
from kit.network import Network, network
from kit.processes import Daemon, Worker, eventually

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]

MIB = 1 << 20

READ = """
import sys, time, zlib, warmshelf
with warmshelf.connect(sys.argv[1]) as shelf:
    print("there", flush=True)
    for line in sys.stdin:
        began = time.monotonic()
        with shelf.acquire("a", timeout=200) as lease:
            crc = zlib.crc32(b"".join(bytes(lease[name]) for name in sorted(lease)))
            print(crc, time.monotonic() - began, flush=True)
            if line.strip() == "hold":
                sys.stdin.readline()
"""

ASK = """
import sys, time, warmshelf
with warmshelf.connect(sys.argv[1]) as shelf:
    shelf.get("a")
    print("there", flush=True)
    for line in sys.stdin:
        slowest = 0.0
        for _ in range(int(line)):
            began = time.monotonic()
            shelf.get("a")
            slowest = max(slowest, time.monotonic() - began)
        print(slowest, flush=True)
"""

SEEN_SECONDS = 15 + 5
"""Keepalive's time and its timeout, and some for a busy machine."""

Behind = Callable[[str, str], Worker]


@pytest.fixture
def net() -> Iterator[Network]:
    with network() as it:
        yield it


@pytest.fixture
def wide(daemon: Daemon, net: Network) -> Daemon:
    """A daemon that is listening where namespaces reach it."""
    return daemon.start("--insecure", "--listen", f"{net.host}:0", "--budget", "64MiB")


@pytest.fixture
def behind(wide: Daemon, net: Network) -> Iterator[Behind]:
    """Starts workers in namespaces."""
    workers: list[Worker] = []
    found = re.search(rf"{re.escape(net.host)}:\d+", wide.ready_line)
    assert found is not None, wide.ready_line

    def start(name: str, code: str) -> Worker:
        workers.append(Worker(code, found[0], prefix=("ip", "netns", "exec", name)))
        assert workers[-1].line() == "there"
        return workers[-1]

    yield start
    for worker in workers:
        worker.end()


def keep(daemon: Daemon, models: Path, size: int) -> int:
    """Have an artifact ``a`` resident; return the CRC that ``READ`` must print."""
    tensors = write_model(models / "a.safetensors", 1, size)
    with daemon.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        shelf.acquire("a").release()
    return zlib.crc32(b"".join(tensors[name] for name in sorted(tensors)))


def read_of(worker: Worker) -> tuple[int, float]:
    crc, seconds = worker.line(200).split()
    return int(crc), float(seconds)


def test_over_ten_megabits_streams_share_and_calls_are_answered(
    wide: Daemon, net: Network, behind: Behind, models: Path
) -> None:
    """N3: four streams of 4 MiB take 13 s together on such a link; none starves, and a call needs no second."""
    crc = keep(wide, models, 4 * MIB)
    name, _ = net.join()
    readers, asker = [behind(name, READ) for _ in range(4)], behind(name, ASK)
    net.slow(name, 10)
    for worker in readers:
        worker.tell()
    asker.tell("20")
    assert float(asker.line(60)) < 1.0
    reads = [read_of(worker) for worker in readers]
    assert {found for found, _ in reads} == {crc}
    seconds = [found for _, found in reads]
    assert 10 < max(seconds) < 30
    assert max(seconds) < 4 * min(seconds)


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_over_a_link_that_loses_packets_every_byte_comes(
    wide: Daemon, net: Network, behind: Behind, models: Path, share: float
) -> None:
    """N2."""
    crc = keep(wide, models, 4 * MIB)
    name, _ = net.join()
    reader, asker = behind(name, READ), behind(name, ASK)
    net.lose(name, share)
    reader.tell()
    asker.tell("50")
    assert asker.line(100)
    assert read_of(reader)[0] == crc


def test_a_worker_behind_a_cable_that_was_pulled_loses_its_lease_in_time(
    wide: Daemon, net: Network, behind: Behind, models: Path
) -> None:
    """N6: nobody sends a word that it is gone; one behind another cable keeps its lease."""
    crc = keep(wide, models, MIB)
    gone, stays = net.join()[0], net.join()[0]
    workers = [behind(name, READ) for name in (gone, stays)]
    for worker in workers:
        worker.tell("hold")
        assert read_of(worker)[0] == crc
    with wide.connect() as shelf:
        assert len(shelf.leases("a")) == 2
        net.cut(gone)
        began = time.monotonic()
        eventually(lambda: len(shelf.leases("a")) == 1, "the lease has ended", SEEN_SECONDS)
        print(f"seen after {time.monotonic() - began:.1f} s")
        workers[0].send(signal.SIGKILL)
        eventually(lambda: time.monotonic() - began > SEEN_SECONDS, "as long again", SEEN_SECONDS + 1)
        assert len(shelf.leases("a")) == 1
        workers[1].end()
        eventually(lambda: not shelf.leases("a"), "its own end ends it")
