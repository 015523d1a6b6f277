"""Room in the arena: what fits, what leaves, what waits, and what is refused with the numbers."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import warmshelf
from kit.models import write_model
from kit.processes import Daemon, Worker, eventually, read_all
from warmshelf import ArtifactState, errors
from warmshelf.types import LoadPhase

MIB = 1 << 20
SIZE = 10 * MIB - (1 << 16)  # with header and layout below 10 MiB, so that three fit


@pytest.fixture
def shelf(tight: Daemon) -> Iterator[warmshelf.Shelf]:
    with tight.connect() as it:
        yield it


@pytest.fixture
def five(shelf: warmshelf.Shelf, models: Path) -> dict[str, dict[str, bytes]]:
    """Five artifacts, registered."""
    tensors = {f"m{i}": write_model(models / f"{i}.safetensors", i, SIZE) for i in range(5)}
    for i, artifact_id in enumerate(tensors):
        shelf.register(artifact_id, models / f"{i}.safetensors")
    return tensors


def ready(shelf: warmshelf.Shelf) -> set[str]:
    return {a.artifact_id for a in shelf.list() if a.state is ArtifactState.READY}


def test_the_least_recently_used_leaves_by_itself(shelf: warmshelf.Shelf, five: dict[str, dict[str, bytes]]) -> None:
    for artifact_id in ("m0", "m1", "m2", "m0", "m3"):
        shelf.acquire(artifact_id, timeout=20).release()
    assert ready(shelf) == {"m0", "m2", "m3"}
    shelf.acquire("m2", timeout=20).release()
    shelf.acquire("m4", timeout=20).release()
    assert ready(shelf) == {"m2", "m3", "m4"}


def test_what_is_kept_does_not_leave(shelf: warmshelf.Shelf, models: Path, five: dict[str, dict[str, bytes]]) -> None:
    shelf.register("m0", models / "0.safetensors", keep=True)
    for artifact_id in ("m0", "m1", "m2", "m3", "m4"):
        shelf.acquire(artifact_id, timeout=20).release()
    assert ready(shelf) == {"m0", "m3", "m4"}


def test_five_ids_in_room_for_three_all_work_by_their_id_alone(
    shelf: warmshelf.Shelf, tight: Daemon, five: dict[str, dict[str, bytes]]
) -> None:
    """B37: evicted is not unknown; three rounds in random order."""
    order = random.Random(1)
    for _ in range(3):
        for artifact_id in order.sample(sorted(five), len(five)):
            with shelf.acquire(artifact_id, timeout=20) as lease:
                assert (read_all(lease), lease.generation) == (five[artifact_id], 1)
            assert tight.arena_bytes() <= 30 * MIB


def test_a_source_that_vanished_fails_only_its_own_artifact(
    shelf: warmshelf.Shelf, models: Path, five: dict[str, dict[str, bytes]]
) -> None:
    """B37."""
    for artifact_id in five:
        shelf.acquire(artifact_id, timeout=20).release()
    (models / "0.safetensors").unlink()
    with pytest.raises(errors.SourceNotFound):
        shelf.acquire("m0", timeout=20)
    for artifact_id in ("m1", "m2", "m3", "m4"):
        with shelf.acquire(artifact_id, timeout=20) as lease:
            assert read_all(lease) == five[artifact_id]
    assert shelf.get("m0").state is ArtifactState.FAILED


def test_what_fits_exactly_fits_and_one_page_more_is_too_large(daemon: Daemon, models: Path) -> None:
    """B37."""
    tensors = write_model(models / "a.safetensors", 1, SIZE)
    daemon.start("--budget", "30MiB")
    with daemon.connect() as shelf:
        size_bytes = shelf.register("a", models / "a.safetensors").size_bytes
    daemon.kill(signal.SIGTERM)
    daemon.start("--budget", str(size_bytes))
    with daemon.connect() as shelf, shelf.acquire("a", timeout=20) as lease:
        assert read_all(lease) == tensors
        assert daemon.arena_bytes() == size_bytes
    with daemon.connect() as shelf:
        shelf.evict("a")
    daemon.kill(signal.SIGTERM)
    daemon.start("--budget", str(size_bytes - 4096))
    with daemon.connect() as shelf, pytest.raises(errors.LargerThanArena) as caught:
        shelf.acquire("a", timeout=20)
    assert caught.value.details == {"needed_bytes": size_bytes, "budget_bytes": size_bytes - 4096}


def test_what_is_larger_than_the_arena_is_refused_at_once_and_nobody_leaves_for_it(
    shelf: warmshelf.Shelf, models: Path, five: dict[str, dict[str, bytes]]
) -> None:
    for artifact_id in ("m0", "m1", "m2"):
        shelf.acquire(artifact_id, timeout=20).release()
    write_model(models / "huge.safetensors", 9, 31 * MIB)
    shelf.register("huge", models / "huge.safetensors")
    start = time.monotonic()
    with pytest.raises(errors.LargerThanArena) as caught:
        shelf.acquire("huge", timeout=60)
    assert time.monotonic() - start < 5
    assert not caught.value.retryable
    assert int(caught.value.details["needed_bytes"]) > int(caught.value.details["budget_bytes"]) == 30 * MIB
    assert ready(shelf) == {"m0", "m1", "m2"}


def test_a_full_arena_is_told_just_before_the_deadline_with_the_numbers(
    shelf: warmshelf.Shelf, tight: Daemon, five: dict[str, dict[str, bytes]]
) -> None:
    leases = [shelf.acquire(artifact_id, timeout=20) for artifact_id in ("m0", "m1", "m2")]
    for timeout in (1.5, 2.5):
        start = time.monotonic()
        with pytest.raises(errors.ArenaFull) as caught:
            shelf.acquire("m3", timeout=timeout)
        assert timeout * 0.5 < time.monotonic() - start <= timeout
        assert caught.value.retryable
        details = caught.value.details
        assert details["budget_bytes"] == 30 * MIB
        assert int(details["free_bytes"]) < int(details["needed_bytes"])
        assert details["held_bytes"] == sum(shelf.get(lease.artifact.artifact_id).size_bytes for lease in leases)
    assert [read_all(lease) == five[lease.artifact.artifact_id] for lease in leases] == [True] * 3
    assert tight.arena_bytes() <= 30 * MIB


HOLDER = """
import sys, warmshelf
shelf = warmshelf.connect(sys.argv[1])
leases = [shelf.acquire(name, timeout=20) for name in sys.argv[2:]]
print("held", flush=True)
for line in sys.stdin:
    leases.pop().release()
    print("released", flush=True)
"""


def test_who_waits_gets_room_when_another_worker_releases(
    shelf: warmshelf.Shelf,
    tight: Daemon,
    five: dict[str, dict[str, bytes]],
    start_worker: Callable[..., Worker],
) -> None:
    worker = start_worker(HOLDER, tight.address, "m0", "m1", "m2")
    assert worker.line() == "held"
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(shelf.acquire, "m3", timeout=20)
        with pytest.raises(errors.ArenaFull):
            shelf.acquire("m4", timeout=0.5)
        assert not first.done()
        worker.tell()
        with first.result(timeout=5) as lease:
            assert read_all(lease) == five["m3"]
            assert ready(shelf) == {"m0", "m1", "m3"}
            second = pool.submit(shelf.acquire, "m4", timeout=20)
            worker.end()
            assert read_all(second.result(timeout=5)) == five["m4"]


def test_who_waits_for_room_by_wish_does_not_hold_up_a_worker_whose_artifact_fits(
    shelf: warmshelf.Shelf, models: Path, five: dict[str, dict[str, bytes]]
) -> None:
    """A wish that can only wait gives way to a demand; one demand does not to another, which came later."""
    small = write_model(models / "small.safetensors", 7, 64 << 10)
    shelf.register("small", models / "small.safetensors")
    held = [shelf.acquire(artifact_id, timeout=20) for artifact_id in ("m0", "m1", "m2")]
    with ThreadPoolExecutor(2) as pool:
        phases: list[LoadPhase] = []
        wished = pool.submit(lambda: [phases.append(step.phase) for step in shelf.load("m3", timeout=30)])
        eventually(lambda: phases.count(LoadPhase.RESERVE) > 1, "it waits for room")
        with shelf.acquire("small", timeout=10) as lease:
            assert read_all(lease) == small
        shelf.evict("small")
        demanded = pool.submit(shelf.acquire, "m3", timeout=20)
        with pytest.raises(errors.ArenaFull, match="others wait before it"):
            eventually(lambda: not shelf.acquire("small", timeout=1).release(), "it is refused")
        held.pop().release()
        demanded.result(timeout=10).release()
        wished.result(timeout=10)


def test_who_waits_gets_room_when_the_last_mapping_ends(
    shelf: warmshelf.Shelf, tight: Daemon, five: dict[str, dict[str, bytes]]
) -> None:
    """Nobody tells the daemon when a process unmaps; it looks."""
    leases = [shelf.acquire(artifact_id, timeout=20) for artifact_id in ("m0", "m1", "m2")]
    views = [next(iter(lease.values())) for lease in leases]
    for lease in leases:
        lease.release()
    del lease
    leases.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(shelf.acquire, "m3", timeout=20)
        with pytest.raises(errors.ArenaFull):
            shelf.acquire("m4", timeout=0.5)
        assert not waiting.done()
        views.clear()
        assert read_all(waiting.result(timeout=5)) == five["m3"]


def test_loads_at_once_never_take_more_than_the_budget_together(
    shelf: warmshelf.Shelf, tight: Daemon, five: dict[str, dict[str, bytes]]
) -> None:
    """B40: five callers, room for three; a thread looks at the arena all the while."""
    most_bytes = 0

    def take_and_let_go(artifact_id: str) -> bool:
        with shelf.acquire(artifact_id, timeout=30) as lease:
            return read_all(lease) == five[artifact_id]

    with ThreadPoolExecutor(5) as pool:
        running = [pool.submit(take_and_let_go, artifact_id) for artifact_id in [*five, *reversed(five)]]
        while not all(one.done() for one in running):
            most_bytes = max(most_bytes, tight.arena_bytes())
        assert all(one.result() for one in running)
    assert 0 < most_bytes <= 30 * MIB


def test_a_load_costs_the_daemon_no_second_copy(daemon: Daemon, models: Path) -> None:
    """B40: 200 MB once; what the daemon has beside the arena hardly changes."""
    write_model(models / "a.safetensors", 1, 200 * MIB)
    daemon.start("--budget", "256MiB")
    with daemon.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        before, most_bytes = daemon.memory_bytes(), 0
        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(shelf.acquire, "a", timeout=20)
            while not loading.done():
                most_bytes = max(most_bytes, daemon.memory_bytes())
            loading.result().release()
        assert most_bytes - before < 32 * MIB


def test_a_purge_empties_the_arena_of_a_stopped_daemon_only(daemon: Daemon, models: Path) -> None:
    tensors = write_model(models / "a.safetensors", 1)
    daemon.start()
    with daemon.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        shelf.acquire("a", timeout=20).release()
        (daemon.arena / "not-ours").write_bytes(b"x")
        other = Daemon(daemon.root / "other", daemon.arena, models)
        other.root.mkdir()
        other.start("--purge", wait=False)
        assert other.wait() == 1
        assert len(daemon.segments()) == 1
        assert daemon.kill(signal.SIGTERM) == 0
        other.start("--purge", wait=False)
        assert other.wait() == 0
        assert daemon.segments() == []
        (daemon.arena / "not-ours").unlink()
        daemon.start()
        with shelf.acquire("a", timeout=20) as lease:
            assert read_all(lease) == tensors


def test_a_changed_source_is_told_though_there_is_no_room_to_load_it(
    shelf: warmshelf.Shelf, models: Path, five: dict[str, dict[str, bytes]]
) -> None:
    """B38: the digest decides while the load waits, not the caller's patience."""
    shelf.acquire("m0", timeout=20).release()
    eventually(lambda: bool(shelf.get("m0").digest), "its digest is known")
    shelf.evict("m0")
    held = [shelf.acquire(artifact_id, timeout=20) for artifact_id in ("m1", "m2", "m3")]
    write_model(models / "0.safetensors", 9, SIZE)
    began = time.monotonic()
    with pytest.raises(errors.SourceChanged):
        shelf.acquire("m0", timeout=30)
    assert time.monotonic() - began < 15
    write_model(models / "0.safetensors", 0, SIZE)  # written again with the bytes that it had
    with pytest.raises(errors.ArenaFull):
        shelf.acquire("m0", timeout=2)
    for lease in held:
        lease.release()
    with shelf.acquire("m0", timeout=20) as lease:
        assert read_all(lease) == five["m0"]
