"""Who asks where an artifact is learns too which node is loading it, for as long as that is so."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import redis

import warmshelf
from examples.lora_router import Choice, Router
from kit.fleet import Fleet, Node
from kit.one_source import HELD_AT, PATIENCE_SECONDS, Source, a_source, acquired, nodes_of, turns
from kit.processes import eventually


@contextmanager
def held(source: Source, node: Node) -> Iterator[Future[bytes]]:
    """Let a node load the base, and hold its source half way."""
    source.meter.held_at_bytes = source.meter.sent_bytes + HELD_AT
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(acquired, node)
        try:
            eventually(lambda: turns(node, "first") == 1, "it reads")
            yield load
        finally:
            source.meter.flow.set()


def loading(shelf: warmshelf.Shelf) -> list[str]:
    return [node.name for node in shelf.list_residency("acme/base").loading]


@pytest.fixture
def source() -> Iterator[Source]:
    with a_source() as it:
        yield it


def test_a_load_under_way_is_told_by_every_node_until_it_has_come_to_its_end(fleet: Fleet, source: Source) -> None:
    a, b = nodes_of(fleet, source, "ab", neighbour_claim_seconds="60")
    with a.connect() as here, b.connect() as there:
        assert loading(here) == loading(there) == []
        with held(source, a) as load:
            assert (loading(here), loading(there)) == (["a"], ["a"])
            found = there.list_residency("acme/base")
            assert (found.residents, found.partial) == ((), False)
            assert (found.loading[0], found.loading[0].address) == (found.nodes[1], a.tcp_address)
            there.set_alias("prod/base", "acme/base")
            assert there.list_residency("prod/base").loading == found.loading
            assert there.list_residency().loading == ()  # told of one artifact
            assert there.where("acme/base") == []  # where it is, not where it will be
        assert load.result(30) == source.data
        eventually(lambda: [one.node.name for one in there.where("acme/base")] == ["a"], "it is resident")
        assert loading(here) == []
        eventually(lambda: loading(there) == [], "what has ended is not under way", 3)
        with redis.Redis(port=fleet.server.port) as client:
            assert client.keys("*:load:*")  # though its claim stands


def test_a_load_of_a_dead_node_is_told_no_longer_than_its_claim_lives(fleet: Fleet, source: Source) -> None:
    a, b = nodes_of(fleet, source, "ab")
    with b.connect() as there, held(source, a):
        eventually(lambda: loading(there) == ["a"], "it is told")
        a.kill()
        eventually(lambda: loading(there) == [], "its claim has expired", 2 * PATIENCE_SECONDS)
        assert "a" in [node.name for node in there.list_residency().nodes]  # nobody knows yet that it is dead
        a.begin()


def test_a_claim_of_a_node_that_is_not_there_or_no_claim_at_all_tells_nothing(fleet: Fleet, source: Source) -> None:
    (node,) = nodes_of(fleet, source, "a")
    assert acquired(node) == source.data
    with redis.Redis(port=fleet.server.port) as client, node.connect() as shelf:
        (key,) = client.keys("*:load:*")
        own = shelf.list_residency().nodes[0].node_id
        for value in (
            f"{'e' * 16}-{'e' * 16} read-0 127.0.0.1:9",
            f"{own}-{'e' * 16} read-0 127.0.0.1:9",
            "?",
            "x" * 9999,
        ):
            client.set(key, value)
            found = shelf.list_residency("acme/base")
            assert (found.loading, found.partial) == ((), False)
        fleet.server.stop()
        eventually(lambda: shelf.list_residency("acme/base").partial, "nobody can say who else loads it")
        assert loading(shelf) == []


def test_the_command_shows_who_loads_and_the_router_sends_requests_there(fleet: Fleet, source: Source) -> None:
    nodes = dict(zip("ab", nodes_of(fleet, source, "ab", neighbour_claim_seconds="60"), strict=True))
    with nodes["a"].connect() as shelf:
        idle = Router(shelf).pick("acme/base")
        assert idle is not None
        assert not idle.is_loading
        other = next(name for name in nodes if name != idle.node.name)  # not the one that would get it anyway
        with held(source, nodes[other]):
            eventually(lambda: loading(shelf) == [other], "it is told")
            busy = shelf.list_residency("acme/base").loading[0]
            assert Router(shelf).pick("acme/base") == Choice(busy, is_loading=True)
            run = [sys.executable, "-m", "warmshelf.cli", "--address", nodes["a"].address]
            where = [*run, "where", "acme/base"]
            printed = subprocess.run(where, capture_output=True, text=True, check=True).stdout.splitlines()
            assert [line.split()[:5] for line in printed[1:]] == [["acme/base", other, "-", busy.address, "loading"]]
            answer = subprocess.run([*where, "--output", "json"], capture_output=True, text=True, check=True).stdout
            assert json.loads(answer)["loading_node_ids"] == [busy.node_id]
        eventually(lambda: Router(shelf).pick("acme/base") == Choice(busy, is_warm=True), "it is warm there", 10)
