"""Pushes that break: killed daemons and clients, cut connections, a full disk. Nothing is lost, nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

import warmshelf
from kit.models import filled, safetensors_bytes
from kit.plain import dies, refused
from kit.processes import Daemon, Worker, eventually, read_all
from kit.pushes import PUSH_STEPS, PlainPush, cutting_proxy, kept, spooled_bytes, unfinished
from warmshelf import errors

pytestmark = pytest.mark.e2e

MIB = 1 << 20
TENSORS = {name: filled(i, size=4 * MIB)["w"] for i, name in enumerate("abc", 1)}
WHOLE = {name: data for name, (_, _, data) in TENSORS.items()}


@pytest.mark.parametrize("step", PUSH_STEPS)
def test_a_daemon_killed_midway_is_waited_for_and_goes_on_where_it_was(daemon: Daemon, step: str) -> None:
    """B53: the next daemon has what the last one wrote; nothing is sent twice but for the last chunks."""
    daemon.start(failpoints=step)
    sent: list[int] = []
    outcome: list[warmshelf.Artifact] = []

    def push() -> None:
        with daemon.connect() as shelf:
            outcome.append(shelf.push("a", tensors=TENSORS, progress=lambda done, _: sent.append(done), timeout=60))

    thread = threading.Thread(target=push)
    thread.start()
    assert daemon.wait() == -signal.SIGKILL
    before = len(sent)
    daemon.start()
    thread.join(60)
    assert outcome
    if step.startswith("push.chunk"):
        assert 0 < len(sent) - before < 25  # of 25 chunks, what was missing
    else:
        assert len(sent) == before
    with daemon.connect() as shelf, shelf.acquire("a") as lease:
        assert read_all(lease) == WHOLE
    assert len(kept(daemon)) == 1
    assert unfinished(daemon) == []


def test_a_client_killed_midway_leaves_nothing_listed_and_later_nothing_at_all(
    daemon: Daemon, start_worker: Callable[..., Worker]
) -> None:
    daemon.start(env={"WARMSHELF_PUSH_IDLE_SECONDS": "1"})
    code = """
import sys, warmshelf
with warmshelf.connect(sys.argv[1]) as shelf:
    def told(done, total):
        if done > 4 << 20:
            print("midway", flush=True)
            sys.stdin.readline()
    shelf.push("a", tensors={"w": ("U8", (16 << 20,), bytes(16 << 20))}, progress=told)
"""
    worker = start_worker(code, daemon.address)
    assert worker.line() == "midway"
    with daemon.connect() as shelf:
        assert shelf.list() == []
        assert spooled_bytes(daemon) > MIB
        worker.end(signal.SIGKILL)
        assert shelf.list() == []
    eventually(lambda: unfinished(daemon) == [], "what nobody finishes is dropped")
    assert kept(daemon) == []


def test_a_client_that_gives_up_takes_back_what_it_sent(shared: Daemon) -> None:
    def stop(done: int, _: int) -> None:
        if done > 2 * MIB:
            raise KeyError("enough")

    with shared.connect() as shelf:
        with pytest.raises(KeyError, match="enough"):
            shelf.push("a", tensors=TENSORS, progress=stop)
        eventually(lambda: unfinished(shared) == [], "it is dropped")
        assert shelf.list() == []


def test_a_cut_connection_is_taken_up_where_the_daemon_has_got_to(shared: Daemon) -> None:
    with cutting_proxy(shared.tcp_address, cut_after_bytes=3 * MIB, cut_count=3) as proxy:
        with warmshelf.connect(proxy.address, timeout=30) as shelf:
            shelf.push("a", tensors=TENSORS)
        assert proxy.cuts_left == 0
    with shared.connect() as shelf, shelf.acquire("a") as lease:
        assert read_all(lease) == WHOLE


def test_a_connection_that_brings_nothing_is_not_tried_for_ever(shared: Daemon) -> None:
    with cutting_proxy(shared.tcp_address, cut_after_bytes=40_000, cut_count=100) as proxy:
        with warmshelf.connect(proxy.address, timeout=30) as shelf, pytest.raises(errors.DaemonUnreachable):
            shelf.push("a", tensors=TENSORS, timeout=30)
        assert 100 - proxy.cuts_left < 30


def test_a_silent_stream_is_ended_and_the_push_goes_on(daemon: Daemon) -> None:
    daemon.start(env={"WARMSHELF_STALL_SECONDS": "0.5"})
    files = {"model.safetensors": safetensors_bytes(filled(1, size=2 * MIB))}
    gate = threading.Event()

    def silent(push: PlainPush) -> Iterator[object]:
        yield push.chunk(0, 0)
        gate.wait(20)

    with PlainPush(daemon.address, files) as push:
        assert push.begin() == [0]
        with refused(grpc.StatusCode.ABORTED, "STREAM_STALLED"):
            push.write(silent(push))
        gate.set()
        received = push.begin()
        assert received == [512 << 10]
        push.write(push.chunks(received))
        assert push.finish().artifact_id == "a"


def test_a_stream_takes_over_from_one_that_hangs(shared: Daemon) -> None:
    files = {"model.safetensors": safetensors_bytes(filled(1, size=2 * MIB))}
    gate = threading.Event()
    ended: list[BaseException] = []

    def hang(push: PlainPush) -> None:
        def silent() -> Iterator[object]:
            yield push.chunk(0, 0)
            gate.wait(20)

        try:
            push.write(silent())
        except Exception as error:
            ended.append(error)

    with PlainPush(shared.address, files) as push:
        push.begin()
        thread = threading.Thread(target=hang, args=(push,))
        thread.start()
        eventually(lambda: spooled_bytes(shared) > 0, "it has written")
        received = push.begin()
        thread.join(10)
        gate.set()
        assert len(ended) == 1
        push.write(push.chunks(received))
        push.finish()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 80 MiB of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system of a known size")
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "none", str(path)], check=True)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_disk_that_fills_midway_is_said_and_leaves_nothing(daemon: Daemon, small_disk: Path) -> None:
    """M2: another process fills the disk between the announcement and the bytes."""
    daemon.start("--spool", str(small_disk / "spool"), env={"WARMSHELF_SPOOL_BYTES_MAX": "64MiB"})
    files = {"model.safetensors": safetensors_bytes(filled(1, size=8 * MIB))}
    with PlainPush(daemon.address, files) as push:
        push.begin()
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as out, pytest.raises(OSError):  # noqa: PT012
            while True:
                out.write(bytes(MIB))
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "SPOOL_FULL"):
            push.write(push.chunks())
        filler.unlink()
        assert list((small_disk / "spool").glob("*/*")) == []
        with refused(grpc.StatusCode.NOT_FOUND, "PUSH_NOT_FOUND"):
            push.finish()
    with daemon.connect() as shelf:
        with pytest.raises(errors.SpoolFull) as caught:
            shelf.push("b", tensors={"w": ("U8", (32 * MIB,), bytes(32 * MIB))})
        assert caught.value.details["needed_bytes"] > caught.value.details["free_bytes"]
        shelf.push("a", tensors=filled(1))
        shelf.acquire("a").release()


def test_a_full_budget_is_said_with_its_numbers_and_removal_makes_room(daemon: Daemon) -> None:
    daemon.start(env={"WARMSHELF_SPOOL_BYTES_MAX": "20MiB"})
    with daemon.connect() as shelf:
        shelf.push("a", tensors=TENSORS)
        with pytest.raises(errors.SpoolFull) as caught:
            shelf.push("b", tensors=TENSORS)
        assert caught.value.details["spool_bytes_max"] == 20 * MIB
        assert 12 * MIB < caught.value.details["used_bytes"] < 13 * MIB
        with pytest.raises(errors.LargerThanSpool):
            shelf.push("b", tensors={**TENSORS, "d": filled(4, size=9 * MIB)["w"]})
        shelf.remove("a")
        shelf.push("b", tensors=TENSORS)
    daemon.kill()
    daemon.start(env={"WARMSHELF_SPOOL_BYTES_MAX": "20MiB"})
    with daemon.connect() as shelf, pytest.raises(errors.SpoolFull):
        shelf.push("c", tensors=TENSORS)


def test_what_no_id_means_is_kept_for_a_while_and_then_dropped(daemon: Daemon) -> None:
    daemon.start()
    with daemon.connect() as shelf:
        shelf.push("a", tensors=filled(1))
    daemon.kill()
    for path in daemon.registry.parent.glob("registry.sqlite*"):
        path.unlink()
    daemon.start()
    assert len(kept(daemon)) == 1
    daemon.kill()
    daemon.start(env={"WARMSHELF_SPOOL_ORPHAN_SECONDS": "0.5"})
    eventually(lambda: kept(daemon) == [], "it is dropped")


def test_killed_while_it_removes_the_rest_goes_later(daemon: Daemon) -> None:
    daemon.start(failpoints="remove.recorded=kill", env={"WARMSHELF_SPOOL_ORPHAN_SECONDS": "0.5"})
    files = {"model.safetensors": safetensors_bytes(filled(1))}
    with PlainPush(daemon.address, files) as push:
        push.begin()
        push.write(push.chunks())
        push.finish()
    with daemon.connect(timeout=3) as shelf, pytest.raises(errors.WarmshelfError):
        shelf.remove("a")
    daemon.wait()
    daemon.start(env={"WARMSHELF_SPOOL_ORPHAN_SECONDS": "0.5"})
    with daemon.connect() as shelf:
        assert shelf.list() == []
    eventually(lambda: kept(daemon) == [], "it is dropped")


def test_a_finish_whose_answer_is_lost_may_be_repeated(daemon: Daemon) -> None:
    daemon.start(failpoints="register.recorded=kill")
    files = {"model.safetensors": safetensors_bytes(filled(1))}
    with PlainPush(daemon.address, files) as push:
        push.begin()
        push.write(push.chunks())
        with dies():
            push.finish()
        daemon.wait()
        daemon.start()
    with PlainPush(daemon.address, files) as push:
        assert push.begin() == [len(files["model.safetensors"])]
        assert push.finish() == push.finish()
