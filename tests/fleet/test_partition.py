"""Nodes in networks of their own, one of which is cut off and comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.fleet import Fleet, Node, fleet_on
from kit.models import write_model
from kit.network import Network, network
from kit.processes import eventually, read_all
from kit.redis_server import redis_server
from warmshelf.types import SyncState

HEAL_SECONDS = 30.0
QUICK = {"neighbour_stall_seconds": "1", "neighbour_wait_seconds": "0.2"}


class Apart(Node):
    """A node in a network namespace."""

    namespace = ""

    def command(self, *options: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *super().command(*options)]


@pytest.fixture
def net() -> Iterator[Network]:
    with network() as it:
        yield it


@pytest.fixture
def fleet(tmp_path: Path, net: Network) -> Iterator[Fleet]:
    (tmp_path / "redis").mkdir()
    open_to_all = ("--bind", "0.0.0.0", "--protected-mode", "no")
    with redis_server(tmp_path / "redis", arguments=open_to_all) as server, fleet_on(server, tmp_path) as it:
        yield it


def node_in(net: Network, fleet: Fleet, name: str) -> Apart:
    made = fleet.node(f"redis://{net.host}:{fleet.server.port}/0", begin=False)
    node = Apart(made.root, made.arena, made.models, made.registry_uri)
    fleet.nodes[fleet.nodes.index(made)] = node
    node.namespace, ip = net.join()
    node.options += (
        "--insecure",
        "--node-name",
        name,
        "--listen",
        f"{ip}:0",
        "--advertise",
        ip,
        "--neighbours",
        net.networks,
    )
    node.begin(**QUICK)
    return node


def test_what_one_registers_another_acquires_and_a_node_that_is_cut_off_serves_and_comes_back(
    net: Network, fleet: Fleet
) -> None:
    """N1, B39."""
    path = fleet.models / "base.safetensors"
    written = write_model(path, tag=1)
    a, b = node_in(net, fleet, "a"), node_in(net, fleet, "b")
    with a.connect() as here, b.connect() as there:
        here.register("acme/base", source=str(path))
        fleet.agree("acme/base")
        here.acquire("acme/base").release()
        eventually(lambda: any(one.digest for one in there.where("acme/base")), "it is told where")
        eventually(lambda: there.get("acme/base").digest != "", "its digest is pinned")
        path.rename(fleet.models / "moved")
        with there.acquire("acme/base") as lease:  # over the bridge, from the other node
            assert read_all(lease) == written
        (fleet.models / "moved").rename(path)

        net.cut(a.namespace)
        with here.acquire("acme/base") as lease:
            assert read_all(lease) == written
        there.evict("acme/base")
        began = time.monotonic()
        with there.acquire("acme/base", timeout=20) as lease:  # the other node is dead to it: from the source
            assert read_all(lease) == written
        assert time.monotonic() - began < 10
        eventually(lambda: there.where("acme/base")[0].node.name == "b", "it tells of itself")
        here.register("acme/late", source=str(path))
        eventually(lambda: a.sync_of("acme/late") is SyncState.QUEUED, "it is queued")
        there.register("acme/meanwhile", source=str(path))

        net.heal(a.namespace)
        began = time.monotonic()
        fleet.agree("acme/base", "acme/late", "acme/meanwhile", seconds=HEAL_SECONDS)
        eventually(
            lambda: {one.node.name for one in there.where("acme/base")} == {"a", "b"},
            "both tell again",
            HEAL_SECONDS,
        )
        print(f"converged after {time.monotonic() - began:.1f} s")
