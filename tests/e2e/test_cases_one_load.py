"""Many callers, one load: single flight, its failures, its cancellations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

import warmshelf
from kit.models import write_model
from kit.plain import Plain
from kit.processes import Daemon, eventually, read_all
from warmshelf import ArtifactState, errors

MIB = 1 << 20
CALLERS = 32
READ_BYTES_MAX = 33 * MIB
"""The source once, and the segment once for its digest; a second load would make it 64."""


def together(count: int, call: Callable[[int], object]) -> list[object]:
    """Make calls from as many threads at once and return what each gave or raised."""
    start = threading.Barrier(count)

    def one(number: int) -> object:
        start.wait()
        try:
            return call(number)
        except errors.WarmshelfError as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def is_loading(shelf: warmshelf.Shelf, artifact_id: str) -> Callable[[], bool]:
    return lambda: shelf.get(artifact_id).state is ArtifactState.LOADING


def test_32_threads_that_ask_at_once_share_one_read_of_the_source(slow: Daemon, models: Path) -> None:
    """B34: counted by the bytes that the daemon has read; on one session and on many."""
    tensors = write_model(models / "a.safetensors", 1, size=16 * MIB)
    with slow.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        before = slow.read_bytes()

        def acquire(number: int) -> object:
            own = shelf if number % 2 else slow.connect()
            lease = own.acquire("a", timeout=20)
            return lease.generation, lease.layout.segments[0].segment_id, read_all(lease) == tensors

        answers = set(together(CALLERS, acquire))
        assert answers == {(1, slow.segments()[0], True)}
        assert 16 * MIB <= slow.read_bytes() - before < READ_BYTES_MAX


def test_a_failure_reaches_every_waiter_and_the_next_call_tries_anew(daemon: Daemon, models: Path) -> None:
    """B34: the first load fails."""
    tensors = write_model(models / "a.safetensors", 1)
    daemon.start(failpoints="load.part=delay(500);load.read=error")
    with daemon.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        answers = together(CALLERS, lambda _: shelf.acquire("a", timeout=20))
        assert {str(answer) for answer in answers} == {"INTERNAL: failpoint load.read"}
        assert (daemon.segments(), daemon.leftovers()) == ([], [])
        failure = shelf.get("a").failure
        assert failure is not None
        assert failure.reason == "INTERNAL"
        with shelf.acquire("a", timeout=20) as lease:
            assert read_all(lease) == tensors
        assert shelf.get("a").failure is None


def test_a_caller_with_a_short_deadline_does_not_end_the_load_of_the_others(slow: Daemon, models: Path) -> None:
    """B34: the first caller gives up by its deadline, the others do not notice."""
    tensors = write_model(models / "a.safetensors", 1, size=40 * MIB)
    with slow.connect() as shelf, ThreadPoolExecutor(9) as pool:
        shelf.register("a", models / "a.safetensors")
        first = pool.submit(shelf.acquire, "a", timeout=0.3)
        eventually(is_loading(shelf, "a"), "the load has begun")
        others = [pool.submit(shelf.acquire, "a", timeout=20) for _ in range(8)]
        with pytest.raises(errors.DeadlineExceeded):
            first.result()
        for other in others:
            assert read_all(other.result()) == tensors
        assert len(slow.segments()) == 1


def test_a_caller_that_cancels_does_not_end_the_load_of_the_others(slow: Daemon, models: Path) -> None:
    """B34: one of two cancels and the load goes on; when the last one cancels, the load stops."""
    write_model(models / "a.safetensors", 1, size=40 * MIB)
    with slow.connect() as shelf, Plain(slow.address) as one, Plain(slow.tcp_address) as other:
        shelf.register("a", models / "a.safetensors")
        first = one.acquire_later("a")
        eventually(is_loading(shelf, "a"), "the load has begun")
        first.cancel()
        second = other.acquire_later("a")
        assert second.result().lease.generation == 1
        other.release(second.result().lease.lease_id)
        shelf.evict("a")
        calls = [client.acquire_later("a") for client in (one, other)]
        eventually(is_loading(shelf, "a"), "the second load has begun")
        for call in calls:
            call.cancel()
        eventually(lambda: shelf.get("a").state is ArtifactState.REGISTERED, "the load was stopped")
        eventually(lambda: slow.arena_bytes() == 0, "its bytes were given back")
        assert shelf.get("a").failure is None
        assert shelf.leases() == []


def test_a_caller_that_joins_while_the_last_one_leaves_gets_a_load_of_its_own(slow: Daemon, models: Path) -> None:
    """B34: a load that is being stopped is not shared."""
    write_model(models / "a.safetensors", 1, size=8 * MIB)
    with slow.connect() as shelf, Plain(slow.address) as plain:
        shelf.register("a", models / "a.safetensors")
        for _ in range(10):
            leaving = plain.acquire_later("a")
            eventually(is_loading(shelf, "a"), "the load has begun")
            leaving.cancel()
            plain.release(plain.acquire("a").lease.lease_id)
            plain.evict("a")


def test_two_ids_load_side_by_side_and_the_quick_one_does_not_wait(slow: Daemon, models: Path) -> None:
    """B34: one of them slow."""
    write_model(models / "slow.safetensors", 1, size=100 * MIB)
    quick = write_model(models / "quick.safetensors", 2)
    with slow.connect() as shelf, ThreadPoolExecutor(1) as pool:
        for name in ("slow", "quick"):
            shelf.register(name, models / f"{name}.safetensors")
        waiting = pool.submit(shelf.acquire, "slow", timeout=20)
        eventually(is_loading(shelf, "slow"), "the slow load has begun")
        with shelf.acquire("quick", timeout=20) as lease:
            assert shelf.get("slow").state is ArtifactState.LOADING
            assert read_all(lease) == quick
        waiting.result().release()


def test_500_ids_that_fail_leave_no_growth(shared: Daemon, models: Path) -> None:
    """B34: neither memory nor files nor threads, whatever table keeps count of loads."""
    path = models / "a.safetensors"
    write_model(path, 1)
    with shared.connect() as shelf:
        ids = [f"failing/{i}" for i in range(500)]
        for artifact_id in ids:
            shelf.register(artifact_id, path)
        path.unlink()

        def fail_all(some: list[str]) -> None:
            for artifact_id in some:
                with pytest.raises(errors.SourceNotFound):
                    shelf.acquire(artifact_id, timeout=20)

        fail_all(ids[:100])
        before = usage(shared)
        fail_all(ids[100:])
        fail_all(ids[100:])
        files, threads, memory_bytes = (now - then for now, then in zip(usage(shared), before, strict=True))
        assert files == 0
        assert threads < 20  # pools may fill up to their size
        assert memory_bytes < 4 * MIB  # what is told of 400 failures
        assert shared.arena_bytes() == 0


def usage(daemon: Daemon) -> tuple[int, int, int]:
    """Return open files, threads, and bytes of memory."""
    places = [Path(f"/proc/{daemon.pid}/{name}") for name in ("fd", "task")]
    files, threads = (len(list(place.iterdir())) for place in places)
    return files, threads, daemon.memory_bytes()


def test_the_last_progress_of_a_load_has_the_artifact_and_every_watcher_gets_one(slow: Daemon, models: Path) -> None:
    """B34: loads and acquires of one ID are one load."""
    write_model(models / "a.safetensors", 1, size=16 * MIB)
    with slow.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        before = slow.read_bytes()

        def watch(number: int) -> object:
            if number % 2:
                return shelf.acquire("a", timeout=20).generation
            *_, last = shelf.load("a", timeout=20)
            assert last.artifact is not None
            return last.artifact.generation

        assert set(together(8, watch)) == {1}
        assert slow.read_bytes() - before < READ_BYTES_MAX


def test_a_load_that_is_removed_fails_its_waiters_and_leaves_nothing(slow: Daemon, models: Path) -> None:
    write_model(models / "a.safetensors", 1, size=40 * MIB)
    with slow.connect() as shelf, Plain(slow.address) as plain:
        shelf.register("a", models / "a.safetensors")
        waiting = plain.acquire_later("a")
        eventually(is_loading(shelf, "a"), "the load has begun")
        shelf.remove("a")
        with pytest.raises(grpc.RpcError) as caught:
            waiting.result()
        assert caught.value.code() in (grpc.StatusCode.ABORTED, grpc.StatusCode.NOT_FOUND)
        eventually(lambda: slow.arena_bytes() == 0, "its bytes were given back")
        with pytest.raises(errors.ArtifactNotFound):
            shelf.get("a")
