"""How fast a streamed acquire is, every chunk checked and stored, beside a bare stream of the same bytes."""

from __future__ import annotations

import warmshelf
from benchmarks import bare_stream
from benchmarks.context import Context, Stopwatch
from benchmarks.report import Row, faster

BARE_AIM = 0.85
ARTIFACT_ID = "bench/base"


def run(context: Context) -> list[Row]:
    """Alternate both over the loopback interface."""
    size_bytes = context.base.stat().st_size
    watch = Stopwatch()
    with context.daemon(context.sizes.base_bytes) as daemon, warmshelf.connect(daemon.tcp_address) as shelf:
        chunk_bytes = shelf.capabilities().chunk_size_bytes_max
        shelf.register(ARTIFACT_ID, context.base)
        for _ in shelf.load(ARTIFACT_ID):
            pass
        context.wait_quiet(daemon.pid)
        with bare_stream.serve(context.base, chunk_bytes) as address:
            _alternate(Stopwatch(), address, size_bytes, shelf)  # warms up, does not count
            for _ in context.rounds():
                _alternate(watch, address, size_bytes, shelf)
    ours, bare = watch.side("streamed"), watch.side("bare stream")
    rates = [f"{size_bytes / side.value / 1e9:.2f} GB/s" for side in (ours, bare)]
    note = f"{rates[0]} beside {rates[1]}, chunks of {chunk_bytes} bytes"
    return [faster("stream.bare", f"streamed over TCP, {size_bytes / 1e6:,.0f} MB", ours, bare, BARE_AIM, note)]


def _alternate(watch: Stopwatch, bare_address: str, size_bytes: int, shelf: warmshelf.Shelf) -> None:
    with watch.time("bare stream"):
        bare_stream.read(bare_address, size_bytes)
    with watch.time("streamed"):
        _acquire(shelf)


def _acquire(shelf: warmshelf.Shelf) -> None:
    with shelf.acquire(ARTIFACT_ID) as lease:
        if lease.transport != "streamed":
            raise RuntimeError(f"the lease was {lease.transport}")
