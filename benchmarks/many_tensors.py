"""How long an artifact of very many tensors takes to register, load and map; is health answered meanwhile?"""

from __future__ import annotations

from pathlib import Path

import warmshelf
import warmshelf.torch
from benchmarks import models
from benchmarks.context import Context, Stopwatch
from benchmarks.health_probe import probing
from benchmarks.report import Row, at_most, limit, p99
from examples.daemon import Daemon

STEP_SECONDS_AIM = 5.0
"""Seconds, not minutes, for each step."""

HEALTH_P99_SECONDS_AIM = 0.050
ARTIFACT_ID = "bench/experts"


def run(context: Context) -> list[Row]:
    """Register, load, map and remove it, again and again."""
    count = context.sizes.tensor_count
    file = models.make_experts(context.folder / "experts.safetensors", count)
    watch = Stopwatch()
    with (
        context.daemon(2 * file.stat().st_size) as daemon,
        warmshelf.connect(daemon.address) as shelf,
    ):
        for _ in context.rounds():
            models.warm(file)
            _round(context, daemon, shelf, file, watch)
    aim = limit("aim", STEP_SECONDS_AIM)
    steps = [
        at_most(f"experts.{step}", f"{step} an artifact of {count:,} tensors", watch.side(step), aim)
        for step in ("register", "load", "map")
    ]
    health = watch.side("health, p99")
    return [
        *steps,
        at_most("experts.health", "health check meanwhile", health, limit("aim", HEALTH_P99_SECONDS_AIM)),
    ]


def _round(context: Context, daemon: Daemon, shelf: warmshelf.Shelf, file: Path, watch: Stopwatch) -> None:
    with probing(daemon.tcp_address) as seconds:
        with watch.time("register"):
            shelf.register(ARTIFACT_ID, file)
        with watch.time("load"):
            for _ in shelf.load(ARTIFACT_ID):
                pass
        watch.call("map", lambda: _map(context, shelf))
    watch.add("health, p99", p99(seconds))
    context.wait_quiet(daemon.pid)
    shelf.remove(ARTIFACT_ID)


def _map(context: Context, shelf: warmshelf.Shelf) -> object:
    with shelf.acquire(ARTIFACT_ID) as lease:
        tensors = warmshelf.torch.tensors(lease)
        if lease.transport != "mapped" or len(tensors) != context.sizes.tensor_count:
            raise RuntimeError(f"{ARTIFACT_ID} was {lease.transport} with {len(tensors)} tensors")
    return tensors
