"""How long a base takes from a cached ``.tensors`` file, its hashes checked, beside tensorizer with and without."""

from __future__ import annotations

from pathlib import Path

import warmshelf
from benchmarks import ceiling, models
from benchmarks.context import Context, Stopwatch, memory_file_system
from benchmarks.mapped import time_tensorizer
from benchmarks.report import Row, best, faster
from examples.daemon import Daemon

VERIFIED_RATIO_AIM = 3.0
UNVERIFIED_RATIO_AIM = 1.5
ARTIFACT_ID = "bench/base"


def run(context: Context) -> list[Row]:
    """Measure on huge pages: on smaller ones the page faults are what takes time."""
    size_bytes = context.base_tensors.stat().st_size
    with memory_file_system(2 * size_bytes + (512 << 20), huge=True) as directory:
        if directory is None:
            return []
        watch = _alternate(context, directory)
    ours = watch.side("load, CRC32 checked")
    checked, unchecked = best(watch.sides("tensorizer, verified")), best(watch.sides("tensorizer, readers"))
    name = f"cold load of a cached .tensors file, {size_bytes / 1e6:,.0f} MB, huge pages"
    return [
        faster("tensors.verified", name, ours, checked, VERIFIED_RATIO_AIM),
        faster("tensors.unverified", name, ours, unchecked, UNVERIFIED_RATIO_AIM),
    ]


def _alternate(context: Context, directory: Path) -> Stopwatch:
    watch = Stopwatch()
    with (
        context.daemon(2 * context.sizes.base_bytes, directory) as daemon,
        warmshelf.connect(daemon.address) as shelf,
    ):
        shelf.register(ARTIFACT_ID, context.base_tensors)
        _load(context, daemon, shelf, Stopwatch())  # warms up, does not count
        for _ in context.rounds():
            _load(context, daemon, shelf, watch)
            time_tensorizer(watch, context.base_tensors)
            time_tensorizer(watch, context.base_tensors, verified=True)
    return watch


def _load(context: Context, daemon: Daemon, shelf: warmshelf.Shelf, watch: Stopwatch) -> None:
    models.warm(context.base_tensors)
    ceiling.fetch_memory(daemon.arena.parent, context.sizes.base_bytes)
    with watch.time("load, CRC32 checked"):
        for _ in shelf.load(ARTIFACT_ID):
            pass
    context.wait_quiet(daemon.pid)  # SHA-256 and digest come behind a base's READY
    shelf.evict(ARTIFACT_ID)
