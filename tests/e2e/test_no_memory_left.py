"""A worker that has no memory left for the bytes is told so, and may try again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kit.models import write_model
from kit.processes import Daemon, Worker

WORKER = """
import os, resource, sys, warmshelf
shelf = warmshelf.connect(sys.argv[1], arena=os.devnull)
shelf.get("a")
limit = resource.getrlimit(resource.RLIMIT_AS)
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (64 << 20), limit[1]))
try:
    shelf.acquire("a", timeout=20)
except warmshelf.WarmshelfError as error:
    print(error.reason, error.retryable, error.details["size_bytes"] > 100 << 20, flush=True)
resource.setrlimit(resource.RLIMIT_AS, limit)
print(shelf.acquire("a", timeout=20).transport, flush=True)
"""


def test_a_worker_without_memory_for_the_bytes_is_told_so_and_may_try_again(
    shared: Daemon, models: Path, start_worker: Callable[..., Worker]
) -> None:
    write_model(models / "a.safetensors", 1, 128 << 20)
    with shared.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        list(shelf.load("a"))
    worker = start_worker(WORKER, shared.address)
    assert worker.line() == "OUT_OF_MEMORY True True"
    assert worker.line() == "streamed"
