"""Many nodes that want at once what one has: it gives to few at a time, and the others get it from those."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import redis

from kit.fleet import Fleet, Node
from kit.neighbour_faults import HoldsAllButTheFirst, claim
from kit.one_source import Source, a_source, acquired, begin_node
from kit.processes import eventually
from kit.scrape import pages_of

NODES_COUNT = 8
UPLOADS_MAX = 2
BYTES = 4 << 20
PATIENT = {
    "uploads_max": str(UPLOADS_MAX),
    "neighbour_wait_seconds": "60",
    "neighbour_stall_seconds": "60",
    "neighbour_bytes_per_second_min": "1KiB",
}


def light_nodes(fleet: Fleet, source: Source) -> tuple[Node, list[Node]]:
    """Start a node that nobody is told how to reach, and those that take what they can from others."""
    for number in range(NODES_COUNT + 1):
        begin_node(fleet, source, f"n{number}", can_be_reached=number > 0, **PATIENT)
    return fleet.nodes[0], fleet.nodes[1:]


def begun(node: Node) -> float:
    return pages_of(node).scrape()['warmshelf_neighbour_uploads_total{outcome="begun"}']


def digest_on(node: Node) -> str:
    with node.connect() as shelf:
        return shelf.get("acme/base").digest


def test_of_eight_that_want_what_one_node_has_few_take_it_there_and_the_others_from_those(fleet: Fleet) -> None:
    with a_source(BYTES) as source, ThreadPoolExecutor(NODES_COUNT) as pool:
        origin, others = light_nodes(fleet, source)
        with origin.connect() as shelf:
            shelf.register("acme/base", source=source.url)
        assert acquired(origin) == source.data
        eventually(lambda: all(map(digest_on, fleet.nodes[:1])), "its digest is known")
        fleet.agree("acme/base")
        digest = digest_on(origin)
        eventually(lambda: {digest_on(node) for node in others} == {digest}, "all know its digest")
        with HoldsAllButTheFirst(origin.tcp_address) as between, redis.Redis(port=fleet.server.port) as client:
            claim(client, between.address, "acme/base", digest)
            loads = [pool.submit(acquired, node) for node in others]
            try:
                there = NODES_COUNT - UPLOADS_MAX
                eventually(
                    lambda: sum(load.done() for load in loads) >= there, "all but those that are held have it", 30
                )
                assert begun(origin) <= 1 + UPLOADS_MAX
            finally:
                between.flow.set()
            assert all(load.result(30) == source.data for load in loads)
            assert 0 < between.held_max <= UPLOADS_MAX
        given = [begun(node) for node in fleet.nodes]
        assert sum(given) == NODES_COUNT, given  # each took it once, and nobody in vain
        assert sum(given[1:]) >= NODES_COUNT - 1 - UPLOADS_MAX
        assert source.reads <= 1.1
