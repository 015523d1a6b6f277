"""Calls and reads that are given up anywhere, thousands of them."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from kit.models import pattern, write_model
from kit.often import times
from kit.plain import Plain
from kit.processes import Daemon, eventually
from kit.redis_server import redis_server
from kit.scrape import HTTP, pages_of
from warmshelf import errors
from warmshelf.redis_store import write_directory
from warmshelfd.formats.base import FormatLimits
from warmshelfd.formats.tensorizer_pieces import tensor_pieces
from warmshelfd.sources.redis import RedisOpener

THREADS = 4


def cancel_streams(daemon: Daemon, models: Path, count: int) -> None:
    """Read and cancel before the first chunk, at any, or behind the last."""
    write_model(models / "a.safetensors", 1, 4 << 20)
    daemon.start(*HTTP)
    pages = pages_of(daemon)
    with Plain(daemon.tcp_address) as first:
        first.register("a", models / "a.safetensors")
        lease = first.acquire("a").lease
        first.release(lease.lease_id)
        idle = pages.scrape()

        def cancel(number: int) -> None:
            chance = random.Random(number)
            with Plain(daemon.tcp_address) as plain:
                lease_id = plain.acquire("a").lease.lease_id
                for _ in range(count // THREADS):
                    stream = plain.read(lease_id, offset=chance.randrange(4 << 20))
                    for _ in range(chance.choice((0, 0, 1, 2, 5))):
                        next(stream, None)
                    stream.cancel()
                plain.release(lease_id)

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(cancel, range(THREADS)))
        for series in ("warmshelf_streams", "warmshelf_leases"):
            eventually(lambda series=series: pages.scrape()[series] == idle[series], f"{series} as before")  # type: ignore[misc]
        assert first.evict("a").state == 1


def test_streams_that_are_cancelled_anywhere_leave_nothing(daemon: Daemon, models: Path) -> None:
    """N8."""
    cancel_streams(daemon, models, 400)


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_a_hundred_thousand_cancelled_streams_leave_nothing(daemon: Daemon, models: Path) -> None:
    """N8."""
    cancel_streams(daemon, models, times(100_000))


FILE_BYTES = 1 << 20


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_reads_of_redis_that_are_stopped_anywhere_never_leave_their_answer_to_the_next(tmp_path: Path) -> None:
    """R11: every block names its place, so another question's answer would show."""
    for place in ("redis", "written"):
        (tmp_path / place).mkdir()
    data = pattern(7, FILE_BYTES)
    (tmp_path / "written" / "config.json").write_bytes(data)
    ends: Counter[str] = Counter()
    with redis_server(tmp_path / "redis") as server:
        uri = write_directory(server.uri("models"), "a", tmp_path / "written")
        opener = RedisOpener("redis", [server.uri("models")], [], partial(tensor_pieces, limits=FormatLimits()))
        chance = random.Random(11)
        rounds = times(100_000) // THREADS
        with ThreadPoolExecutor(THREADS) as pool:
            for number in range(rounds):
                with opener.open(uri) as source:
                    ranges = [
                        (at := chance.randrange(FILE_BYTES), chance.randint(1, FILE_BYTES - at)) for _ in range(4)
                    ]
                    reading = [pool.submit(source.read, "config.json", at, size) for at, size in ranges]
                    threading.Event().wait(chance.random() * 0.004)
                    source.stop()
                    for read, (at, size) in zip(reading, ranges, strict=True):
                        error = read.exception()
                        if error is None:
                            assert bytes(read.result()) == data[at : at + size], f"round {number}"
                        ends[type(error).__name__] += 1
    assert set(ends) == {"NoneType", errors.LoadCancelled.__name__}
