"""How long a worker takes to a resident artifact that it maps: acquire, then every tensor."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import warmshelf
import warmshelf.torch
from benchmarks import models
from benchmarks.context import Context, Stopwatch
from benchmarks.report import Row, Side, at_most, best, faster, limit

ACQUIRES_PER_ROUND = 10
ACQUIRE_SECONDS_AIM = 0.005
SIZE_RATIO_AIM = 1.5
TENSORIZER_RATIO_AIM = 100.0


def run(context: Context) -> list[Row]:
    """Measure the base beside tensorizer, then beside a small and a large artifact."""
    sizes = context.sizes
    base, tensors = context.base, context.base_tensors
    room_bytes = sizes.small_bytes + sizes.base_bytes + sizes.large_bytes
    with context.daemon(room_bytes) as daemon, warmshelf.connect(daemon.address) as shelf:
        _make_resident(shelf, "bench/base", base)
        context.wait_quiet(daemon.pid)
        alone, peer = _beside_tensorizer(context, shelf, tensors)
        with ExitStack() as stack:
            for name, size_bytes in (("small", sizes.small_bytes), ("large", sizes.large_bytes)):
                _make_resident(shelf, f"bench/{name}", stack.enter_context(context.safetensors(name, size_bytes)))
        context.wait_quiet(daemon.pid)
        small, middle, large = _alternating(context, shelf, ("small", "base", "large"))
    name = f"acquire + all tensors, mapped, {sizes.base_bytes / 1e6:,.0f} MB"
    return [
        at_most("mapped.acquire", name, alone, limit("aim", ACQUIRE_SECONDS_AIM)),
        faster("mapped.tensorizer", name, alone, peer, TENSORIZER_RATIO_AIM),
        at_most("mapped.small", f"the same, {sizes.small_bytes / 1e6:,.0f} MB", small, middle, SIZE_RATIO_AIM),
        at_most("mapped.large", f"the same, {sizes.large_bytes / 1e6:,.0f} MB", large, middle, SIZE_RATIO_AIM),
    ]


def _make_resident(shelf: warmshelf.Shelf, artifact_id: str, source: Path) -> None:
    shelf.register(artifact_id, source)
    for _ in shelf.load(artifact_id):
        pass
    _acquire(shelf, artifact_id)  # the first one opens the session


def _acquire(shelf: warmshelf.Shelf, artifact_id: str) -> None:
    with shelf.acquire(artifact_id) as lease:
        if lease.transport != "mapped" or len(warmshelf.torch.tensors(lease)) != models.TENSOR_COUNT:
            raise RuntimeError(f"{artifact_id} was {lease.transport} with {len(lease)} tensors")


def _beside_tensorizer(context: Context, shelf: warmshelf.Shelf, tensors: Path) -> tuple[Side, Side]:
    watch = Stopwatch()
    for _ in context.rounds():
        for _ in range(ACQUIRES_PER_ROUND):
            with watch.time("mapped"):
                _acquire(shelf, "bench/base")
        time_tensorizer(watch, tensors)
    return watch.side("mapped"), best(watch.sides("tensorizer"))


def time_tensorizer(watch: Stopwatch, file: Path, *, verified: bool = False) -> None:
    """Take one sample of every number of readers, from the page cache."""
    models.warm(file)
    for count in models.READER_COUNTS:
        read = partial(models.read_with_tensorizer, file, count, verified=verified)
        watch.call(f"tensorizer{', verified' if verified else ''}, readers: {count}", read)


def _alternating(context: Context, shelf: warmshelf.Shelf, names: Iterable[str]) -> list[Side]:
    watch = Stopwatch()
    for _ in range(context.sizes.round_count * ACQUIRES_PER_ROUND):
        for name in names:
            with watch.time(name):
                _acquire(shelf, f"bench/{name}")
    return [watch.side(name) for name in names]
