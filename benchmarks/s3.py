"""How long loads from S3 take, beside peers and beside obstore's own reads, all from one local server."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import obstore
from obstore.store import S3Store

import warmshelf
from benchmarks import adapters, ceiling, models
from benchmarks.adapter import ADAPTER_ID, LAYER_COUNT, acquire
from benchmarks.context import MEBIBYTE, Context, Stopwatch, memory_file_system
from benchmarks.object_store import BUCKET, ObjectStore, object_store
from benchmarks.report import Row, Side, at_most, best, faster, limit
from examples.daemon import Daemon

STREAMER_RATIO_AIM = 1.0
TENSORIZER_RATIO_AIM = 2.0
OBSTORE_RATIO_AIM = 0.8
RELOAD_SECONDS_AIM = 0.015
RELOADS_PER_ROUND = 5

BARE_READS = ((4, 8), (8, 4), (8, 8))
"""Threads, and MiB of each read: obstore alone is as fast as the best of these."""

BASE_ID, TENSORS_ID = "bench/base", "bench/tensors"
STREAMER = "Run:ai streamer"


def run(context: Context) -> list[Row]:
    """Start the server, fill it, and let everybody read from it in turn."""
    with ExitStack() as stack:
        store = stack.enter_context(object_store(context.folder / "weed"))
        file = stack.enter_context(context.safetensors("remote", context.sizes.remote_bytes))
        tensors = models.make_tensors(context.folder / "remote.tensors", file)
        base_uri, tensors_uri = store.put(file, "base.safetensors"), store.put(tensors, "base.tensors")
        size_bytes = file.stat().st_size
        tensors.unlink()
        adapter, adapter_uri = _put_adapter(context, store)
        directory = stack.enter_context(memory_file_system(3 * size_bytes + (512 << 20), huge=True))
        room_bytes = 2 * size_bytes + context.sizes.adapter_bytes
        daemon = stack.enter_context(
            context.daemon(room_bytes, directory or Path("/dev/shm"), options=store.daemon_options(context.folder))
        )
        shelf = stack.enter_context(warmshelf.connect(daemon.address))
        for artifact_id, uri in ((BASE_ID, base_uri), (TENSORS_ID, tensors_uri), (ADAPTER_ID, adapter_uri)):
            shelf.register(artifact_id, uri)
        watch = _alternate(context, daemon, shelf, size_bytes)
        over = _reload(context, shelf, adapter.stat().st_size)
    return _rows(context, size_bytes, watch, over)


def _put_adapter(context: Context, store: ObjectStore) -> tuple[Path, str]:
    shape = adapters.shape_of(context.sizes.adapter_bytes, LAYER_COUNT)
    directory = adapters.make_adapter(context.folder / "s3-adapter", shape)
    for name in (adapters.CONFIG_NAME, adapters.WEIGHTS_NAME):
        store.put(directory / name, f"adapter/{name}")
    return directory / adapters.WEIGHTS_NAME, store.uri("adapter")


def _alternate(context: Context, daemon: Daemon, shelf: warmshelf.Shelf, size_bytes: int) -> Stopwatch:
    watch = Stopwatch()
    with mmap.mmap(-1, size_bytes) as memory, memoryview(memory) as view:
        read = _bare_reader("base.safetensors", view)
        _round(context, daemon, shelf, read, Stopwatch())  # warms up, does not count
        for _ in context.rounds():
            _round(context, daemon, shelf, read, watch)
    return watch


def _round(
    context: Context,
    daemon: Daemon,
    shelf: warmshelf.Shelf,
    read: Callable[[int, int], None],
    watch: Stopwatch,
) -> None:
    for label, artifact_id in (("load", BASE_ID), ("load .tensors", TENSORS_ID)):
        ceiling.fetch_memory(daemon.arena.parent, context.sizes.remote_bytes)
        with watch.time(label):
            for _ in shelf.load(artifact_id):
                pass
        context.wait_quiet(daemon.pid)  # hashes and digest come behind a base's READY
        shelf.evict(artifact_id)
    for thread_count, mebibytes in BARE_READS:
        watch.call(
            f"obstore, {thread_count} reads of {mebibytes} MiB", partial(read, thread_count, mebibytes * MEBIBYTE)
        )
    watch.call(STREAMER, partial(models.read_with_streamer, f"s3://{BUCKET}/base.safetensors"))
    for count in models.READER_COUNTS:
        uri = f"s3://{BUCKET}/base.tensors"
        watch.call(f"tensorizer, readers: {count}", partial(models.read_with_tensorizer, uri, count))


def _bare_reader(key: str, view: memoryview) -> Callable[[int, int], None]:
    """Return what reads an object into warm memory: thread count, bytes of each read."""
    store = S3Store(BUCKET, client_options={"allow_http": True})

    def read(start: int, size: int) -> None:
        end = min(start + size, len(view))
        with memoryview(obstore.get_range(store, key, start=start, end=end)) as data:
            view[start:end] = data

    def read_all(thread_count: int, size: int) -> None:
        with ThreadPoolExecutor(thread_count) as pool:
            for _ in pool.map(lambda start: read(start, size), range(0, len(view), size)):
                pass

    return read_all


def _reload(context: Context, shelf: warmshelf.Shelf, weights_bytes: int) -> Side:
    """Return what acquiring the evicted adapter takes beyond reading its weights, the fastest way of each round."""
    acquire(shelf)
    over = []
    with mmap.mmap(-1, weights_bytes) as memory, memoryview(memory) as view:
        read = _bare_reader(f"adapter/{adapters.WEIGHTS_NAME}", view)
        for _ in range(context.sizes.round_count * RELOADS_PER_ROUND):
            bare = min(_seconds(partial(read, threads, size * MEBIBYTE)) for threads, size in BARE_READS)
            shelf.evict(ADAPTER_ID)
            over.append(_seconds(partial(acquire, shelf)) - bare)
    return Side("reload - bare read", tuple(over))


def _seconds(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def _rows(context: Context, size_bytes: int, watch: Stopwatch, over: Side) -> list[Row]:
    ours, ours_tensors = watch.side("load"), watch.side("load .tensors")
    bare, peer = best(watch.sides("obstore")), best(watch.sides("tensorizer"))
    name = f"load from a local S3 server, {size_bytes / 1e6:,.0f} MB"
    reload = f"evicted adapter by ID from S3, {context.sizes.adapter_bytes / 1e6:,.3g} MB, beyond reading it"
    return [
        faster("s3.streamer", name, ours, watch.side(STREAMER), STREAMER_RATIO_AIM),
        faster("s3.tensorizer", f"{name}, as .tensors", ours_tensors, peer, TENSORIZER_RATIO_AIM),
        faster(
            "s3.obstore", name, ours, bare, OBSTORE_RATIO_AIM, note="obstore reads into memory that is there already"
        ),
        at_most("s3.reload", reload, over, limit("aim", RELOAD_SECONDS_AIM)),
    ]
