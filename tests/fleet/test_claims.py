"""Of nodes that want the same source at once one reads it and the others take the bytes from that one."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import redis

from kit.fleet import Fleet, Node
from kit.one_source import (
    BYTES,
    FILE,
    HELD_AT,
    PATIENCE_SECONDS,
    QUICK,
    Source,
    a_source,
    acquired,
    nodes_of,
    turns,
)
from kit.processes import eventually
from kit.scrape import pages_of
from kit.web_faults import Status
from warmshelf.errors import SourceNotFound


def from_neighbours(nodes: list[Node]) -> float:
    metric = 'warmshelf_neighbour_loads_total{outcome="ok"}'
    return sum(pages_of(node).scrape()[metric] for node in nodes)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as it:
        yield it


def one_reads_and_others_wait(
    pool: ThreadPoolExecutor, source: Source, nodes: list[Node]
) -> tuple[Future[bytes], list[Future[bytes]]]:
    """Hold the source while the first node reads it and all others wait for that one; return their acquires."""
    source.meter.held_at_bytes = source.meter.sent_bytes + HELD_AT
    first = pool.submit(acquired, nodes[0])
    eventually(lambda: turns(nodes[0], "first") == 1, "the first node reads")
    others = [pool.submit(acquired, node) for node in nodes[1:]]
    for node in nodes[1:]:
        eventually(lambda node=node: turns(node, "waited") == 1, "the others wait")  # type: ignore[misc]
    return first, others


def test_four_nodes_that_begin_at_once_with_a_base_nobody_has_loaded_read_its_source_once(
    fleet: Fleet, pool: ThreadPoolExecutor
) -> None:
    with a_source() as source:
        nodes = nodes_of(fleet, source, "abcd")
        assert all(data == source.data for data in pool.map(acquired, nodes))
        assert source.reads <= 1.1
    assert from_neighbours(nodes) == 3
    assert sum(turns(node, "first") for node in nodes) == 1
    with redis.Redis(port=fleet.server.port) as client:  # claims end by themselves
        eventually(lambda: not client.keys("*:load:*"), "nothing is claimed any more")


def test_a_node_that_dies_while_it_reads_is_followed_by_one_that_waited(fleet: Fleet, pool: ThreadPoolExecutor) -> None:
    with a_source() as source:
        a, b, c = nodes = nodes_of(fleet, source, "abc")
        first, others = one_reads_and_others_wait(pool, source, nodes)
        a.kill()
        source.meter.flow.set()
        assert [other.result(30) for other in others] == [source.data] * 2
        assert source.reads <= 1.1 + HELD_AT / BYTES
        a.begin(**QUICK)
        assert first.result(30) == source.data
    assert turns(b, "first") + turns(c, "first") == 1


def test_a_node_that_is_frozen_while_it_reads_is_followed_by_one_that_waited(
    fleet: Fleet, pool: ThreadPoolExecutor
) -> None:
    with a_source() as source:
        a, b, c = nodes = nodes_of(fleet, source, "abc")
        first, others = one_reads_and_others_wait(pool, source, nodes)
        a.process.send_signal(signal.SIGSTOP)  # type: ignore[union-attr]
        try:
            source.meter.flow.set()
            assert [other.result(30) for other in others] == [source.data] * 2
            assert turns(b, "first") + turns(c, "first") == 1
        finally:
            a.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
        assert first.result(30) == source.data


def test_a_source_that_gives_nothing_to_the_one_that_reads_is_tried_by_another_after_a_while(
    fleet: Fleet, pool: ThreadPoolExecutor
) -> None:
    with a_source() as source:
        nodes = nodes_of(fleet, source, "ab")
        first, others = one_reads_and_others_wait(pool, source, nodes)
        eventually(lambda: turns(nodes[1], "first") == 1, "the other one tries it too", 3 * PATIENCE_SECONDS)
        source.meter.flow.set()
        assert [one.result(30) for one in (first, *others)] == [source.data] * 2


def test_without_redis_every_node_reads_the_source_at_once(fleet: Fleet, pool: ThreadPoolExecutor) -> None:
    with a_source() as source:
        nodes = nodes_of(fleet, source, "abc", neighbour_claim_seconds="60")
        first, others = one_reads_and_others_wait(pool, source, nodes)
        fleet.server.stop()
        for node in nodes[1:]:
            eventually(lambda node=node: turns(node, "away") == 1, "who waited reads")  # type: ignore[misc]
        source.meter.flow.set()
        assert [one.result(30) for one in (first, *others)] == [source.data] * 3


def test_a_load_that_fails_on_one_node_is_tried_by_the_next_and_not_taken_for_granted(
    fleet: Fleet, pool: ThreadPoolExecutor
) -> None:
    with a_source() as source:
        a, b, c = nodes = nodes_of(fleet, source, "abc", source_read_threads="1", neighbour_claim_seconds="60")
        first, others = one_reads_and_others_wait(pool, source, nodes)
        source.web.faults.insert(0, Status(FILE, times=1, status=404))
        source.meter.flow.set()
        with pytest.raises(SourceNotFound):
            first.result(30)
        assert [other.result(30) for other in others] == [source.data] * 2
        assert acquired(a) == source.data  # and the one that failed may take it from them now
    assert turns(b, "first") + turns(c, "first") == 1


def test_whoever_stops_waiting_leaves_nothing_behind_and_whoever_stops_reading_is_followed_at_once(
    fleet: Fleet, pool: ThreadPoolExecutor
) -> None:
    with a_source() as source:
        a, b, c = nodes = nodes_of(fleet, source, "abc", neighbour_claim_seconds="60")
        first, others = one_reads_and_others_wait(pool, source, nodes)
        with b.connect() as shelf:
            shelf.remove("acme/base")  # everywhere, and so every load of it ends
        for one in (first, *others):
            assert one.exception(30) is not None
        source.meter.flow.set()
        with c.connect() as shelf:
            shelf.register("acme/base", source=source.url)
        fleet.agree("acme/base")
        began = time.monotonic()
        assert acquired(b) == source.data  # no claim was left
        assert time.monotonic() - began < 10
    assert turns(a, "given_up") + turns(b, "given_up") == 0


def test_a_claim_that_never_ends_or_is_none_holds_nobody_up_for_long(fleet: Fleet) -> None:
    with a_source() as source, redis.Redis(port=fleet.server.port) as client:
        (node,) = nodes_of(fleet, source, "a", neighbour_claim_seconds="0.5")
        assert acquired(node) == source.data
        (key,) = client.keys("*:load:*")
        for poison in (f"{'e' * 16}-{'e' * 16} read-0 127.0.0.1:9", "?", "x" * 100_000, None):
            with node.connect() as shelf:
                eventually(lambda shelf=shelf: shelf.get("acme/base").digest != "", "its digest is known")  # type: ignore[misc]
                shelf.evict("acme/base")
            client.delete(key)
            if poison is None:
                client.rpush(key, "no string")
            else:
                client.set(key, poison)
            began = time.monotonic()
            assert acquired(node) == source.data
            assert time.monotonic() - began < 5
    assert turns(node, "given_up") == 1


def test_what_is_small_or_of_this_node_alone_is_not_claimed(fleet: Fleet) -> None:
    with a_source(1 << 20) as source, redis.Redis(port=fleet.server.port) as client:
        (node,) = nodes_of(fleet, source, "a")
        assert acquired(node) == source.data
        assert turns(node, "first") == 0
        assert client.keys("*:load:*") == []
