"""A node's arena over the life of its pods: what node mode promises, with the chart's own script and arguments."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.chart import NODE, daemon_of, pods, render
from kit.models import write_model
from kit.nodes import Node

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")]

GONE_SECONDS = 30

READ = """
import hashlib, warmshelf
with warmshelf.connect() as shelf, shelf.acquire("base", timeout=20) as lease:
    print(lease.transport, hashlib.sha256(b"".join(bytes(lease[name]) for name in sorted(lease))).hexdigest())
"""
REGISTER = "import warmshelf; warmshelf.connect().register('base', 'file://{}')"
WRITE = """
import os
for path in ("/run/warmshelf/new", "/run/warmshelf/arena/new"):
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        print("written")
    except OSError as error:
        print(error.strerror)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that the user of the pods may enter, which those of pytest are not."""
    path = Path(tempfile.mkdtemp(prefix="warmshelf-node-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def node(place: Path) -> Iterator[Node]:
    (place / "node").mkdir()
    it = Node(place / "node", 80 << 20)
    yield it
    it.close()


@pytest.fixture
def arguments(place: Path) -> list[str]:
    """The DaemonSet's own, but for what this machine has no place for."""
    write_model(place / "models" / "model.safetensors", 1)
    values = NODE | {"arena": {"budget": "64Mi"}, "allowSource": [f"file://{place}/models"]}
    rendered = daemon_of(dict(pods(render(values)))["warmshelf"])["args"]
    kept = [one for one in rendered if not one.startswith(("--registry", "--http"))]
    return [*kept, f"--registry=sqlite:///{str(place / 'node/state/registry.sqlite')[1:]}", "--log-format=text"]


def end(process: subprocess.Popen[str], number: int = signal.SIGKILL) -> None:
    process.send_signal(number)
    process.communicate(timeout=GONE_SECONDS)


def test_weights_outlive_workers_a_kill_and_an_upgrade(node: Node, arguments: list[str], place: Path) -> None:
    first = node.daemon(arguments)
    node.worker(REGISTER.format(place / "models"))
    seen = node.worker(READ)
    assert seen.startswith("mapped ")
    end(first)
    (place / "models" / "model.safetensors").unlink()  # from here on, only memory has them
    second = node.daemon(arguments)
    assert node.worker(READ) == seen
    end(second, signal.SIGTERM)
    third = node.daemon(arguments)
    assert node.worker(READ) == seen
    end(third, signal.SIGTERM)


def test_a_worker_cannot_write_into_what_it_is_offered(node: Node, arguments: list[str]) -> None:
    daemon = node.daemon(arguments)
    assert node.worker(WRITE).splitlines() == ["Read-only file system"] * 2
    end(daemon, signal.SIGTERM)


def test_the_purge_refuses_while_a_daemon_runs_and_then_empties_the_arena(
    node: Node, arguments: list[str], place: Path
) -> None:
    daemon = node.daemon(arguments)
    node.worker(REGISTER.format(place / "models"))
    node.worker(READ)
    found = next(pod for name, pod in pods(render(NODE)) if name == "warmshelf-purge")
    purge = next(one for one in found["initContainers"] if one["name"] == "purge")["args"]
    assert "is in use by" in node.purge(purge)
    end(daemon, signal.SIGTERM)
    assert "removed 1 segments" in node.purge(purge)
