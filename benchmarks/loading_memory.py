"""How much memory a load takes at its peak: the daemon's own and the arena's, above what was there before."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import warmshelf
from benchmarks import models
from benchmarks.context import MEBIBYTE, Context, memory_file_system
from benchmarks.report import Row, Side, at_most, limit

RESERVE_BYTES = 64 * MEBIBYTE
SAMPLE_SECONDS = 0.002
ARTIFACT_ID = "bench/base"
_RSS_ANON = re.compile(r"RssAnon:\s+(\d+) kB")


def run(context: Context) -> list[Row]:
    """Sample while the base is loaded into a file system that nobody else uses."""
    size_bytes = context.base.stat().st_size
    peaks = []
    with memory_file_system(2 * size_bytes + (512 << 20), huge=False) as directory:
        if directory is None:
            return []
        with (
            context.daemon(context.sizes.base_bytes, directory) as daemon,
            warmshelf.connect(daemon.address) as shelf,
        ):
            shelf.register(ARTIFACT_ID, context.base)
            for _ in context.rounds():
                models.warm(context.base)
                with _peak(daemon.pid, daemon.arena) as seen:
                    for _ in shelf.load(ARTIFACT_ID):
                        pass
                    context.wait_quiet(daemon.pid)
                peaks.append(max(seen) - seen[0])
                shelf.evict(ARTIFACT_ID)
    ours = Side("peak above baseline", tuple(map(float, peaks)), "bytes")
    allowed = limit("artifact + 64 MiB", size_bytes + RESERVE_BYTES, "bytes")
    return [at_most("memory.load", f"memory of a load, {size_bytes / 1e6:,.0f} MB", ours, allowed)]


@contextmanager
def _peak(pid: int, arena: Path) -> Iterator[list[int]]:
    """Sample during the body; the first sample is the baseline. Only the sampling thread appends."""
    seen = [_bytes_now(pid, arena)]
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            seen.append(_bytes_now(pid, arena))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def _bytes_now(pid: int, arena: Path) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    match = _RSS_ANON.search(status)
    system = os.statvfs(arena)
    return (int(match[1]) << 10 if match else 0) + (system.f_blocks - system.f_bfree) * system.f_frsize
