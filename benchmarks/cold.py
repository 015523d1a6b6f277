"""How long a load takes whose source lies in the page cache, beside the fastest way known and its peers."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import warmshelf
from benchmarks import ceiling, models
from benchmarks.context import Context, Stopwatch, memory_file_system
from benchmarks.mapped import time_tensorizer
from benchmarks.report import Row, beside, best, faster
from examples.daemon import Daemon
from warmshelfd.settings import Settings

HUGE_CEILING_AIM = 0.70
SMALL_CEILING_AIM = 0.85
TENSORIZER_RATIO_AIM = 2.5
READ_THREADS: int = min(Settings.model_fields["read_threads"].default, os.cpu_count() or 1)
"""As many as the daemon reads files with."""

ARTIFACT_ID = "bench/base"
STREAMER, SAFETENSORS = "Run:ai streamer", "safetensors load_file + clone"


def run(context: Context) -> list[Row]:
    """Measure on a file system of huge pages and on one of 4 KiB pages."""
    return [*_measure(context, huge=True), *_measure(context, huge=False)]


def _measure(context: Context, *, huge: bool) -> list[Row]:
    size_bytes = context.base.stat().st_size
    # One segment or one file of the ceiling lies there at a time; the rest is reserve.
    with memory_file_system(2 * size_bytes + (512 << 20), huge=huge) as directory:
        if directory is None:
            return []
        watch = _alternate(context, directory)
    key = "cold.huge" if huge else "cold.small"
    pages = "huge pages" if huge else "4 KiB pages"
    ours, top, peer = watch.side("load"), watch.side("ceiling"), best(watch.sides("tensorizer"))
    name = f"cold load of a cached file, {size_bytes / 1e6:,.0f} MB, {pages}"
    compare = f"{key}.tensorizer", name, ours, peer
    return [
        faster(f"{key}.ceiling", name, ours, top, HUGE_CEILING_AIM if huge else SMALL_CEILING_AIM),
        faster(*compare, TENSORIZER_RATIO_AIM) if huge else beside(*compare),
        beside(f"{key}.streamer", name, ours, watch.side(STREAMER)),
        beside(f"{key}.safetensors", name, ours, watch.side(SAFETENSORS)),
    ]


def _alternate(context: Context, directory: Path) -> Stopwatch:
    watch = Stopwatch()
    with (
        context.daemon(2 * context.sizes.base_bytes, directory) as daemon,
        warmshelf.connect(daemon.address) as shelf,
    ):
        shelf.register(ARTIFACT_ID, context.base)
        _round(context, directory, daemon, shelf, Stopwatch())  # warms up, does not count
        for _ in context.rounds():
            _round(context, directory, daemon, shelf, watch)
    return watch


def _round(context: Context, directory: Path, daemon: Daemon, shelf: warmshelf.Shelf, watch: Stopwatch) -> None:
    models.warm(context.base)
    ceiling.fetch_memory(directory, context.base.stat().st_size)
    watch.add("ceiling", ceiling.load(context.base, directory, READ_THREADS))
    models.warm(context.base)
    with watch.time("load"):
        for _ in shelf.load(ARTIFACT_ID):
            pass
    context.wait_quiet(daemon.pid)
    shelf.evict(ARTIFACT_ID)
    models.warm(context.base)
    watch.call(STREAMER, partial(models.read_with_streamer, context.base))
    watch.call(SAFETENSORS, partial(models.read_with_safetensors, context.base))
    time_tensorizer(watch, context.base_tensors)
