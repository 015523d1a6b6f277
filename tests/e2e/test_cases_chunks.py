"""Message limits and chunk arithmetic, and readers that stall, cancel and vanish."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

import warmshelf
from kit.models import Tensor, pattern, safetensors_bytes, write_model
from kit.plain import Plain, refused
from kit.processes import Daemon, Worker, eventually, read_all
from warmshelf import errors

KIB, MIB = 1 << 10, 1 << 20

# --- B48: through the library ------------------------------------------------

ODD: dict[str, Tensor] = {
    "one": ("U8", (1,), b"\x01"),
    "odd": ("U8", (MIB + 1,), pattern(1, MIB + 1)),
    "wide": ("F32", (65_537,), pattern(2, 4 * 65_537)),
    "large": ("BF16", (9, MIB // 2 + 3), pattern(3, 9 * (MIB + 6))),
    "none": ("F32", (0,), b""),
    "last": ("U8", (3,), b"\x07\x08\x09"),
}
"""A tensor of 9 MiB, and others that begin and end at odd places."""


@pytest.mark.parametrize("chunk", ["64KiB", "1MiB", "2MiB"])
def test_tensors_arrive_exactly_whatever_the_size_of_a_chunk(daemon: Daemon, models: Path, chunk: str) -> None:
    """B48: chunks that are no multiple of an element or a tensor; default options on the other side."""
    (models / "odd.safetensors").write_bytes(safetensors_bytes(ODD))
    daemon.start(env={"WARMSHELF_CHUNK_BYTES": chunk})
    with warmshelf.connect(daemon.tcp_address) as shelf:
        shelf.register("odd", models / "odd.safetensors")
        assert shelf.capabilities().chunk_size_bytes_max == int(chunk[:-3]) * {"K": KIB, "M": MIB}[chunk[-3]]
        with shelf.acquire("odd", timeout=20) as lease:
            assert lease.transport == "streamed"
            assert read_all(lease) == {name: tensor[2] for name, tensor in ODD.items()}
    with Plain(daemon.tcp_address) as plain:
        answer = plain.acquire("odd")
        for offset, limit in ((0, 1), (1, 65_535), (65_535, 2), (MIB - 1, MIB + 2), (3 * MIB + 7, 5 * MIB + 1)):
            chunks = list(plain.read(answer.lease.lease_id, offset, limit))
            assert sum(len(part.data) for part in chunks) == limit
            assert chunks[0].offset_bytes == offset


@pytest.mark.parametrize("chunk", ["4MiB", "7", "1000000"])
def test_a_chunk_that_clients_could_not_take_is_refused_at_start(daemon: Daemon, chunk: str) -> None:
    """B48: too large, too small or no power of two: told at once, with what is right."""
    daemon.start(env={"WARMSHELF_CHUNK_BYTES": chunk}, wait=False)
    assert daemon.wait() == 2
    text = daemon.log.read_text()
    assert "WARMSHELF_CHUNK_BYTES" in text
    assert "INVALID_CONFIG" in text


def test_sixty_thousand_tensors_with_long_names_are_mapped_and_streamed(shared: Daemon, models: Path) -> None:
    """B48: the layout alone is larger than any message."""
    tensors: dict[str, Tensor] = {
        f"a.rather.long.name.of.a.module.in.a.mixture.of.experts.{i}": ("U8", (4,), i.to_bytes(4, "little"))
        for i in range(60_000)
    }
    (models / "many.safetensors").write_bytes(safetensors_bytes(tensors))
    with shared.connect() as shelf, warmshelf.connect(shared.tcp_address) as other:
        shelf.register("many", models / "many.safetensors")
        for one, transport in ((shelf, "mapped"), (other, "streamed")):
            with one.acquire("many", timeout=30) as lease:
                assert lease.transport == transport
                assert read_all(lease) == {name: tensor[2] for name, tensor in tensors.items()}


def test_four_hundred_ids_are_listed_in_pages_whatever_their_names(shared: Daemon, models: Path) -> None:
    """B48: listings are split as layouts are."""
    write_model(models / "a.safetensors", 1, 1 << 10)
    ids = sorted(f"{'long/' * 45}{i:04}" for i in range(400))
    with shared.connect() as shelf:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda artifact_id: shelf.register(artifact_id, models / "a.safetensors"), ids))
        assert [artifact.artifact_id for artifact in shelf.list()] == ids


# --- B49: readers that stall -------------------------------------------------

STALLED = """
import sys, grpc
from kit.plain import Plain
from warmshelf.v1 import transfer_pb2, transfer_pb2_grpc
plain = Plain(sys.argv[1])
lease_id = plain.acquire("a").lease.lease_id
request = transfer_pb2.ReadSegmentRequest(lease_id=lease_id, session_id=plain.session_id)
options = [("grpc.use_local_subchannel_pool", 1)]
channels = [grpc.insecure_channel(sys.argv[1], options) for _ in range(int(sys.argv[2]))]
streams = [transfer_pb2_grpc.TransferServiceStub(channel).ReadSegment(request) for channel in channels]
for stream in streams:
    next(stream)
print("stalled", flush=True)
for line in sys.stdin:
    if line.strip() == "cancel":
        for stream in streams:
            stream.cancel()
        print("cancelled", flush=True)
"""

READERS = 100


@pytest.fixture
def resident(bounded: Daemon, models: Path) -> dict[str, bytes]:
    """An artifact ``a`` of 8 MiB, resident."""
    tensors = write_model(models / "a.safetensors", 1, 8 * MIB)
    with bounded.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        shelf.acquire("a", timeout=20).release()
    return tensors


@contextlib.contextmanager
def at_once(seconds: float = 2.0) -> Iterator[None]:
    """Expect that the body takes no longer; two seconds are for a busy machine."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


def assert_serves(daemon: Daemon, tensors: dict[str, bytes]) -> None:
    """Show that one more client is served at once, and health too."""
    with at_once(), Plain(daemon.tcp_address) as plain:
        assert plain.health_of() == "SERVING"
    for address in (daemon.tcp_address, daemon.address):
        with at_once(), warmshelf.connect(address) as shelf, shelf.acquire("a", timeout=5) as lease:
            assert read_all(lease) == tensors


def test_a_hundred_stalled_readers_take_nothing_from_others_and_are_let_go_when_they_cancel(
    bounded: Daemon, resident: dict[str, bytes], start_worker: Callable[..., Worker]
) -> None:
    """B49 (a): as many as there could be threads; then each cancels."""
    worker = start_worker(STALLED, bounded.tcp_address, str(READERS))
    assert worker.line() == "stalled"
    assert_serves(bounded, resident)
    worker.tell("cancel")
    assert worker.line() == "cancelled"
    assert_serves(bounded, resident)
    worker.end()
    with bounded.connect() as shelf:
        eventually(lambda: shelf.leases() == [], "its lease has ended")
        shelf.evict("a")
        eventually(lambda: bounded.arena_bytes() == 0, "no stream holds the bytes")


@pytest.mark.parametrize("over", ["socket", "TCP"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
def test_clients_that_die_or_stop_in_mid_stream_take_nothing_from_others(
    bounded: Daemon, resident: dict[str, bytes], start_worker: Callable[..., Worker], number: signal.Signals, over: str
) -> None:
    """B49 (b), (c): leases of the dead end at once."""
    before = bounded.memory_bytes()
    workers = [start_worker(STALLED, bounded.address if over == "socket" else bounded.tcp_address, "30") for _ in "abc"]
    assert [worker.line() for worker in workers] == ["stalled"] * 3
    for worker in workers:
        worker.send(number)
    assert_serves(bounded, resident)
    # Of what may be under way there is a copy in gRPC's hands; without the bound these 90 would have 180 MiB.
    assert bounded.memory_bytes() - before < 100 * MIB
    with bounded.connect() as shelf:
        if number is signal.SIGKILL:
            eventually(lambda: shelf.leases() == [], "the leases of the dead have ended")
            shelf.evict("a")
        for worker in workers:
            worker.end()
        eventually(lambda: shelf.leases() == [], "every lease has ended")


def test_a_slow_reader_of_200_mb_costs_the_daemon_a_few_chunks(daemon: Daemon, models: Path) -> None:
    """B49: its memory is watched while the reader takes one chunk now and then."""
    write_model(models / "big.safetensors", 1, 200 * MIB)
    daemon.start("--budget", "256MiB")
    with Plain(daemon.tcp_address) as plain:
        plain.register("big", models / "big.safetensors")
        lease_id = plain.acquire("big").lease.lease_id
        list(plain.read(lease_id, limit=4 * MIB))
        before, most_bytes = daemon.memory_bytes(), 0
        stream = plain.read(lease_id)
        for _ in range(40):
            next(stream)
            pause = time.monotonic() + 0.02
            while time.monotonic() < pause:
                most_bytes = max(most_bytes, daemon.memory_bytes())
        assert most_bytes - before < 16 * MIB
        stream.cancel()


def test_a_reader_that_takes_nothing_for_too_long_is_ended_and_may_resume(daemon: Daemon, models: Path) -> None:
    """B49: the stalled stream is ended for the sake of the others; its lease is not."""
    tensors = write_model(models / "a.safetensors", 1, 64 * MIB)
    daemon.start("--budget", "256MiB", env={"WARMSHELF_STALL_SECONDS": "0.5", "WARMSHELF_STREAMS_MAX": "1"})
    with Plain(daemon.tcp_address) as plain, Plain(daemon.tcp_address) as other:
        plain.register("a", models / "a.safetensors")
        answer = plain.acquire("a")
        stream = plain.read(answer.lease.lease_id)
        parts = [next(stream).data]
        second = other.acquire("a").lease.lease_id
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_STREAMS"):
            list(other.read(second, limit=1))
        eventually(lambda: can_read(other, second), "the stalled stream has ended")
        with refused(grpc.StatusCode.ABORTED, "STREAM_STALLED"):
            parts.extend(chunk.data for chunk in stream)
        done_bytes = sum(map(len, parts))
        parts += [chunk.data for chunk in plain.read(answer.lease.lease_id, offset=done_bytes)]
        whole = b"".join(parts)
        assert len(whole) == answer.layout.segments[0].size_bytes
        assert all(data in whole for data in tensors.values())


def can_read(plain: Plain, lease_id: str) -> bool:
    try:
        return len(list(plain.read(lease_id, limit=1))) == 1
    except grpc.RpcError:
        return False


def test_reads_beyond_the_limit_are_refused_until_one_ends(daemon: Daemon, models: Path) -> None:
    write_model(models / "a.safetensors", 1, 64 * MIB)
    daemon.start("--budget", "256MiB", env={"WARMSHELF_STREAMS_MAX": "3"})
    with Plain(daemon.tcp_address) as plain, warmshelf.connect(daemon.tcp_address) as shelf:
        plain.register("a", models / "a.safetensors")
        lease_id = plain.acquire("a").lease.lease_id
        streams = [plain.read(lease_id) for _ in range(3)]
        for stream in streams:
            next(stream)
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_STREAMS"):
            list(plain.read(lease_id))
        with pytest.raises(errors.TooManyStreams):
            shelf.acquire("a", timeout=1)
        streams[0].cancel()
        shelf.acquire("a", timeout=20).release()
        for stream in streams:
            stream.cancel()
