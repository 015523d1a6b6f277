"""What is pushed to a store that all nodes reach: kept there before the daemon says yes, and never lost."""

from __future__ import annotations

import shutil
import signal
import threading
from pathlib import Path

import pytest

import warmshelf
from kit.adapters import CONFIG, adapter_files, pair
from kit.fleet import Fleet
from kit.models import Tensor, filled, pattern
from kit.processes import Daemon, eventually, read_all
from kit.pushes import kept, spool_of, unfinished
from kit.stores import ENV, Store
from warmshelf import ArtifactKind, errors

pytestmark = pytest.mark.e2e

MIB = 1 << 20
TENSORS: dict[str, Tensor] = {
    "big": ("BF16", (5, MIB), pattern(1, 10 * MIB)),
    "scalar": ("F32", (), pattern(2, 4)),
    "empty": ("U8", (0, 3), b""),
    "fp8": ("F8_E4M3", (70_001,), pattern(3, 70_001)),
}
WHOLE = {name: data for name, (_, _, data) in TENSORS.items()}


def start(daemon: Daemon, store: Store, failpoints: str = "", **limits: str) -> Daemon:
    return daemon.start("--budget", "64MiB", *store.options(daemon.root, **limits), env=ENV, failpoints=failpoints)


def local_files(daemon: Daemon) -> list[str]:
    """The files of pushes that lie on the node."""
    return sorted(str(path) for path in spool_of(daemon).glob("*/*/files/*"))


def write_adapter(directory: Path) -> Path:
    directory.mkdir()
    for name, data in adapter_files(pair("m.q_proj"), future_field=1).items():
        (directory / name).write_bytes(data)
    return directory


def test_a_yes_means_the_store_has_it_and_eviction_and_restart_find_it_again(
    daemon: Daemon, store: Store, tmp_path: Path
) -> None:
    """B20, B39: bits out are bits in, by the ID alone, though the node keeps no file."""
    start(daemon, store)
    home = write_adapter(tmp_path / "home")
    with daemon.connect() as shelf:
        pushed = shelf.push("a", tensors=TENSORS)
        assert pushed.spec.source.uri.startswith(f"{store.place}/")
        assert local_files(daemon) == []
        assert shelf.push("lora", path=home, base="m").kind is ArtifactKind.ADAPTER
        with shelf.acquire("a", timeout=30) as lease:
            assert {n: (s.dtype, s.shape, bytes(lease[n])) for n, s in lease.specs.items()} == TENSORS
        shelf.evict("a")
    daemon.kill()
    start(daemon, store)
    with daemon.connect() as shelf:
        with shelf.acquire("a", timeout=30) as lease:
            assert read_all(lease) == WHOLE
            assert lease.generation == 1
        with shelf.acquire("lora", timeout=30) as lease:
            assert lease.config_json == (home / CONFIG).read_bytes()
        for artifact in ("a", "lora"):
            shelf.remove(artifact)
    eventually(lambda: store.keys() == [], "the store is empty again")
    eventually(lambda: kept(daemon) + unfinished(daemon) == [], "and so is the node")


def test_a_pushed_id_works_on_every_node_also_when_the_one_that_took_it_is_gone(fleet: Fleet, store: Store) -> None:
    """B39 for a fleet: the registration travels, the bytes are where every node reaches them."""
    a, b = fleet.node(begin=False), fleet.node(begin=False)
    for node in (a, b):
        node.options += tuple(store.options(node.root))
        node.env = dict(ENV)
        node.begin()
    with a.connect() as here:
        digest = here.push("acme/a", tensors=TENSORS).digest
    fleet.agree("acme/a")
    a.kill(signal.SIGKILL)
    shutil.rmtree(a.registry.parent)
    with b.connect() as there:
        with there.acquire("acme/a", timeout=30) as lease:
            assert read_all(lease) == WHOLE
        assert there.get("acme/a").digest == digest
        assert there.push("acme/a", tensors=TENSORS).digest == digest  # the same again: no second copy
        assert unfinished(b) == []
    a.begin()  # the node that came in its place knows nothing of its own
    fleet.agree("acme/a")
    with a.connect() as here:
        with here.acquire("acme/a", timeout=30) as lease:
            assert read_all(lease) == WHOLE
        here.remove("acme/a")
    eventually(lambda: store.keys() == [], "whichever node removes it, the store is empty")
    eventually(lambda: b.sync_of("acme/a") is None, "it is removed everywhere")


def test_what_replaces_a_push_frees_the_store_on_whichever_node(fleet: Fleet, store: Store) -> None:
    a, b = fleet.node(begin=False), fleet.node(begin=False)
    for node in (a, b):
        node.options += tuple(store.options(node.root))
        node.env = dict(ENV)
        node.begin()
    with a.connect() as here, b.connect() as there:
        here.push("a", tensors=filled(1))
        fleet.agree("a")
        first = set(store.keys())
        with there.acquire("a", timeout=30) as lease:
            with pytest.raises(errors.SpecMismatch):
                there.push("a", tensors=filled(2))
            there.push("a", tensors=filled(2), replace=True)
            assert bytes(lease["w"]) == filled(1)["w"][2]
        eventually(lambda: here.get("a").spec == there.get("a").spec, "the other node follows")
        eventually(lambda: not first & set(store.keys()), "the first content leaves the store")
        with here.acquire("a", timeout=30) as lease:
            assert bytes(lease["w"]) == filled(2)["w"][2]


@pytest.mark.parametrize("step", ["push.stored=kill", "register.recorded=kill"])
def test_a_daemon_killed_on_the_way_to_the_store_is_waited_for_and_keeps_one_copy(
    daemon: Daemon, store: Store, step: str
) -> None:
    """B53: what was sent is not sent again, and the store has it once."""
    start(daemon, store, step)
    sent: list[int] = []
    outcome: list[warmshelf.Artifact] = []

    def push() -> None:
        with daemon.connect() as shelf:
            outcome.append(shelf.push("a", tensors=TENSORS, progress=lambda done, _: sent.append(done), timeout=60))

    thread = threading.Thread(target=push)
    thread.start()
    assert daemon.wait() == -signal.SIGKILL
    before = len(sent)
    start(daemon, store)
    thread.join(60)
    assert outcome
    assert len(sent) == before
    (number,) = kept(daemon)
    assert all(number in key for key in set(store.keys()))
    assert local_files(daemon) == []
    with daemon.connect() as shelf, shelf.acquire("a", timeout=30) as lease:
        assert read_all(lease) == WHOLE


def test_nobody_registers_what_was_pushed_under_another_id(daemon: Daemon, store: Store) -> None:
    start(daemon, store)
    with daemon.connect() as shelf:
        uri = shelf.push("a", tensors=filled(1)).spec.source.uri
        for source in (uri, f"{uri}/model.safetensors", store.place):
            for artifact_id in ("a", "b"):
                with pytest.raises(errors.SourceNotAllowed):
                    shelf.register(artifact_id, source)
        assert [artifact.artifact_id for artifact in shelf.list()] == ["a"]


def test_what_was_pushed_to_a_directory_before_stays_readable_beside_a_store(daemon: Daemon, store: Store) -> None:
    daemon.start("--budget", "64MiB")
    with daemon.connect() as shelf:
        shelf.push("old", tensors=filled(1))
    daemon.kill(signal.SIGTERM)
    start(daemon, store, spool_orphan_seconds="0.01")
    with daemon.connect() as shelf:
        shelf.push("new", tensors=filled(2))
        for artifact, value in (("old", 1), ("new", 2)):
            with shelf.acquire(artifact, timeout=30) as lease:
                assert bytes(lease["w"]) == filled(value)["w"][2]
        shelf.evict("old")
        shelf.acquire("old", timeout=30).release()
