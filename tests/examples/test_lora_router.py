"""The example router sends each request to the node where its adapter is warm, of three real ones."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from examples.lora_router import FRESH_SECONDS, Router, Server, rendezvous
from kit.adapters import adapter_files, pair
from kit.fleet import Fleet, Node, fleet_on
from kit.processes import eventually
from kit.redis_server import redis_server
from warmshelf import types

SECONDS = 10


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    (tmp_path / "redis").mkdir()
    with redis_server(tmp_path / "redis") as server, fleet_on(server, tmp_path) as it:
        yield it


@contextmanager
def serving(router: Router) -> Iterator[Server]:
    with Server(router, "http://{ip}:{port}", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def asked(server: Server, body: bytes) -> tuple[int, str, dict[str, object]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=SECONDS)
    try:
        connection.request("POST", "/v1/completions", body)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Location", ""), json.loads(answer.read())
    finally:
        connection.close()


def for_adapter(artifact_id: str) -> bytes:
    return json.dumps({"model": artifact_id, "prompt": "Hello"}).encode()


def start_node(fleet: Fleet, name: str) -> Node:
    node = fleet.node(begin=False)
    node.options += ("--node-name", name, "--advertise", "127.0.0.1")
    return node.begin()


def test_requests_go_where_their_adapter_is_warm_and_else_always_to_the_same_node(fleet: Fleet) -> None:
    nodes = {name: start_node(fleet, name) for name in ("a", "b", "c")}
    ids = [f"acme/{name}" for name in (*nodes, "cold")]
    for number, artifact_id in enumerate(ids):
        directory = fleet.models / str(number)
        directory.mkdir()
        for name, data in adapter_files(pair("layers.0.q_proj", 4 + number), r=4 + number).items():
            (directory / name).write_bytes(data)
        with nodes["a"].connect() as shelf:
            shelf.register(artifact_id, source=str(directory))
    fleet.agree(*ids)
    for name, node in nodes.items():  # each adapter is warm on the node of its name
        with node.connect() as shelf:
            shelf.acquire(f"acme/{name}").release()
    with nodes["a"].connect(timeout=2) as shelf, serving(Router(shelf)) as server:
        eventually(lambda: len(shelf.list_residency().residents) == 3, "every node has told")
        for name, node in nodes.items():
            status, location, told = asked(server, for_adapter(f"acme/{name}"))
            assert (status, told) == (307, {"node": name, "warm": True, "loading": False})
            assert urlsplit(location).netloc == node.tcp_address
            assert urlsplit(location).path == "/v1/completions"
        _, cold_location, told = asked(server, for_adapter("acme/cold"))
        assert told["warm"] is False
        assert asked(server, for_adapter("acme/cold"))[1] == cold_location
        chosen = nodes[str(told["node"])]
        with chosen.connect() as there:
            there.acquire("acme/cold").release()
        eventually(lambda: asked(server, for_adapter("acme/cold"))[2]["warm"] is True, "it is warm there now")
        assert asked(server, for_adapter("acme/cold"))[1] == cold_location

        nodes["a"].kill()  # who is asked is away: what is known of the nodes goes on
        eventually(lambda: asked(server, for_adapter("acme/b"))[0] == 307, "requests go somewhere", FRESH_SECONDS + 5)
        assert asked(server, b"no request")[0] == 400
        assert asked(server, json.dumps({"model": "no id"}).encode())[0] == 400


def test_of_a_node_that_leaves_only_its_own_adapters_move() -> None:
    nodes = [types.Node(f"{number:016x}", str(number), "", f"10.0.0.{number}:1") for number in range(1, 6)]
    before = {f"acme/{number}": rendezvous(f"acme/{number}", nodes) for number in range(500)}
    after = {artifact_id: rendezvous(artifact_id, nodes[1:]) for artifact_id in before}
    assert min(Counter(node.name for node in before.values()).values()) > 50
    assert all(after[artifact_id] == node for artifact_id, node in before.items() if node != nodes[0])
