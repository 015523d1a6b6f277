"""Stores that hang, cut, are full, lose or change what they were given: typed, bounded, and nothing is left behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kit.models import filled, pattern, safetensors_bytes
from kit.processes import Daemon, eventually, read_all
from kit.pushes import cutting_proxy, kept, unfinished
from kit.redis_server import RedisServer, redis_server
from kit.stores import ENV, RedisStore, S3Store, Store
from kit.weed import ACCESS_KEY, SECRET_KEY, Weed
from warmshelf import errors
from warmshelf.types import ArtifactState
from warmshelfd.redis_wire import Patience
from warmshelfd.sources.redis_writing import Cancelled, RedisWriter
from warmshelfd.sources.s3_writing import PART_BYTES, PART_COUNT_MAX, part_bytes
from warmshelfd.spool.base import Announcement, PushedFile
from warmshelfd.spool.store import StoreSpool

MIB = 1 << 20
TENSORS = {"w": ("U8", (12 * MIB,), pattern(4, 12 * MIB))}
PUSH_ID = "ab" * 16


def start(daemon: Daemon, store: Store, **limits: str) -> Daemon:
    return daemon.start("--budget", "64MiB", *store.options(daemon.root, **limits), env=ENV)


def nothing_is_left(daemon: Daemon, store: Store) -> None:
    eventually(lambda: unfinished(daemon) == [], "the node has nothing of it", 20)
    eventually(lambda: store.keys() == [], "the store has nothing of it", 20)
    assert kept(daemon) == []


@pytest.mark.e2e
def test_a_store_that_hangs_fails_pushes_in_time_delays_nobody_else_and_is_used_again(
    daemon: Daemon, store: Store
) -> None:
    """B58 for a spool: away and back, with nothing left in between; B33: its keys are in no log and no error."""
    start(daemon, store)
    with daemon.connect() as shelf:
        shelf.push("there", tensors=filled(1))
        with shelf.acquire("there", timeout=30) as lease:
            store.pause()
            began = time.monotonic()
            with pytest.raises((errors.SpoolUnavailable, errors.DeadlineExceeded)) as caught:
                shelf.push("a", tensors=filled(2), timeout=2)
            assert not [secret for secret in (ACCESS_KEY, SECRET_KEY) if secret in f"{caught.value!r}"]
            assert time.monotonic() - began < 10
            shelf.remove("there")  # the store hears of it when it answers again
            assert bytes(lease["w"]) == filled(1)["w"][2]
            assert shelf.list() == []
            store.resume()
        nothing_is_left(daemon, store)
        shelf.push("a", tensors=filled(2))
        with shelf.acquire("a", timeout=30) as lease:
            assert read_all(lease) == {"w": filled(2)["w"][2]}
        shown = repr(shelf.list()) + daemon.log.read_text()
    assert not [secret for secret in (ACCESS_KEY, SECRET_KEY) if secret in shown]


@pytest.mark.e2e
def test_neighbours_below_the_same_prefix_are_left_alone(daemon: Daemon, s3: Weed) -> None:
    """B31: what begins as a push's number does, or as the prefix does, is somebody else's."""
    bucket = s3.bucket("neighbours")
    store = S3Store(bucket)
    start(daemon, store)
    with daemon.connect() as shelf:
        number = shelf.push("a", tensors=filled(1)).spec.source.uri.rpartition("/")[2]
        others = [f"pushed/{number}-old/x", f"pushed/{number}0/model.safetensors", "pushed-old/x", "pushed/x"]
        for key in others:
            bucket.put(key, b"not ours")
        with shelf.acquire("a", timeout=30) as lease:
            assert read_all(lease) == {"w": filled(1)["w"][2]}
        shelf.remove("a")
        eventually(lambda: store.keys() == sorted(others), "only the push is gone", 20)


@pytest.mark.e2e
def test_a_hung_store_is_no_reason_not_to_stop(daemon: Daemon, s3: Weed) -> None:
    store = S3Store(s3.bucket("stopping"))
    start(daemon, store)
    with daemon.connect() as shelf:
        store.pause()
        with pytest.raises((errors.SpoolUnavailable, errors.DeadlineExceeded)):
            shelf.push("a", tensors=filled(2), timeout=1)
    began = time.monotonic()
    assert daemon.kill(signal.SIGTERM) == 0
    store.resume()
    assert time.monotonic() - began < 12


@pytest.mark.e2e
def test_connections_that_are_cut_midway_leave_half_a_push_that_goes_when_its_client_gives_up(
    daemon: Daemon, store: Store
) -> None:
    """B40: what was half written is seen by nobody, and is cleaned up."""
    with cutting_proxy(store.address, cut_after_bytes=5 * MIB, cut_count=60) as proxy:
        store.address = proxy.address
        start(daemon, store)
        with daemon.connect() as shelf:
            with pytest.raises(errors.SpoolUnavailable):
                shelf.push("a", tensors=TENSORS, timeout=40)
            assert shelf.list() == []
            assert proxy.cuts_left < 60
            proxy.cuts_left = 0
            nothing_is_left(daemon, store)
            shelf.push("a", tensors=TENSORS)
            with shelf.acquire("a", timeout=30) as lease:
                assert read_all(lease) == {"w": TENSORS["w"][2]}


@pytest.fixture
def small_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that holds 8 MiB."""
    directory = tmp_path / "redis"
    directory.mkdir()
    with redis_server(directory, arguments=("--maxmemory", "8mb")) as it:
        yield it


@pytest.mark.e2e
def test_a_store_without_room_says_so_and_keeps_nothing_of_it(daemon: Daemon, small_redis: RedisServer) -> None:
    store = RedisStore(small_redis)
    start(daemon, store)
    with daemon.connect() as shelf:
        shelf.push("small", tensors=filled(1, size=MIB))
        there = store.keys()
        with pytest.raises(errors.SpoolFull, match="memory"):
            shelf.push("a", tensors=TENSORS)
        eventually(lambda: store.keys() == there, "what was written of it is gone")
        assert [(a.artifact_id, a.state) for a in shelf.list()] == [("small", ArtifactState.REGISTERED)]
        shelf.acquire("small", timeout=30).release()


@pytest.mark.e2e
def test_a_redis_that_may_drop_anything_is_no_spool(daemon: Daemon, server: RedisServer) -> None:
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    start(daemon, RedisStore(server))
    with daemon.connect() as shelf, pytest.raises(errors.SpoolUnavailable, match="allkeys-lru"):
        shelf.push("a", tensors=filled(1), timeout=3)
    with server.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
    with daemon.connect() as shelf:
        assert shelf.push("a", tensors=filled(1)).artifact_id == "a"


@pytest.mark.e2e
def test_room_on_the_node_is_for_what_is_unfinished_alone(daemon: Daemon, store: Store) -> None:
    start(daemon, store, spool_bytes_max="3MiB")
    with daemon.connect() as shelf:
        for name in "abc":
            shelf.push(name, tensors=filled(1, size=2 * MIB))
        with pytest.raises(errors.LargerThanSpool):
            shelf.push("d", tensors=TENSORS)


# --- without a daemon -------------------------------------------------------


class Flipping(RedisWriter):
    """Stands for a store that gives other bytes back than it was given: one bit of one chunk."""

    def write(self, push_id: str, files: Mapping[str, str], cancelled: Cancelled) -> None:
        super().write(push_id, files, cancelled)
        with self.server.client(3) as client:
            (key,) = [key for key in client.scan_iter() if b":manifest" not in key]
            data = bytearray(client.get(key))
            data[len(data) // 2] ^= 1
            client.set(key, bytes(data))

    server: RedisServer


class Losing(RedisWriter):
    """Stands for a store that loses what it was given."""

    def write(self, push_id: str, files: Mapping[str, str], cancelled: Cancelled) -> None:
        super().write(push_id, files, cancelled)
        with self.server.client(3) as client:
            client.flushdb()

    server: RedisServer


def proven(spool: StoreSpool, data: bytes) -> tuple[list[PushedFile], list[bytes]]:
    """Put a push of one file on the node; return the file and its SHA-256."""
    files = [PushedFile("model.safetensors", len(data))]
    spool.open()
    spool.begin(PUSH_ID, Announcement("a", "", tuple(files)))
    spool.append(PUSH_ID, files[0], 0, data)
    return files, spool.hash(PUSH_ID, files, lambda: False)


@pytest.mark.parametrize("kind", [Flipping, Losing])
def test_what_the_store_gives_back_is_compared_before_anybody_counts_on_it(
    kind: type[Flipping | Losing], server: RedisServer, tmp_path: Path
) -> None:
    writer = kind(RedisStore(server).place, (), Patience(retry_seconds=0.1))
    writer.server = server
    spool = StoreSpool(str(tmp_path), writer)
    files, hashes = proven(spool, safetensors_bytes(filled(1)))
    with pytest.raises(errors.SpoolUnavailable):
        spool.store(PUSH_ID, files, hashes, lambda: False)
    spool.discard(PUSH_ID)
    assert RedisStore(server).keys() == []
    assert list(tmp_path.glob("*/*")) == []
    spool.close()


def test_a_push_that_is_dropped_midway_leaves_no_key_though_no_manifest_names_them(
    server: RedisServer, tmp_path: Path
) -> None:
    spool = StoreSpool(str(tmp_path), RedisWriter(RedisStore(server).place, ()))
    files, hashes = proven(spool, bytes(20 * MIB))
    looks = 0

    def after_a_batch() -> bool:
        nonlocal looks
        looks += 1
        return looks > 3

    with pytest.raises(errors.LoadCancelled):
        spool.store(PUSH_ID, files, hashes, after_a_batch)
    assert len(RedisStore(server).keys()) in (8, 16)
    spool.discard(PUSH_ID)
    assert RedisStore(server).keys() == []
    spool.close()


def test_parts_grow_only_where_there_would_be_too_many() -> None:
    assert part_bytes(1) == part_bytes(PART_BYTES * PART_COUNT_MAX) == PART_BYTES
    assert part_bytes(PART_BYTES * PART_COUNT_MAX + 1) == 2 * PART_BYTES
    assert -(-(1 << 40) // part_bytes(1 << 40)) <= PART_COUNT_MAX
