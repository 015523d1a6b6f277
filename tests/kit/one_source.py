"""Nodes that would all read one source, which counts what it sends and can be held back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kit.fleet import Fleet, LightNode, Node
from kit.metered import Metered
from kit.models import pattern, safetensors_bytes
from kit.processes import read_all
from kit.scrape import HTTP, pages_of
from kit.web import Web, serving

BYTES = 24 << 20
FILE = "model.safetensors"
HELD_AT = 8 << 20
BASE = "acme/base"


class Source:
    """A base on a web server that counts what it sends."""

    def __init__(self, web: Web, size_bytes: int) -> None:
        self.data = pattern(1, size_bytes)
        self.url = web.put("/base", {FILE: safetensors_bytes({"weight": ("U8", (size_bytes,), self.data)})}) + FILE
        self.meter = Metered(FILE)
        self.web = web
        web.faults.append(self.meter)

    @property
    def reads(self) -> float:
        """How often the whole of it was sent."""
        return self.meter.sent_bytes / len(self.data)


@contextmanager
def a_source(size_bytes: int = BYTES) -> Iterator[Source]:
    with serving() as web:
        source = Source(web, size_bytes)
        try:
            yield source
        finally:
            source.meter.flow.set()


def begin_node(fleet: Fleet, source: Source, name: str, *, can_be_reached: bool = True, **settings: str) -> Node:
    """Start a node that may read the source and, if others are told how to reach it, take from them."""
    config = fleet.root / "sources.toml"
    config.write_text(f'[[source]]\nprefix = "{source.web.url}"\nallow_private = true\n')
    node = fleet.node(begin=False, kind=LightNode)
    node.options += ("--config", str(config), "--allow-source", source.web.url, "--node-name", name, *HTTP)
    if can_be_reached:
        node.options += ("--advertise", "127.0.0.1", "--neighbours", "127.0.0.1/32")
    return node.begin(**settings)


def acquired(node: Node) -> bytes:
    """Acquire the base on a node; return its bytes."""
    with node.connect() as shelf, shelf.acquire(BASE, timeout=60) as lease:
        return read_all(lease)["weight"]


def turns(node: Node, outcome: str) -> float:
    """Return how many turns at a source had this outcome on a node."""
    return pages_of(node).scrape()[f'warmshelf_source_turns_total{{outcome="{outcome}"}}']


PATIENCE_SECONDS = 2.0
QUICK = {
    "neighbour_claim_seconds": str(PATIENCE_SECONDS),
    "neighbour_bytes_per_second_min": "1MiB",
    "source_stall_seconds": "30",
    "source_read_threads": "4",
    "neighbour_stall_seconds": "20",
}


def nodes_of(fleet: Fleet, source: Source, names: str, **settings: str) -> list[Node]:
    """Start nodes that may take from each other, and know the base."""
    for name in names:
        begin_node(fleet, source, name, **(QUICK | settings))
    with fleet.nodes[0].connect() as shelf:
        shelf.register(BASE, source=source.url)
    fleet.agree(BASE)
    return fleet.nodes
