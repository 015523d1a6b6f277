"""The daemon goes and comes back under living workers."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

import warmshelf
from kit.models import filled, safetensors_bytes, write_model
from kit.plain import Plain, refused
from kit.processes import Daemon, eventually, read_all
from warmshelf import ArtifactState, errors

MIB = 1 << 20
RECONNECT_SECONDS = 3.0


@pytest.fixture
def tensors(daemon: Daemon, models: Path) -> dict[str, bytes]:
    """A started daemon that has an artifact ``a`` of 8 MiB resident."""
    tensors = write_model(models / "a.safetensors", 1, 8 * MIB)
    daemon.start()
    with daemon.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        shelf.acquire("a", timeout=20).release()
    return tensors


@pytest.fixture
def shelves(daemon: Daemon, tensors: dict[str, bytes]) -> Iterator[list[warmshelf.Shelf]]:
    """Workers over the socket and over TCP, that live on while the daemon is started anew at the same addresses."""
    with daemon.connect() as mapping, warmshelf.connect(daemon.tcp_address) as streaming:
        yield [mapping, streaming]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_after_a_restart_the_same_shelf_acquires_by_id_within_three_seconds(
    daemon: Daemon, models: Path, tensors: dict[str, bytes], shelves: list[warmshelf.Shelf], number: signal.Signals
) -> None:
    """B53: without registering or reading the source again; the old mapping and the old lease do no harm."""
    old = [shelf.acquire("a", timeout=20) for shelf in shelves]
    daemon.kill(number)
    (models / "a.safetensors").unlink()
    daemon.start()
    start = time.monotonic()
    again = [shelf.acquire("a", timeout=20, resident_only=True) for shelf in shelves]
    assert time.monotonic() - start < RECONNECT_SECONDS
    for lease in (*old, *again):
        assert (read_all(lease), lease.generation) == (tensors, 1)
    for lease in (*old, *old):
        lease.release()
    assert len(shelves[0].leases()) == 2
    assert [read_all(lease) == tensors for lease in again] == [True, True]


def test_a_restart_between_any_two_calls_is_not_noticed(
    daemon: Daemon, models: Path, tensors: dict[str, bytes]
) -> None:
    """B53: each kind of call is the first after a restart once."""
    (models / "b.safetensors").write_bytes(safetensors_bytes(filled(1)))
    with warmshelf.connect(daemon.tcp_address) as shelf:
        shelf.get("a")
        calls: tuple[Callable[[], object], ...] = (
            lambda: shelf.register("b", models / "b.safetensors"),
            lambda: [*shelf.load("b", timeout=20)],
            lambda: shelf.acquire("b", timeout=20).release(),
            lambda: shelf.evict("b"),
            lambda: shelf.remove("b"),
        )
        for call in calls:
            daemon.kill()
            daemon.start()
            call()
        assert [artifact.artifact_id for artifact in shelf.list()] == ["a"]


def test_a_call_made_while_the_daemon_is_away_is_answered_when_it_is_back(
    daemon: Daemon, tensors: dict[str, bytes], shelves: list[warmshelf.Shelf]
) -> None:
    """B53: a rolling update is a wait, not an error."""
    for shelf in shelves:
        shelf.get("a")
    daemon.kill()
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(shelf.acquire, "a", timeout=30) for shelf in shelves]
        for shelf in shelves:
            with pytest.raises(errors.DaemonUnreachable):
                shelf.acquire("a", timeout=0.5)
        daemon.start()
        assert [read_all(one.result()) == tensors for one in waiting] == [True, True]


def test_after_a_long_absence_the_reconnect_takes_seconds(
    daemon: Daemon, tensors: dict[str, bytes], shelves: list[warmshelf.Shelf]
) -> None:
    """B53: calls go on failing all the while, so that any back-off grows.

    Ten seconds instead of a minute: a back-off that doubles from its usual first second
    would wait 16 s by then, and ours has long been at its longest, two.
    """
    for shelf in shelves:
        shelf.get("a")
    daemon.kill()
    end = time.monotonic() + 10
    while time.monotonic() < end:
        for shelf in shelves:
            with pytest.raises(errors.DaemonUnreachable):
                shelf.acquire("a", timeout=1)
    daemon.start()
    start = time.monotonic()
    for shelf in shelves:
        with shelf.acquire("a", timeout=20) as lease:
            assert read_all(lease) == tensors
    assert time.monotonic() - start < RECONNECT_SECONDS


def test_a_first_contact_with_nobody_there_ends_with_its_own_timeout(daemon: Daemon) -> None:
    """B53: the address is in the text; without a timeout the command shows that it takes seconds, too."""
    for address in (daemon.address, "127.0.0.1:9"):
        start = time.monotonic()
        with warmshelf.connect(address, timeout=0.5) as shelf, pytest.raises(errors.DaemonUnreachable) as caught:
            shelf.list()
        assert time.monotonic() - start < 2
        assert address in caught.value.message
        assert caught.value.retryable


def test_a_stream_cut_by_a_restart_is_told_and_never_continued_from_another_daemon(
    daemon: Daemon, tensors: dict[str, bytes]
) -> None:
    """B53: to a plain client; the lease died with the daemon, so the rest cannot be had under it."""
    with Plain(daemon.tcp_address) as plain:
        lease_id = plain.acquire("a").lease.lease_id
        stream = plain.read(lease_id)
        next(stream)
        daemon.kill()
        with pytest.raises(grpc.RpcError) as caught:
            list(stream)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        daemon.start()
        eventually(lambda: fails_otherwise(plain, lease_id), "the channel is connected again")
        with refused(grpc.StatusCode.FAILED_PRECONDITION, "LEASE_LOST"):
            list(plain.read(lease_id))
        plain.release(lease_id)


def fails_otherwise(plain: Plain, lease_id: str) -> bool:
    """Say whether a read fails for another reason than that nobody is there."""
    try:
        list(plain.read(lease_id))
    except grpc.RpcError as error:
        return error.code() is not grpc.StatusCode.UNAVAILABLE
    return False


def test_a_worker_that_streams_across_two_restarts_has_the_whole_artifact_in_the_end(
    daemon: Daemon, tensors: dict[str, bytes]
) -> None:
    """B53: the daemon dies at the fifth chunk, twice, while one acquire waits."""
    with warmshelf.connect(daemon.tcp_address) as shelf, ThreadPoolExecutor(1) as pool:
        shelf.get("a")
        daemon.kill()
        daemon.start(failpoints="stream.chunk=5*kill")
        waiting = pool.submit(shelf.acquire, "a", timeout=60)
        assert daemon.wait() == -signal.SIGKILL
        daemon.start(failpoints="stream.chunk=5*kill")
        assert daemon.wait() == -signal.SIGKILL
        daemon.start()
        assert read_all(waiting.result()) == tensors


def test_every_id_and_its_bytes_outlive_a_restart_whatever_its_name(daemon: Daemon, models: Path) -> None:
    """B05, B53: registered, failed and resident ones; kept and followed ones."""
    daemon.start()
    ids = ["org/a", "org_a", "Org/A", "org/a@v2", "a:b", "a" * 255]
    with daemon.connect() as shelf:
        for number, artifact_id in enumerate(ids):
            (models / f"{number}.safetensors").write_bytes(safetensors_bytes(filled(number)))
            shelf.register(artifact_id, models / f"{number}.safetensors", keep=number == 1, follow=number == 2)
        for artifact_id in ids[1:]:
            shelf.acquire(artifact_id, timeout=20).release()
        eventually(lambda: all(a.digest for a in shelf.list() if a.artifact_id != ids[0]), "digests are known")
        before = shelf.list()
        daemon.kill()
        daemon.start()
        after = shelf.list()
        assert [(a.artifact_id, a.state) for a in after] == [(a.artifact_id, a.state) for a in before]
        for field in ("spec", "generation", "digest", "size_bytes", "keep_resident", "follow", "register_time"):
            assert [getattr(a, field) for a in after] == [getattr(a, field) for a in before], field
        for number, artifact_id in enumerate(ids):
            with shelf.acquire(artifact_id, timeout=20) as lease:
                assert set(lease["w"]) == {number}


def test_many_workers_find_a_restarted_daemon_together(daemon: Daemon, tensors: dict[str, bytes]) -> None:
    """B53: sixteen threads on one shelf, with leases of before."""
    with daemon.connect() as shelf, ThreadPoolExecutor(16) as pool:
        old = [shelf.acquire("a", timeout=20) for _ in range(16)]
        ready = threading.Event()

        def go_on(lease: warmshelf.Lease) -> bool:
            ready.wait()
            lease.release()
            with shelf.acquire("a", timeout=20) as again:
                return read_all(again) == tensors

        waiting = [pool.submit(go_on, lease) for lease in old]
        daemon.kill()
        ready.set()
        daemon.start()
        assert [one.result() for one in waiting] == [True] * 16
        assert shelf.leases() == []
        assert shelf.get("a").state is ArtifactState.READY
