"""Workers that die, exit or fail to map: their claims end, and nobody else notices."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import warmshelf
from kit.models import write_model
from kit.processes import Daemon, Worker, eventually, read_all
from warmshelf import ArtifactState, errors

MIB = 1 << 20

GONE_SECONDS = 0.5
"""A dead worker is seen through its stream within some milliseconds; the rest is for a busy machine."""

HOLDER = """
import sys, warmshelf
shelf = warmshelf.connect(sys.argv[1])
lease = shelf.acquire("a", timeout=20)
views = [lease[name] for name in lease]
print(lease.transport, flush=True)
sys.stdin.readline()
"""

MID_STREAM = """
import sys
from kit.plain import Plain
plain = Plain(sys.argv[1])
stream = plain.read(plain.acquire("a").lease.lease_id, timeout=60)
print(next(stream).offset_bytes, flush=True)
sys.stdin.readline()
"""

EXITS = {
    "normally": "pass",
    "by an exception": "raise SystemError('on purpose')",
    "by sys.exit": "sys.exit(3)",
    "by SIGKILL": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "by os._exit": "import os; os._exit(4)",
}


@pytest.fixture
def tensors(shared: Daemon, models: Path) -> dict[str, bytes]:
    """An artifact ``a`` of 40 MiB, registered: more than any buffer between daemon and worker."""
    tensors = write_model(models / "a.safetensors", 1, 40 * MIB)
    with shared.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
    return tensors


def seconds_until(condition: Callable[[], bool], what: str) -> float:
    start = time.monotonic()
    eventually(condition, what)
    return time.monotonic() - start


@pytest.mark.parametrize("over", ["socket", "TCP"])
@pytest.mark.parametrize("code", [HOLDER, MID_STREAM], ids=["holding a lease", "in mid-stream"])
def test_the_leases_of_a_killed_worker_end_at_once_and_not_before(
    shared: Daemon, tensors: dict[str, bytes], start_worker: Callable[..., Worker], code: str, over: str
) -> None:
    """B39 (a), (b): its bytes become evictable, and are still whole for the next."""
    worker = start_worker(code, shared.address if over == "socket" else shared.tcp_address)
    assert worker.line() in {"mapped", "streamed", "0"}
    with shared.connect() as shelf:
        with pytest.raises(errors.Leased):
            shelf.evict("a")
        assert [lease.artifact_id for lease in shelf.leases()] == ["a"]
        worker.end(signal.SIGKILL)
        assert seconds_until(lambda: shelf.leases() == [], "the lease has ended") < GONE_SECONDS
        with shelf.acquire("a", timeout=20, resident_only=True) as lease:
            assert read_all(lease) == tensors
        assert shelf.evict("a").state is ArtifactState.REGISTERED
        eventually(lambda: shared.arena_bytes() == 0, "its bytes are free")


def test_one_of_many_workers_dies_and_only_its_leases_end(
    shared: Daemon, tensors: dict[str, bytes], start_worker: Callable[..., Worker]
) -> None:
    """B39."""
    workers = [start_worker(HOLDER, shared.address) for _ in range(3)]
    assert [worker.line() for worker in workers] == ["mapped"] * 3
    with shared.connect() as shelf:
        for alive, worker in zip((2, 1, 0), workers, strict=True):
            worker.end(signal.SIGKILL)
            eventually(lambda alive=alive: len(shelf.leases()) == alive, f"{alive} leases are left")  # type: ignore[misc]


def test_a_paused_worker_keeps_its_lease_over_the_socket(
    shared: Daemon, tensors: dict[str, bytes], start_worker: Callable[..., Worker]
) -> None:
    """B39: a pause is no death."""
    worker = start_worker(HOLDER, shared.address)
    assert worker.line() == "mapped"
    worker.send(signal.SIGSTOP)
    with shared.connect() as shelf:
        for _ in range(20):
            with pytest.raises(errors.Leased):
                shelf.evict("a")
        worker.send(signal.SIGCONT)
        worker.tell()
        assert worker.wait() == 0
        eventually(lambda: shelf.leases() == [], "the lease has ended")


@pytest.mark.parametrize("how", EXITS)
def test_the_segment_outlives_every_worker_that_attached(
    shared: Daemon, tensors: dict[str, bytes], start_worker: Callable[..., Worker], how: str
) -> None:
    """B43: whichever way it ends, without release; the next worker attaches to the same segment."""
    with shared.connect() as shelf:
        shelf.acquire("a", timeout=20).release()
        segments = shared.segments()
        worker = start_worker(f"{HOLDER}\n{EXITS[how]}", shared.address)
        assert worker.line() == "mapped"
        worker.tell()
        worker.wait()
        assert shared.segments() == segments
        for noise in ("leaked", "resource_tracker", "shared_memory", "BufferError", "Fatal"):
            assert noise not in worker.noise
        eventually(lambda: shelf.leases() == [], "its lease has ended")
        with shelf.acquire("a", timeout=20, resident_only=True) as lease:
            assert lease.transport == "mapped"
            assert read_all(lease) == tensors
    assert shared.segments() == segments


WITHOUT_MEMORY = """
import resource, sys, warmshelf
shelf = warmshelf.connect(sys.argv[1])
shelf.leases()
used = next(int(l.split()[1]) << 10 for l in open("/proc/self/status") if l.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (used + (24 << 20), resource.RLIM_INFINITY))
for _ in range(3):
    try:
        shelf.acquire("a", timeout=20)
    except warmshelf.WarmshelfError as error:
        print(error.reason, flush=True)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(shelf.acquire("a", timeout=20).transport, flush=True)
"""


def test_an_attach_whose_mmap_fails_gives_its_lease_back_and_harms_nobody(
    shared: Daemon, tensors: dict[str, bytes], start_worker: Callable[..., Worker]
) -> None:
    """B43: a worker that may not have so much memory, neither mapped nor streamed."""
    with shared.connect() as shelf, shelf.acquire("a", timeout=20) as lease:
        segments = shared.segments()
        worker = start_worker(WITHOUT_MEMORY, shared.address)
        assert [worker.line() for _ in range(3)] == ["OUT_OF_MEMORY"] * 3
        assert worker.line() == "mapped"
        assert worker.wait() == 0, worker.noise
        eventually(lambda: len(shelf.leases()) == 1, "only our lease is left")
        assert shared.segments() == segments
        assert read_all(lease) == tensors


def test_the_daemons_own_exit_keeps_the_segment_for_the_next_start(running: Daemon, models: Path) -> None:
    """B43: also while workers have it mapped."""
    tensors = write_model(models / "a.safetensors", 1)
    with running.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        lease = shelf.acquire("a", timeout=20)
        segments = running.segments()
        assert running.kill(signal.SIGTERM) == 0
        assert running.segments() == segments
        (models / "a.safetensors").unlink()
        running.start("--budget", "256MiB")
        assert running.segments() == segments
        with shelf.acquire("a", timeout=20, resident_only=True) as again:
            assert again.layout.segments == lease.layout.segments
            assert read_all(again) == read_all(lease) == tensors


OTHER_ARENA = """
import sys, warmshelf
with warmshelf.connect(sys.argv[1], arena=sys.argv[2]) as shelf, shelf.acquire("a", timeout=20) as lease:
    print(lease.transport, lease.fallback_reason, sum(map(len, lease.values())), flush=True)
"""


@pytest.mark.parametrize(
    ("place", "expected"), [("here", "mapped"), ("nowhere", "arena_not_visible"), ("elsewhere", "segment_not_found")]
)
def test_a_worker_that_sees_another_arena_streams_and_says_why(
    shared: Daemon,
    tensors: dict[str, bytes],
    models: Path,
    start_worker: Callable[..., Worker],
    tmp_path: Path,
    place: str,
    expected: str,
) -> None:
    """B47: over TCP too; the source is not asked for again: it has gone."""
    (tmp_path / "elsewhere").mkdir()
    arena = shared.arena if place == "here" else tmp_path / place
    with shared.connect() as shelf:
        shelf.acquire("a", timeout=20).release()
    (models / "a.safetensors").unlink()
    for address in (shared.address, shared.tcp_address):
        worker = start_worker(OTHER_ARENA, address, str(arena))
        words = worker.line().split()
        assert expected in words
        assert words[-1] == str(40 * MIB)
        assert worker.wait() == 0, worker.noise


def test_a_file_of_the_right_name_that_is_another_segment_is_not_mapped(
    shared: Daemon, tensors: dict[str, bytes], models: Path, tmp_path: Path
) -> None:
    """B47: an arena of another host with a file of the same name, once shorter and once as long."""
    write_model(models / "b.safetensors", 2, 40 * MIB)
    with shared.connect() as shelf:
        shelf.register("b", models / "b.safetensors")
        names = {name: shelf.acquire(name, timeout=20).layout.segments[0].segment_id for name in "ab"}
    for content in (b"short", (shared.arena / names["b"]).read_bytes()):
        (tmp_path / names["a"]).write_bytes(content)
        with warmshelf.connect(shared.address, arena=tmp_path) as shelf, shelf.acquire("a", timeout=20) as lease:
            assert (lease.transport, lease.fallback_reason) == ("streamed", "other_host")
            assert read_all(lease) == tensors
