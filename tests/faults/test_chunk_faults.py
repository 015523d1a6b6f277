"""Chunks are damaged on their way: flipped, cut, left out, doubled, moved, or another stream's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import warmshelf
from kit.models import write_model
from kit.neighbour_faults import Between
from kit.often import times
from kit.processes import Daemon, read_all
from warmshelf import errors
from warmshelf.v1 import transfer_pb2

READERS = 12
HARM_ONE_IN = 6
"""One chunk of so many is harmed, so that a read brings something before it breaks."""

SMALL_CHUNKS = {"WARMSHELF_CHUNK_BYTES": "64KiB", "WARMSHELF_SMALL_CHUNK_BYTES": "64KiB"}

REFUSED = (errors.ChunkCorrupt, errors.SegmentCorrupt)
"""How a read may end that no resuming cures: more came than was asked for, or another segment's."""

Chunk = transfer_pb2.ReadSegmentResponse


class Harms(Between):
    """Harms a chunk now and then, each time in a way that the seed chooses; counts them by their way."""

    WAYS = ("flip data", "flip crc", "move", "leave out", "double", "cut", "another stream's")
    WEIGHTS = (5, 5, 5, 5, 5, 5, 1)  # after the last nothing but another acquire helps

    def __init__(self, target: str, seed: int) -> None:
        super().__init__(target)
        self._chance = random.Random(seed)
        self._others: dict[int, list[bytes]] = {}  # the last chunks of any stream, by place; replaced by any thread
        self.harmed = dict.fromkeys(self.WAYS, 0)  # a count may be lost between threads, which understates it

    def changed(self, chunk: Chunk, data_begins: int) -> Iterator[bytes]:
        whole = chunk.SerializeToString()
        if self._chance.random() * HARM_ONE_IN > 1:
            self._others[chunk.offset_bytes] = [*self._others.get(chunk.offset_bytes, [])[-3:], whole]
            yield whole
            return
        (way,) = self._chance.choices(self.WAYS, self.WEIGHTS)
        sent = [*self._harm(way, chunk, whole)]
        if sent != [whole]:
            self.harmed[way] += 1
        yield from sent

    def _harm(self, way: str, chunk: Chunk, whole: bytes) -> Iterator[bytes]:
        size = len(chunk.data)
        if way == "flip data":
            at, bit = self._chance.randrange(size), 1 << self._chance.randrange(8)
            data = bytearray(chunk.data)
            data[at] ^= bit
            yield Chunk(offset_bytes=chunk.offset_bytes, crc32c=chunk.crc32c, data=bytes(data)).SerializeToString()
        elif way == "flip crc":
            yield Chunk(
                offset_bytes=chunk.offset_bytes,
                crc32c=chunk.crc32c ^ 1 << self._chance.randrange(32),
                data=chunk.data,
            ).SerializeToString()
        elif way == "move":
            offset = max(0, chunk.offset_bytes + self._chance.choice([-size, -1, 1, 16, size]))
            yield Chunk(offset_bytes=offset, crc32c=chunk.crc32c, data=chunk.data).SerializeToString()
        elif way == "double":
            yield from (whole, whole)
        elif way == "cut":
            cut = chunk.data[: self._chance.randrange(size)]
            yield Chunk(offset_bytes=chunk.offset_bytes, crc32c=chunk.crc32c, data=cut).SerializeToString()
        elif way == "another stream's":
            yield self._chance.choice(self._others.get(chunk.offset_bytes) or [whole])


class Swaps(Between):
    """Sends the first chunk that ever was at byte 1 MiB in the place of each other one."""

    first = b""

    def changed(self, chunk: Chunk, data_begins: int) -> Iterator[bytes]:
        whole = chunk.SerializeToString()
        if chunk.offset_bytes == 1 << 20:
            self.first = self.first or whole
            whole = self.first
        yield whole


def read_harmed(daemon: Daemon, models: Path, harm_count: int) -> Harms:
    """Read two artifacts through harm until so much was done; every byte that was given out is compared."""
    contents = {name: write_model(models / f"{name}.safetensors", tag, 4 << 20) for tag, name in enumerate("ab", 1)}
    daemon.start(env=SMALL_CHUNKS)
    with daemon.connect() as shelf:
        for name in contents:
            shelf.register(name, models / f"{name}.safetensors")
            shelf.acquire(name).release()

    with Harms(daemon.tcp_address, seed=harm_count) as between:

        def read(number: int) -> int:
            name = "ab"[number % 2]
            count = 0
            with warmshelf.connect(between.address) as shelf:
                while sum(between.harmed.values()) < harm_count or not count:
                    with suppress(*REFUSED), shelf.acquire(name, timeout=100) as lease:
                        assert lease.transport == "streamed"
                        assert read_all(lease) == contents[name]
                        count += 1
            return count

        with ThreadPoolExecutor(READERS) as pool:
            assert sum(pool.map(read, range(READERS))) >= READERS
    return between


def test_no_damaged_chunk_is_delivered(daemon: Daemon, models: Path) -> None:
    """N11, N12."""
    harms = read_harmed(daemon, models, 150)
    assert all(harms.harmed.values()), harms.harmed


def test_a_chunk_of_another_artifact_at_its_place_with_its_crc_is_told(daemon: Daemon, models: Path) -> None:
    """N12: nothing about the chunk itself is wrong."""
    contents = {name: write_model(models / f"{name}.safetensors", tag, 4 << 20) for tag, name in enumerate("ab", 1)}
    daemon.start()
    with daemon.connect() as shelf, Swaps(daemon.tcp_address) as between:
        for name in contents:
            shelf.register(name, models / f"{name}.safetensors")
        with warmshelf.connect(between.address) as other:
            with other.acquire("a") as lease:
                assert read_all(lease) == contents["a"]
            with pytest.raises(errors.SegmentCorrupt, match="another than was sealed"):
                other.acquire("b")


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_of_a_hundred_thousand_damaged_chunks_none_is_delivered(daemon: Daemon, models: Path) -> None:
    """N11, N12, G16."""
    harms = read_harmed(daemon, models, times(100_000))
    assert min(harms.harmed.values()) > times(5_000)
