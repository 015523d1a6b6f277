"""The fleet that is soaked: two daemons behind TLS with one registry in Redis, and the processes of the load.

``mortal`` is killed over and over; ``steady`` has the same load and never is. So what grows
with the life of a daemon is seen in the one, and what grows in its files in the other.
"""

from __future__ import annotations

import json
import random
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kit.authority import Authority
from kit.fleet import Fleet, Node, fleet_on
from kit.processes import Worker, eventually
from kit.redis_server import RedisServer, redis_server
from kit.scrape import HTTP
from soak.crowd import crowd
from soak.plan import WARM_UP, Plan
from soak.truth import BUDGET, COLD, EVERY, HOT, source_of

NAMES = ("steady", "mortal")
SUBJECT = "spiffe://cluster/worker"
CONFIG = f"""
credentials_seconds = 0.5
change_count_max = 5000  # full before the warm-up is over: by default it grows for the first 100,000 changes
[[identity]]
name = "worker"
subject = "uri:{SUBJECT}"
roles = ["reader"]
"""
SHOWN_SECONDS_MAX = 5.0
"""Until a new connection is shown a renewed certificate."""

STREAMED_SHARE = 0.12
"""Of the acquires of a node, those over TLS."""

ANSWER_SECONDS = 90.0
"""No part is longer in its turn than a call may take, some of them one after the other."""


class Stage:
    """What stays while daemons come and go. ``parts`` has the processes by node and kind."""

    def __init__(self, root: Path, fleet: Fleet, plan: Plan, seed: int) -> None:
        self.root = root
        self.fleet = fleet
        self.plan = plan
        self.chance = random.Random(seed)
        self.authority = Authority()
        self.nodes: dict[str, Node] = {}
        self.started: dict[str, float] = {}  # when each daemon was started the last time
        self.parts: dict[str, Worker] = {}
        self.outage = ""  # how Redis is away now

    # --- opening ---

    def open(self) -> None:
        """Start everything, and make resident what fits, and a crowd of it; the load holds still."""
        for content in EVERY:
            content.write(source_of(self.fleet.models, content))
        (self.root / "ca.pem").write_bytes(self.authority.cert)
        self._renew()
        for name in NAMES:
            self.nodes[name] = self._node(name)
            self._start(name)
        with self.nodes["steady"].connect() as shelf:
            for artifact_id, content in {**HOT, **COLD}.items():
                shelf.register(artifact_id, f"file://{source_of(self.fleet.models, content)}")
        self.fleet.agree(*HOT, *COLD)
        crowd(self.nodes["steady"], [*HOT, *COLD], self.plan.seconds * WARM_UP, self.chance)
        for name in NAMES:
            self._open_parts(name)

    def _node(self, name: str) -> Node:
        node = self.fleet.node(begin=False)
        config = self.root / "warmshelfd.toml"
        config.write_text(CONFIG)
        files = {"cert": "daemon.pem", "key": "daemon.key", "client-ca": "ca.pem"}
        tls = [word for option, file in files.items() for word in (f"--listen-{option}-file", f"{self.root}/{file}")]
        node.options = ("--budget", BUDGET, "--pin", "off", "--config", str(config), "--node-name", name, *HTTP, *tls)
        return node

    def _start(self, name: str) -> None:
        self.nodes[name].begin()
        self.started[name] = time.monotonic()

    def _open_parts(self, name: str) -> None:
        node, plan = self.nodes[name], self.plan
        rate = plan.rate("acquires") / len(NAMES)
        tls = f"{self.root}/ca.pem:{self.root}/worker.pem:{self.root}/worker.key"
        kinds: dict[str, tuple[str, float, tuple[str, ...]]] = {
            "mapped": (node.address, rate * (1 - STREAMED_SHARE), ()),
            "streamed": (node.tcp_address, rate * STREAMED_SHARE, (tls,)),
            "registrar": (node.address, plan.rate("registrations") / len(NAMES), (name, str(self.fleet.models))),
            "mortals": (node.address, plan.rate("worker_deaths") / len(NAMES), ()),
        }
        for kind, (address, each, more) in kinds.items():
            code = "from soak.parts import main; main()"
            self.parts[f"{name} {kind}"] = Worker(
                code, kind, address, str(each), str(self.chance.getrandbits(32)), *more
            )

    def close(self) -> None:
        """End the load; the fleet ends its daemons."""
        for part in self.parts.values():
            part.end()

    # --- the load ---

    def go(self) -> None:
        """Let the load begin, or go on."""
        self._tell_all("go")

    def hold(self) -> dict[str, dict[str, Any]]:
        """Have every part let go of everything; return what each has seen."""
        return self._tell_all("hold")

    def ask(self) -> dict[str, dict[str, Any]]:
        """Return what each part has seen."""
        return self._tell_all("tell")

    def _tell_all(self, word: str) -> dict[str, dict[str, Any]]:
        for part in self.parts.values():
            part.tell(word)
        return {name: self._answer(name, part) for name, part in self.parts.items()}

    def _answer(self, name: str, part: Worker) -> dict[str, Any]:
        line = part.line(ANSWER_SECONDS)
        if not line:
            part.end()
            raise RuntimeError(f"the {name} says nothing any more: {part.noise[-2000:]}")
        told: dict[str, Any] = json.loads(line)
        return told

    # --- what is done to the fleet ---

    def kill(self) -> None:
        """Kill the one daemon and start it again."""
        self.nodes["mortal"].kill()
        self._start("mortal")

    def begin_outage(self, how: str) -> None:
        """Take Redis away: it hangs, or ends, and all that it held is gone."""
        self.outage = how
        self.fleet.server.pause() if how == "hung" else self.fleet.server.stop()

    def end_outage(self) -> None:
        """Bring it back, if it is away."""
        if self.outage == "hung":
            self.fleet.server.resume()
        elif self.outage:
            self.fleet.server.start()
        self.outage = ""

    def rotate(self) -> float:
        """Renew the certificates of the daemons and of the worker; return the longest that a daemon took to show it."""
        shown = self._renew()
        begun = time.monotonic()
        for node in self.nodes.values():
            eventually(lambda node=node: self._shown(node) == shown, "the new certificate", SHOWN_SECONDS_MAX * 4)  # type: ignore[misc]
        return time.monotonic() - begun

    def _renew(self) -> bytes:
        """Write new ones; return the daemons', as a handshake shows it."""
        daemon = self.authority.issue("daemon", dns=["localhost"])
        daemon.write(self.root, "daemon")
        self.authority.issue("worker", uri=[SUBJECT]).write(self.root, "worker")
        return ssl.PEM_cert_to_DER_cert(daemon.cert.decode())

    def _shown(self, node: Node) -> bytes | None:
        context = ssl.create_default_context(cafile=str(self.root / "ca.pem"))
        context.load_cert_chain(self.root / "worker.pem", self.root / "worker.key")
        context.set_alpn_protocols(["h2"])
        host, _, port = node.tcp_address.rpartition(":")
        with (
            socket.create_connection((host, int(port)), 5) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as it,
        ):
            return it.getpeercert(binary_form=True)


@contextmanager
def opened(root: Path, plan: Plan, seed: int) -> Iterator[Stage]:
    """Return a stage whose load holds still, and end it; its daemons must end well, with no bug in their logs."""
    with ExitStack() as stack:
        (root / "redis").mkdir()
        server: RedisServer = stack.enter_context(redis_server(root / "redis"))
        fleet = stack.enter_context(fleet_on(server, root))
        it = Stage(root, fleet, plan, seed)
        stack.callback(it.close)
        it.open()
        yield it


def live_of(told: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the IDs that must be registered, by what the parts told."""
    return {*HOT, *COLD, *(one for part in told.values() for one in part.get("live", ()))}
