"""Some acquire, read and map what others evict all the time."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import warmshelf
from kit.models import write_model
from kit.often import times
from kit.processes import Daemon, read_all
from warmshelf import errors

READERS, EVICTORS = 5, 3
IDS = "abc"
TOLD = (errors.NotResident, errors.Leased)
"""How a call may end that came just too late or too early."""


def evict_and_acquire(daemon: Daemon, models: Path, operation_count: int) -> Counter[str]:
    """Make so many calls; return how they ended. A wrong byte, another error or a signal ends it."""
    contents = {name: write_model(models / f"{name}.safetensors", tag, 128 << 10) for tag, name in enumerate(IDS)}
    daemon.start("--budget", "1MiB", "--adapter-floor", "0", failpoints="evict.chosen=delay(1);evict.unlinked=delay(1)")
    with daemon.connect() as shelf:
        for name in IDS:
            shelf.register(name, models / f"{name}.safetensors")
    ends: Counter[str] = Counter()
    lock = threading.Lock()  # guards ends

    def tell(end: str) -> bool:
        with lock:
            ends[end] += 1
            return ends.total() < operation_count

    def once(shelf: warmshelf.Shelf, number: int, name: str, chance: random.Random) -> str:
        if number >= READERS:
            shelf.evict(name)
            return "evicted"
        with shelf.acquire(name, timeout=30, resident_only=chance.random() < 0.2) as lease:
            assert read_all(lease) == contents[name]
            return str(lease.transport)

    def work(number: int) -> None:
        chance = random.Random(number)
        address = daemon.tcp_address if number == 0 else daemon.address
        with warmshelf.connect(address) as shelf:
            goes_on = True
            while goes_on:
                try:
                    goes_on = tell(once(shelf, number, chance.choice(IDS), chance))
                except TOLD as error:
                    goes_on = tell(error.reason)

    with ThreadPoolExecutor(READERS + EVICTORS) as pool:
        list(pool.map(work, range(READERS + EVICTORS)))
    return ends


def test_who_acquires_while_others_evict_has_the_right_bytes_or_is_told(daemon: Daemon, models: Path) -> None:
    """C4."""
    ends = evict_and_acquire(daemon, models, 600)
    assert {"mapped", "streamed", "evicted"} <= ends.keys()


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_in_two_hundred_thousand_calls_no_eviction_takes_a_byte_from_anybody(daemon: Daemon, models: Path) -> None:
    """C4."""
    ends = evict_and_acquire(daemon, models, times(200_000))
    assert {"mapped", "streamed", "evicted", "LEASED", "NOT_RESIDENT"} <= ends.keys()
