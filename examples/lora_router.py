"""A router for many nodes: each request goes where its adapter is warm, or soon will be.

    python -m examples.lora_router --address ADDRESS [--port PORT] [--engine 'http://{ip}:8000']

    curl -L localhost:PORT/v1/completions -d '{"model": "acme/support-lora", "prompt": "Hello"}'

One daemon of the fleet is asked what is resident where; `--engine` says how the URL of a node's inference engine is
made from the node's address. The answer is a redirect (307), which clients follow with the same request. Where an
adapter is warm nowhere, a node that is loading it is next. Where there is none, or nobody answers, rendezvous hashing
picks the node: always the same one for an adapter, so that it becomes warm there, and of those of a node that leaves,
only its own move.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import warmshelf
from warmshelf.errors import InvalidId, WarmshelfError
from warmshelf.types import Node, check_id

BODY_BYTES_MAX = 1 << 20
FRESH_SECONDS = 1.0
"""How long an answer of the fleet is used; so often the daemon is asked for an adapter at most."""

ADAPTERS_MAX = 10_000
"""Answers that are remembered."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a request goes, and whether its adapter was said to be warm there, or to be loaded now."""

    node: Node
    is_warm: bool = False
    is_loading: bool = False


@dataclass(frozen=True, slots=True)
class _Known:
    time: float
    nodes: tuple[Node, ...]
    warm: tuple[Node, ...] = ()
    loading: tuple[Node, ...] = ()


class Router:
    """Picks nodes. May be used by several threads."""

    def __init__(self, shelf: warmshelf.Shelf) -> None:
        self._shelf = shelf
        self._lock = threading.Lock()  # guards the two below
        self._known: dict[str, _Known] = {}  # what was told of each adapter, the latest last
        self._nodes: tuple[Node, ...] = ()  # all that were there when last somebody answered

    def pick(self, artifact_id: str) -> Choice | None:
        """Return where a request goes; None if no node says where it can be reached."""
        known = self._look(check_id(artifact_id))
        if known.warm:
            return Choice(random.choice(known.warm), is_warm=True)  # spreads load
        if known.loading:  # it has the adapter sooner than a node that has yet to begin
            return Choice(rendezvous(artifact_id, known.loading), is_loading=True)
        return Choice(rendezvous(artifact_id, known.nodes)) if known.nodes else None

    def _look(self, artifact_id: str) -> _Known:
        now = time.monotonic()
        with self._lock:
            known = self._known.get(artifact_id)
        if known is not None and now - known.time < FRESH_SECONDS:
            return known
        try:
            told = self._shelf.list_residency(artifact_id)
        except WarmshelfError:  # whatever it is: a request must go somewhere
            known = _Known(now, self._nodes)
        else:
            warm = reachable(one.node for one in told.residents)
            known = _Known(now, reachable(told.nodes), warm, reachable(told.loading))
        self._keep(artifact_id, known)
        return known

    def _keep(self, artifact_id: str, known: _Known) -> None:
        with self._lock:
            self._nodes = known.nodes
            self._known.pop(artifact_id, None)
            self._known[artifact_id] = known
            if len(self._known) > ADAPTERS_MAX:
                del self._known[next(iter(self._known))]


def reachable(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Return those that say where they can be reached."""
    return tuple(node for node in nodes if node.address)


def rendezvous(artifact_id: str, nodes: Sequence[Node]) -> Node:
    """Return the node that has the highest number for an adapter; everybody computes the same."""

    def number(node: Node) -> bytes:
        return hashlib.blake2b(f"{node.node_id} {artifact_id}".encode(), digest_size=8).digest()

    return max(nodes, key=number)


class Server(ThreadingHTTPServer):
    """Answers each request with where it is to go."""

    def __init__(self, router: Router, engine: str, port: int) -> None:
        self.router = router
        self.engine = engine
        super().__init__(("127.0.0.1", port), _Handler)

    def url_of(self, node: Node) -> str:
        """Return the URL of a node's engine."""
        ip, _, port = node.address.rpartition(":")
        return self.engine.format(ip=ip, port=port, name=node.name, zone=node.zone)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 10

    def do_POST(self) -> None:
        try:
            choice = self.server.router.pick(adapter_of(self._body()))
        except (ValueError, InvalidId) as error:
            self._answer(HTTPStatus.BAD_REQUEST, {"error": str(error)})
            return
        if choice is None:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, {"error": "no node says where it can be reached"})
            return
        told = {"node": choice.node.name, "warm": choice.is_warm, "loading": choice.is_loading}
        self._answer(HTTPStatus.TEMPORARY_REDIRECT, told, self.server.url_of(choice.node) + self.path)

    def _body(self) -> bytes:
        size = int(self.headers.get("Content-Length", "0"))
        if not 0 < size <= BODY_BYTES_MAX:
            raise ValueError(f"a request has from 1 to {BODY_BYTES_MAX} bytes")
        return self.rfile.read(size)

    def _answer(self, status: HTTPStatus, told: dict[str, object], location: str = "") -> None:
        body = json.dumps(told).encode()
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def adapter_of(body: bytes) -> str:
    """Return the adapter that a request names: engines take it as the model."""
    request = json.loads(body)
    model = request.get("model") if isinstance(request, dict) else None
    if not isinstance(model, str):
        raise ValueError("a request names its adapter as 'model'")  # noqa: TRY004 - a wrong value like any other
    return model


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="Send each request where its adapter is warm.")
    parser.add_argument("--address", help="a daemon of the fleet; WARMSHELF_ADDRESS by default")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--engine", default="http://{ip}:8000", help="a node's engine; {ip} {port} {name} {zone}")
    options = parser.parse_args()
    with (
        warmshelf.connect(options.address, timeout=2) as shelf,
        Server(Router(shelf), options.engine, options.port) as server,
    ):
        print(f"routing at http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
