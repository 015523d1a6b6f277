"""A streamed segment is whole and unharmed or not there at all, whatever the stream does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import warmshelf
from kit.models import pattern
from kit.segments import SegmentFile, write_segment
from kit.standin import Chunks, Fault, StandIn
from warmshelf import transfer
from warmshelf.errors import ChunkCorrupt, DeadlineExceeded, LeaseLost, SegmentNotFound, StreamStalled, TooManyStreams
from warmshelf.v1.transfer_pb2 import ReadSegmentResponse

CHUNK_BYTES = 64 << 10


class CutAfter:
    """The stream ends, as if all were well, after some chunks."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, chunks: Chunks) -> Chunks:
        for _ in range(self.count):
            yield next(chunks)


class StalledAfter(CutAfter):
    """The daemon gives up on a slow reader after some chunks."""

    def __call__(self, chunks: Chunks) -> Chunks:
        yield from super().__call__(chunks)
        raise StreamStalled("the reader took nothing")


class Crowded:
    """The daemon streams to too many already."""

    def __call__(self, chunks: Chunks) -> Chunks:
        raise TooManyStreams("64 streams")
        yield from chunks


class FlippedBit(CutAfter):
    """One bit of a chunk turns over on the way."""

    def __call__(self, chunks: Chunks) -> Chunks:
        yield from super().__call__(chunks)
        bad = next(chunks)
        yield ReadSegmentResponse(
            offset_bytes=bad.offset_bytes, crc32c=bad.crc32c, data=bytes([bad.data[0] ^ 1]) + bad.data[1:]
        )
        yield from chunks


class Skipped(CutAfter):
    """A chunk is left out."""

    def __call__(self, chunks: Chunks) -> Chunks:
        yield from super().__call__(chunks)
        next(chunks)
        yield from chunks


class Repeated(CutAfter):
    """A chunk comes twice."""

    def __call__(self, chunks: Chunks) -> Chunks:
        for _ in range(self.count):
            last = next(chunks)
            yield last
        yield last
        yield from chunks


class Empty(CutAfter):
    """A chunk without data, again and again."""

    def __call__(self, chunks: Chunks) -> Chunks:
        yield from super().__call__(chunks)
        offset = next(chunks).offset_bytes
        while True:
            yield ReadSegmentResponse(offset_bytes=offset)


class TooMuch:
    """More bytes than were asked for."""

    def __init__(self, end: int) -> None:
        self.end = end

    def __call__(self, chunks: Chunks) -> Chunks:
        yield from chunks
        yield ReadSegmentResponse(offset_bytes=self.end, crc32c=0xC9A39B70, data=b"more")


@pytest.fixture
def streamed(tcp_stand_in: StandIn, segment: SegmentFile) -> Iterator[Callable[..., warmshelf.Lease]]:
    """Acquires the segment over TCP while the given faults happen to the coming reads."""
    tcp_stand_in.chunk_bytes = CHUNK_BYTES
    tcp_stand_in.add("org/a", segment)
    with warmshelf.connect(tcp_stand_in.address, timeout=20) as shelf:

        def acquire(*faults: Fault, **options: Any) -> warmshelf.Lease:
            tcp_stand_in.faults[:] = faults
            return shelf.acquire("org/a", **options)

        yield acquire


def whole(lease: warmshelf.Lease) -> bool:
    return lease["a.weight"] == pattern(1, 600_000) and lease["b.weight"] == pattern(2, 20_000)


def test_a_segment_is_streamed_over_tcp_and_the_daemon_is_told_why(
    streamed: Callable[..., warmshelf.Lease], tcp_stand_in: StandIn
) -> None:
    """B47."""
    lease = streamed()
    assert (lease.transport, lease.fallback_reason) == ("streamed", "tcp")
    assert whole(lease)
    assert [read.fallback_reason for read in tcp_stand_in.reads] == ["tcp"]


@pytest.mark.parametrize(
    "faults",
    [
        [CutAfter(3)],
        [CutAfter(0), CutAfter(1)],
        [StalledAfter(2), StalledAfter(1)],
        [Crowded()] * 3,
        [FlippedBit(0)],
        [FlippedBit(4)],
        [Skipped(1)],
        [Repeated(2)],
        [Empty(2)],
        [CutAfter(1)] * 9,
    ],
    ids=lambda faults: "+".join(type(fault).__name__ for fault in faults[:2]),
)
def test_reading_goes_on_after_the_last_checked_byte(
    streamed: Callable[..., warmshelf.Lease], tcp_stand_in: StandIn, faults: list[Fault]
) -> None:
    """B49, B53: and the bytes are right."""
    assert whole(streamed(*faults))
    offsets = [read.offset_bytes for read in tcp_stand_in.reads]
    assert offsets == sorted(offsets)
    assert len(offsets) == len(faults) + 1
    assert offsets[-1] == sum(getattr(fault, "count", 0) for fault in faults) * CHUNK_BYTES


def test_a_stream_that_brings_nothing_is_given_up(
    streamed: Callable[..., warmshelf.Lease], tcp_stand_in: StandIn
) -> None:
    with pytest.raises(ChunkCorrupt, match="CRC"):
        streamed(*[FlippedBit(0)] * 99)
    assert len(tcp_stand_in.reads) == transfer.FRUITLESS_COUNT_MAX


def test_a_crowded_daemon_is_waited_for_within_the_deadline(
    streamed: Callable[..., warmshelf.Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "FRUITLESS_COUNT_MAX", 1)
    assert whole(streamed(*[Crowded()] * 3))
    with pytest.raises((TooManyStreams, DeadlineExceeded)):
        streamed(*[Crowded()] * 99, timeout=0.2)


def test_more_bytes_than_asked_for_are_refused(streamed: Callable[..., warmshelf.Lease], segment: SegmentFile) -> None:
    with pytest.raises(ChunkCorrupt, match="4 bytes at"):
        streamed(*[TooMuch(segment.content_size_bytes)] * 99)


def test_the_deadline_bounds_the_whole_stream(streamed: Callable[..., warmshelf.Lease]) -> None:
    with pytest.raises((DeadlineExceeded, StreamStalled)):
        streamed(*[StalledAfter(0)] * 99, timeout=0.4)


def test_a_failed_stream_gives_the_lease_back(streamed: Callable[..., warmshelf.Lease], tcp_stand_in: StandIn) -> None:
    with pytest.raises(ChunkCorrupt):
        streamed(*[FlippedBit(0)] * 99)
    assert tcp_stand_in.leases == {}


class Unknown:
    """The daemon does not know the segment."""

    def __call__(self, chunks: Chunks) -> Chunks:
        raise SegmentNotFound("no segment 0")
        yield from chunks


def test_an_error_that_no_resuming_cures_comes_at_once(
    streamed: Callable[..., warmshelf.Lease], tcp_stand_in: StandIn
) -> None:
    with pytest.raises(SegmentNotFound):
        streamed(Unknown())
    assert len(tcp_stand_in.reads) == 1


class Forgotten:
    """The daemon was started anew and knows no lease."""

    def __call__(self, chunks: Chunks) -> Chunks:
        yield next(chunks)
        raise LeaseLost("no such lease")


def test_a_lost_lease_makes_the_acquire_start_over_and_never_splices(
    streamed: Callable[..., warmshelf.Lease], tcp_stand_in: StandIn
) -> None:
    """B53."""
    assert whole(streamed(Forgotten()))
    assert [read.offset_bytes for read in tcp_stand_in.reads] == [0, 0]
    assert len({read.lease_id for read in tcp_stand_in.reads}) == 2


class Killed:
    """The daemon dies after a chunk, and comes back a moment later."""

    def __init__(self, stand_in: StandIn) -> None:
        self.stand_in = stand_in
        self.reborn = threading.Timer(0.5, stand_in.start)

    def __call__(self, chunks: Chunks) -> Chunks:
        yield next(chunks)
        threading.Thread(target=self.die).start()
        self.stand_in.stopping.wait(10)

    def die(self) -> None:
        self.stand_in.stop()
        self.reborn.start()


def test_a_daemon_that_dies_in_mid_stream_is_waited_for_and_asked_anew(
    streamed: Callable[..., warmshelf.Lease], tcp_stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B53: also if it is away for longer than reading is tried again."""
    monkeypatch.setattr(transfer, "FRUITLESS_COUNT_MAX", 1)
    fault = Killed(tcp_stand_in)
    assert whole(streamed(fault))
    fault.reborn.join()
    assert len(tcp_stand_in.acquires) == 2


def test_a_daemon_that_forgets_every_lease_is_given_up(streamed: Callable[..., warmshelf.Lease]) -> None:
    with pytest.raises(LeaseLost):
        streamed(*[Forgotten()] * 9)


@pytest.mark.parametrize("chunk_bytes", [1, 7, 4096, 65_537, 2 << 20])
def test_any_size_of_chunks_gives_the_same_bytes(
    streamed: Callable[..., warmshelf.Lease], tcp_stand_in: StandIn, chunk_bytes: int
) -> None:
    """B48: also when it is no multiple of an element."""
    small = write_segment({"w": ("BF16", (3, 5), pattern(9, 30))})
    tcp_stand_in.add("org/a", small)
    tcp_stand_in.chunk_bytes = chunk_bytes
    assert streamed()["w"] == pattern(9, 30)


def test_an_artifact_of_empty_tensors_alone_ends_normally(
    streamed: Callable[..., warmshelf.Lease], tcp_stand_in: StandIn
) -> None:
    """B25."""
    tcp_stand_in.add("org/a", write_segment({"e": ("F32", (0, 4), b""), "f": ("BF16", (0,), b"")}))
    lease = streamed()
    assert {name: bytes(lease[name]) for name in lease} == {"e": b"", "f": b""}


def test_writing_to_streamed_bytes_changes_this_lease_only(streamed: Callable[..., warmshelf.Lease]) -> None:
    """B45."""
    first = streamed()
    first["a.weight"][0] = 255
    assert whole(streamed())
