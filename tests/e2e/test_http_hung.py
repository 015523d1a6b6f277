"""A web server that hangs delays nobody else, and nothing waits for it once nobody wants it."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit import web_faults as faults
from kit.models import Tensor, pattern, safetensors_bytes, write_model
from kit.processes import Daemon, eventually, read_all
from kit.web import Web, serving
from warmshelf import errors

TENSORS: dict[str, Tensor] = {"w": ("U8", (1 << 18,), pattern(3, 1 << 18))}
MODEL = safetensors_bytes(TENSORS)
COUNT = 10
"""More than there are threads for loads of bases, or for inspections, from one place."""


@pytest.fixture
def servers() -> Iterator[tuple[Web, Web]]:
    with ExitStack() as stack:
        webs = [stack.enter_context(serving()) for _ in range(2)]
        for web in webs:
            web.put("/m", {f"{number}.safetensors": MODEL for number in range(COUNT)})
        yield webs[0], webs[1]


@pytest.fixture
def reader(servers: tuple[Web, Web], tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with more patience than any test."""
    config = tmp_path / "daemon.toml"
    config.write_text(
        "source_answer_seconds = 600\nsource_stall_seconds = 600\ndrain_seconds = 1\n"
        + "".join(f'[[source]]\nprefix = "{web.url}"\nallow_private = true\n' for web in servers)
    )
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm") as arena:
        daemon = Daemon(tmp_path, Path(arena), tmp_path / "models")
        daemon.models.mkdir()
        allowed = [option for web in servers for option in ("--allow-source", web.url)]
        yield daemon.start("--config", str(config), "--budget", "64MiB", *allowed)
        daemon.kill(signal.SIGTERM)
        daemon.check()


@pytest.mark.parametrize("hang", [faults.Silent("*.safetensors"), faults.Stall("*.safetensors")])
def test_loads_and_registrations_from_elsewhere_go_on_beside_a_server_that_hangs(
    servers: tuple[Web, Web], reader: Daemon, hang: faults.FaultOf
) -> None:
    hung, well = servers
    ids = [f"hung-{number}" for number in range(COUNT)]
    with reader.connect() as shelf:
        for number, artifact_id in enumerate(ids):
            shelf.register(artifact_id, f"{hung.url}/m/{number}.safetensors")
        hang.seen = 0
        hung.faults.append(hang)
        waiting = [threading.Thread(target=give_up, args=(reader, artifact_id)) for artifact_id in ids]
        waiting += [threading.Thread(target=register, args=(reader, hung, number)) for number in range(COUNT)]
        for thread in waiting:
            thread.start()
        eventually(lambda: hang.seen >= 8, "all threads for that server wait")
        wanted = write_model(reader.models / "a.safetensors", 1, size=1 << 16)
        for artifact_id, source in (("file", reader.models / "a.safetensors"), ("web", f"{well.url}/m/0.safetensors")):
            start = time.monotonic()
            shelf.register(artifact_id, source)
            with shelf.acquire(artifact_id, timeout=10) as lease:
                assert read_all(lease) == (wanted if artifact_id == "file" else {"w": TENSORS["w"][2]})
            assert time.monotonic() - start < 5
        for thread in waiting:
            thread.join(30)
        assert not any(thread.is_alive() for thread in waiting)
        hung.faults.clear()  # nobody waits for it any longer: its threads are free, and loads from it work
        with shelf.acquire(ids[0], timeout=10) as lease:
            assert read_all(lease) == {"w": TENSORS["w"][2]}


def give_up(reader: Daemon, artifact_id: str) -> None:
    with reader.connect() as shelf, pytest.raises(errors.DeadlineExceeded):
        shelf.acquire(artifact_id, timeout=4)


def register(reader: Daemon, hung: Web, number: int) -> None:
    with reader.connect(timeout=4) as shelf, pytest.raises(errors.DeadlineExceeded):
        shelf.register(f"new-{number}", f"{hung.url}/m/{number}.safetensors")


def test_a_daemon_that_is_to_stop_does_not_wait_for_a_server_that_hangs(
    servers: tuple[Web, Web], reader: Daemon
) -> None:
    hung, _ = servers
    hang = faults.Silent("0.safetensors")
    with reader.connect() as shelf:
        shelf.register("a", f"{hung.url}/m/0.safetensors")
        hung.faults.append(hang)
        list(shelf.load("a", detach=True))
        eventually(lambda: hang.seen > 0, "the load waits")
    start = time.monotonic()
    assert reader.kill(signal.SIGTERM) == 0
    assert time.monotonic() - start < 10
