"""How soon the daemon is ready, with an empty arena and with a large artifact left by one that was killed."""

from __future__ import annotations

import time

import warmshelf
from benchmarks.context import Context, Stopwatch
from benchmarks.report import Row, at_most, faster, limit
from examples.daemon import Daemon
from warmshelf.types import ArtifactState

EMPTY_SECONDS_AIM = 1.0
ADOPTED_SECONDS_AIM = 2.0
CHECK_BYTES_PER_SECOND_AIM = 5 * (1 << 30)
ARTIFACT_ID = "bench/large"


def run(context: Context) -> list[Row]:
    """Start and stop, then load the large artifact, kill and start again."""
    watch = Stopwatch()
    size_bytes = context.sizes.large_bytes
    with context.daemon(size_bytes) as daemon:
        for _ in context.rounds():
            daemon.stop()
            watch.add("empty", daemon.start())
        _load(context, daemon)
        for _ in context.rounds():
            daemon.kill()
            _start_and_acquire(context, daemon, watch)
    large = f"{size_bytes / 1e6:,.0f} MB"
    adopted = f"killed: start to READY, {large}"
    aim = limit("aim", size_bytes / CHECK_BYTES_PER_SECOND_AIM)
    return [
        at_most("restart.empty", "start to ready, empty arena", watch.side("empty"), limit("aim", EMPTY_SECONDS_AIM)),
        at_most("restart.adopted", adopted, watch.side("adopted"), limit("aim", ADOPTED_SECONDS_AIM)),
        faster(
            "restart.checked", f"killed: first acquire, {large} checked", watch.side("checked"), aim, 1, "aim: 5 GiB/s"
        ),
    ]


def _load(context: Context, daemon: Daemon) -> None:
    with (
        warmshelf.connect(daemon.address) as shelf,
        context.safetensors("large", context.sizes.large_bytes) as file,
    ):
        shelf.register(ARTIFACT_ID, file)
        for _ in shelf.load(ARTIFACT_ID):
            pass
        context.wait_quiet(daemon.pid)  # its digest is known and kept


def _start_and_acquire(context: Context, daemon: Daemon, watch: Stopwatch) -> None:
    start_seconds = daemon.start()
    ready = time.perf_counter()
    with warmshelf.connect(daemon.address) as shelf:
        state = shelf.get(ARTIFACT_ID).state
        watch.add("adopted", start_seconds + time.perf_counter() - ready)
        if state is not ArtifactState.READY:
            raise RuntimeError(f"{ARTIFACT_ID} is {state.value} after the restart")
        # Checking begins when the daemon is ready, whether or not somebody waits for it: so does the time.
        shelf.acquire(ARTIFACT_ID).release()
        watch.add("checked", time.perf_counter() - ready)
    context.wait_quiet(daemon.pid)
