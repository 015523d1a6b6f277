"""Let go while in use: evict and remove under leases, streams and mappings; 200 rounds leave nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import warmshelf
from kit.models import write_model
from kit.plain import Plain
from kit.processes import Daemon, Worker, eventually, read_all
from warmshelf import ArtifactState, errors

MIB = 1 << 20


def register(shelf: warmshelf.Shelf, models: Path, name: str, tag: int, size: int = MIB) -> dict[str, bytes]:
    tensors = write_model(models / f"{name}.safetensors", tag, size=size)
    shelf.register(name, models / f"{name}.safetensors")
    return tensors


def fill(shelf: warmshelf.Shelf, models: Path, count: int, size: int) -> None:
    """Load so much, one artifact after another, that everything that can leave the arena has left."""
    for number in range(count):
        register(shelf, models, f"filler/{number}", 100 + number, size)
        shelf.acquire(f"filler/{number}", timeout=20).release()


def test_a_stream_of_a_removed_artifact_ends_with_the_old_bytes(daemon: Daemon, models: Path) -> None:
    """B35: one of twenty chunks read; removed, registered anew with other bytes, the arena filled; then resumed."""
    daemon.start("--budget", "64MiB")
    with daemon.connect() as shelf, Plain(daemon.tcp_address) as plain:
        register(shelf, models, "a", 1, 20 * MIB)
        lease_id = plain.acquire("a").lease.lease_id
        whole = b"".join(chunk.data for chunk in plain.read(lease_id))
        stream = plain.read(lease_id)
        first = next(stream)
        shelf.remove("a")
        with pytest.raises(errors.ArtifactNotFound):
            shelf.acquire("a", timeout=5)
        fresh = register(shelf, models, "a", 2, 20 * MIB)
        fill(shelf, models, 3, 16 * MIB)
        with shelf.acquire("a", timeout=20) as lease:
            assert (read_all(lease), lease.generation) == (fresh, 1)
        assert first.data + b"".join(chunk.data for chunk in stream) == whole
        assert b"".join(chunk.data for chunk in plain.read(lease_id, offset=7)) == whole[7:]
        held_bytes = daemon.arena_bytes()
        plain.release(lease_id)
        eventually(lambda: daemon.arena_bytes() <= held_bytes - 20 * MIB, "the bytes went with their last lease")


@pytest.mark.parametrize("let_go", ["evict", "remove"])
def test_a_stream_holds_its_bytes_also_when_its_lease_has_ended(shared: Daemon, models: Path, let_go: str) -> None:
    """B35: released, let go and loaded anew in mid-stream."""
    with shared.connect() as shelf, Plain(shared.tcp_address) as plain:
        register(shelf, models, "a", 1, 20 * MIB)
        lease_id = plain.acquire("a").lease.lease_id
        whole = b"".join(chunk.data for chunk in plain.read(lease_id))
        stream = plain.read(lease_id)
        first = next(stream)
        plain.release(lease_id)
        getattr(shelf, let_go)("a")
        fresh = register(shelf, models, "b", 2)
        with shelf.acquire("b", timeout=20) as lease:
            assert read_all(lease) == fresh
        assert first.data + b"".join(chunk.data for chunk in stream) == whole


def test_a_mapping_of_a_removed_artifact_keeps_its_bytes_and_counts_until_it_ends(tight: Daemon, models: Path) -> None:
    """B35: also after its lease; what is mapped is not free for others, whatever the books say."""
    with tight.connect() as shelf:
        tensors = register(shelf, models, "a", 1, 12 * MIB)
        lease = shelf.acquire("a", timeout=20)
        views = {name: lease[name] for name in lease}
        shelf.remove("a")
        lease.release()
        del lease
        register(shelf, models, "big", 2, 19 * MIB)
        with pytest.raises(errors.ArenaFull) as caught:
            shelf.acquire("big", timeout=1)
        assert int(caught.value.details["unnamed_bytes"]) >= 12 * MIB
        fill(shelf, models, 3, 9 * MIB)
        assert {name: bytes(view) for name, view in views.items()} == tensors
        views.clear()
        shelf.acquire("big", timeout=20).release()


@pytest.mark.parametrize("transport", ["mapped", "streamed"])
def test_what_is_leased_is_never_chosen_to_leave(tight: Daemon, models: Path, transport: str) -> None:
    """B35: the least recently used of all stays while somebody holds it."""
    address = tight.address if transport == "mapped" else tight.tcp_address
    with warmshelf.connect(address) as worker, tight.connect() as shelf:
        tensors = register(shelf, models, "a", 1, 9 * MIB)
        lease = worker.acquire("a", timeout=20)
        assert lease.transport == transport
        fill(shelf, models, 4, 9 * MIB)
        assert shelf.get("a").state is ArtifactState.READY
        assert read_all(lease) == tensors
        lease.release()
        del lease
        fill(shelf, models, 3, 9 * MIB)
        assert shelf.get("a").state is ArtifactState.REGISTERED


def test_what_is_mapped_without_a_lease_is_never_chosen_to_leave(tight: Daemon, models: Path) -> None:
    """B35: a worker that released its lease and still computes."""
    with tight.connect() as shelf:
        tensors = register(shelf, models, "a", 1, 9 * MIB)
        lease = shelf.acquire("a", timeout=20)
        views = {name: lease[name] for name in lease}
        lease.release()
        del lease
        assert shelf.leases() == []
        fill(shelf, models, 4, 9 * MIB)
        assert shelf.get("a").state is ArtifactState.READY
        assert {name: bytes(view) for name, view in views.items()} == tensors


def test_an_explicit_evict_of_something_mapped_keeps_the_bytes_and_counts_them(tight: Daemon, models: Path) -> None:
    with tight.connect() as shelf:
        tensors = register(shelf, models, "a", 1, 19 * MIB)
        lease = shelf.acquire("a", timeout=20)
        with pytest.raises(errors.Leased) as caught:
            shelf.evict("a")
        assert caught.value.details["lease_count"] == 1
        views = {name: lease[name] for name in lease}
        lease.release()
        del lease
        assert shelf.evict("a").state is ArtifactState.REGISTERED
        assert tight.segments() == []
        assert tight.arena_bytes() > 19 * MIB
        with pytest.raises(errors.ArenaFull):
            shelf.acquire("a", timeout=1)
        assert {name: bytes(view) for name, view in views.items()} == tensors
        views.clear()
        with shelf.acquire("a", timeout=20) as again:
            assert (read_all(again), again.generation) == (tensors, 1)


HOLDER = """
import sys, warmshelf
shelf = warmshelf.connect(sys.argv[1])
lease = shelf.acquire("a", timeout=20)
views = [lease[name] for name in lease]
lease.release()
print("released", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("let_go", ["evict", "remove"])
def test_what_was_let_go_while_mapped_is_given_back_when_its_last_mapper_dies(
    shared: Daemon, models: Path, start_worker: Callable[..., Worker], let_go: str
) -> None:
    """B35, B39: by itself, while nobody needs the room."""
    with shared.connect() as shelf:
        register(shelf, models, "a", 1)
        worker = start_worker(HOLDER, shared.address)
        assert worker.line() == "released"
        getattr(shelf, let_go)("a")
        assert shared.segments() == []
        assert shared.arena_bytes() > MIB
        worker.end()
        eventually(lambda: shared.arena_bytes() == 0, "the bytes are given back")


def test_a_release_unmaps_before_it_is_told(shared: Daemon, models: Path) -> None:
    """B35: so what is let go with it is given back at once, and not when the daemon looks the next time."""
    with shared.connect() as shelf:
        register(shelf, models, "a", 1)
        start = time.monotonic()
        for _ in range(20):
            lease = shelf.acquire("a", timeout=20)
            shelf.evict("a", drain=True)
            lease.release()
            eventually(lambda: shared.arena_bytes() == 0, "the bytes are given back")
        assert time.monotonic() - start < 5  # it looks once a second


def test_a_drain_grants_no_new_lease_and_ends_with_the_last_one(shared: Daemon, models: Path) -> None:
    with shared.connect() as shelf, ThreadPoolExecutor(1) as pool:
        tensors = register(shelf, models, "a", 1)
        leases = [shelf.acquire("a", timeout=20) for _ in range(2)]
        segments = shared.segments()
        assert shelf.evict("a", drain=True).state is ArtifactState.EVICTING
        waiting = pool.submit(shelf.acquire, "a", timeout=20)
        with pytest.raises(errors.DeadlineExceeded):
            shelf.acquire("a", timeout=0.5)
        assert [read_all(lease) == tensors for lease in leases] == [True, True]
        for lease in leases:
            assert not waiting.done()
            lease.release()
        del lease
        leases.clear()
        again = waiting.result()
        assert read_all(again) == tensors
        assert shared.segments() != segments


def test_200_rounds_of_register_acquire_remove_leave_nothing(running: Daemon, models: Path) -> None:
    """B35: memory, arena and open files are flat, mapped and streamed."""
    path = models / "a.safetensors"
    write_model(path, 1)

    def rounds(count: int, *shelves: warmshelf.Shelf) -> None:
        for number in range(count):
            shelf = shelves[number % len(shelves)]
            shelf.register("a", path)
            with shelf.acquire("a", timeout=20) as lease:
                assert bytes(lease["layer.0.weight"][:8]) == (1000).to_bytes(8, "little")
            shelf.remove("a")

    with running.connect() as mapping, warmshelf.connect(running.tcp_address) as streaming:
        rounds(100, mapping, streaming)
        before = (running.memory_bytes(), len(list(Path(f"/proc/{running.pid}/fd").iterdir())))
        rounds(200, mapping, streaming)
        eventually(lambda: running.arena_bytes() == 0, "the arena is empty")
        after = (running.memory_bytes(), len(list(Path(f"/proc/{running.pid}/fd").iterdir())))
        assert after[0] - before[0] < 4 * MIB
        assert after[1] - before[1] <= 2  # of the event loop's making
        assert mapping.leases() == mapping.list() == []


READER = """
import sys, warmshelf
shelf = warmshelf.connect(sys.argv[1])
tag = None
for line in sys.stdin:
    try:
        with shelf.acquire("a", timeout=20) as lease:
            tags = {bytes(lease[name][:8]) for name in lease} | {bytes(lease[name][-16:-8]) for name in lease}
        print(len({int.from_bytes(t, "little") // 1000 for t in tags}), flush=True)
    except (warmshelf.errors.ArtifactNotFound, warmshelf.errors.LoadCancelled):
        print("gone", flush=True)
"""


def test_readers_of_an_id_that_is_removed_and_made_anew_see_one_content_at_a_time(
    shared: Daemon, models: Path, start_worker: Callable[..., Worker]
) -> None:
    """B35, B01: old bytes, new bytes or a clean error, never a mixture."""
    for tag in (1, 2):
        write_model(models / f"{tag}.safetensors", tag, size=2 * MIB)
    workers = [start_worker(READER, address) for address in (shared.address, shared.tcp_address)]
    stop = threading.Event()

    def churn() -> int:
        count = 0
        with shared.connect() as shelf:
            while not stop.is_set():
                shelf.register("a", models / f"{count % 2 + 1}.safetensors")
                shelf.acquire("a", timeout=20).release()
                shelf.remove("a")
                count += 1
        return count

    with ThreadPoolExecutor(1) as pool:
        churning = pool.submit(churn)
        seen = set()
        for _ in range(60):
            for worker in workers:
                worker.tell()
            seen |= {worker.line() for worker in workers}
        stop.set()
        assert churning.result() > 10
    assert "1" in seen
    assert seen <= {"1", "gone"}
