"""How long a worker takes to a resident adapter, few or many registered; how fast these are registered and listed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import warmshelf
import warmshelf.torch
from benchmarks import adapters
from benchmarks.context import Context, Stopwatch
from benchmarks.report import Row, Side, at_most, limit, p99

LAYER_COUNT = 30
FEW_COUNT = 10
BATCH_COUNT = 10
ACQUIRE_SECONDS_AIM = 0.004
P99_SECONDS_AIM = 0.015
MANY_RATIO_AIM = 1.2
REGISTRATIONS_PER_SECOND_AIM = 300
LIST_SECONDS_AIM = 1.0
FEW, MANY = "few registered", "many registered"
BASE_ID, ADAPTER_ID = "bench/base", "bench/adapter"


def run(context: Context) -> list[Row]:
    """Fill two daemons, one with few and one with many registrations, and ask both in turn."""
    shape = adapters.shape_of(context.sizes.adapter_bytes, LAYER_COUNT)
    base = adapters.make_base(context.folder / "adapters-base.safetensors", shape)
    resident = adapters.make_adapter(context.folder / "adapter", shape)
    others = [
        adapters.make_adapter(context.folder / "adapters" / str(i), shape, sparse=True)
        for i in range(context.sizes.registration_count)
    ]
    watch = Stopwatch()
    room_bytes = context.sizes.adapter_bytes
    with (
        context.daemon(room_bytes) as few_daemon,
        context.daemon(room_bytes) as many_daemon,
        warmshelf.connect(few_daemon.address) as few,
        warmshelf.connect(many_daemon.address) as many,
    ):
        for shelf in (few, many):
            _begin(shelf, base, resident)
        _register(few, others[:FEW_COUNT])
        _register_all(context, many, others, watch)
        for daemon in (few_daemon, many_daemon):
            context.wait_quiet(daemon.pid)
        for _ in context.rounds():
            _acquire_both(context, few, many, watch)
    return _rows(context, shape, watch)


def _begin(shelf: warmshelf.Shelf, base: Path, resident: Path) -> None:
    shelf.register(BASE_ID, base)
    shelf.register(ADAPTER_ID, resident, base=BASE_ID)
    acquire(shelf)  # loads it, and opens the session


def acquire(shelf: warmshelf.Shelf) -> None:
    """Acquire the adapter, take every tensor and release."""
    with shelf.acquire(ADAPTER_ID) as lease:
        if lease.transport != "mapped" or len(warmshelf.torch.tensors(lease)) != len(lease):
            raise RuntimeError(f"{ADAPTER_ID} was {lease.transport} with {len(lease)} tensors")


def _register(shelf: warmshelf.Shelf, directories: Sequence[Path]) -> None:
    for directory in directories:
        shelf.register(f"bench/adapter-{directory.name}", directory, base=BASE_ID)


def _register_all(context: Context, shelf: warmshelf.Shelf, directories: Sequence[Path], watch: Stopwatch) -> None:
    """Register in batches, then list: were it slower the more there are, the batches would differ."""
    size = len(directories) // BATCH_COUNT
    for start in range(0, len(directories), size):
        with watch.time("register"):
            _register(shelf, directories[start : start + size])
    for _ in context.rounds():
        with watch.time("list"):
            count = len(shelf.list(base=BASE_ID))
        if count != len(directories) + 1:
            raise RuntimeError(f"{count} adapters are listed of {len(directories) + 1}")


def _acquire_both(context: Context, few: warmshelf.Shelf, many: warmshelf.Shelf, watch: Stopwatch) -> None:
    for _ in range(context.sizes.acquire_count):
        for label, shelf in ((FEW, few), (MANY, many)):
            with watch.time(label):
                acquire(shelf)


def _rows(context: Context, shape: adapters.AdapterShape, watch: Stopwatch) -> list[Row]:
    few, many, register = map(watch.side, (FEW, MANY, "register"))
    count = context.sizes.registration_count
    batch = count // BATCH_COUNT
    name = f"acquire + all tensors, adapter, {context.sizes.adapter_bytes / 1e6:,.3g} MB, {shape.tensor_count} tensors"
    registering = f"{batch:,} registrations of {count:,}, inspected and compared with the base, one client"
    return [
        at_most("adapter.acquire", name, many, limit("aim", ACQUIRE_SECONDS_AIM)),
        at_most("adapter.p99", "the same, 99th percentile", _p99s(context, many), limit("aim", P99_SECONDS_AIM)),
        at_most("adapter.many", f"the same, {count:,} registered beside {FEW_COUNT}", many, few, MANY_RATIO_AIM),
        at_most(
            "adapter.register",
            registering,
            register,
            limit("aim", batch / REGISTRATIONS_PER_SECOND_AIM),
            note=f"{batch / register.value:,.0f} a second, aim: {REGISTRATIONS_PER_SECOND_AIM}",
        ),
        at_most("adapter.list", f"list {count:,} in pages", watch.side("list"), limit("aim", LIST_SECONDS_AIM)),
    ]


def _p99s(context: Context, side: Side) -> Side:
    """Return the 99th percentile of every round."""
    size = context.sizes.acquire_count
    rounds = [side.samples[start : start + size] for start in range(0, len(side.samples), size)]
    return Side("p99", tuple(map(p99, rounds)))
