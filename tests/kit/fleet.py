"""Several daemons that share one registry in a real Redis."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import warmshelf
from kit.processes import Daemon, eventually
from kit.quick_daemon import QuickDaemon
from kit.redis_server import RedisServer
from warmshelf.types import SyncState

BUDGET = "64MiB"


class Node(Daemon):
    """A daemon whose registry is in Redis; its copy is where a daemon's own registry is."""

    def __init__(self, root: Path, arena: Path, models: Path, registry_uri: str) -> None:
        super().__init__(root, arena, models)
        self.registry_uri = registry_uri
        self.env: dict[str, str] = {}
        self.options: tuple[str, ...] = ("--budget", BUDGET)

    def command(self, *options: str) -> list[str]:
        command = super().command(*options)
        command[command.index("--registry") + 1] = self.registry_uri
        return command

    def begin(self, **settings: str) -> Node:
        """Start with the node's usual options."""
        limits = {f"WARMSHELF_{name.upper()}": value for name, value in settings.items()}
        self.start(*self.options, env={"WARMSHELF_REGISTRY_COPY": str(self.registry), **self.env, **limits})
        return self

    def sync_of(self, artifact_id: str) -> SyncState | None:
        """How far others know of an ID; None if this node does not know it."""
        with self.connect() as shelf:
            try:
                artifact = shelf.get(artifact_id)
            except warmshelf.errors.ArtifactNotFound:
                return None
        return artifact.sync.state if artifact.sync else None

    def knows(self, *ids: str) -> bool:
        """Whether every ID is known and nothing about it is queued here."""
        with self.connect() as shelf:
            known = {a.artifact_id: a.sync.state for a in shelf.list() if a.sync}
        return all(known.get(artifact_id) is SyncState.PUBLISHED for artifact_id in ids)


class LightNode(Node, QuickDaemon):
    """A node that starts in milliseconds, for those that a test has many of."""


class Fleet:
    """Nodes that are made as a test wants them."""

    def __init__(self, root: Path, server: RedisServer, stack: ExitStack) -> None:
        self.server = server
        self.root = root
        self.models = root / "models"
        self.models.mkdir()
        self.nodes: list[Node] = []
        self._stack = stack

    def node(self, registry_uri: str = "", *, begin: bool = True, kind: type[Node] = Node) -> Node:
        """Make a node, and start it."""
        number = len(self.nodes)
        arena = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm")))
        directory = self.root / f"node-{number}"
        directory.mkdir()
        node = kind(directory, arena, self.models, registry_uri or self.server.uri())
        self.nodes.append(node)
        return node.begin() if begin else node

    def agree(self, *ids: str, seconds: float = 15.0) -> None:
        """Wait until every running node knows these IDs and has nothing queued about them."""
        for node in self.nodes:
            if node.process is not None and node.process.poll() is None:
                eventually(lambda node=node: node.knows(*ids), f"{node.root.name} knows {ids}", seconds)  # type: ignore[misc]


@contextmanager
def fleet_on(server: RedisServer, root: Path) -> Iterator[Fleet]:
    """Make a fleet; at the end every node must stop well and have no bug in its log."""
    with ExitStack() as stack:
        fleet = Fleet(root, server, stack)
        try:
            yield fleet
        finally:
            for node in fleet.nodes:
                if node.process is not None:
                    node.kill(signal.SIGTERM)
        for node in fleet.nodes:
            if node.process is not None:
                node.check()
