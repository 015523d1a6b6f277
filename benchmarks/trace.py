"""How often adapters are loaded when more are asked for than there is room for, and bases come and go beside them.

Requests follow Zipf's law. Beside the daemon's loads stand those that a cache of its own would
need which holds as many adapters, evicts the least recently used and never sees a base: the first
load of each, and those for want of room.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle
from pathlib import Path

import warmshelf
from benchmarks import adapters, models
from benchmarks.context import Context
from benchmarks.report import Row, Side, at_most
from warmshelf.errors import NotResident
from warmshelfd.settings import Settings

LOADS_RATIO_AIM = 1.3
ADAPTER_BYTES = 64_000
EXPONENT = 1.0
SEED = 20
BASE_COUNT = 3
REQUESTS_PER_BASE = 50
FLOOR_PERCENT: int = Settings.model_fields["adapter_floor"].default.percent
"""The share of the budget that bases leave to adapters; here it is just the room asked for."""

BASE_PERCENT = 35
"""Of the budget: two of them fit beside the floor, so that with three in turn every one is loaded anew."""


def run(context: Context) -> list[Row]:
    """Measure on one daemon, in parts."""
    sizes = context.sizes
    shape = adapters.shape_of(ADAPTER_BYTES, layer_count=1)
    for number in range(sizes.trace_adapter_count):
        adapters.make_adapter(context.folder / "trace" / str(number), shape)
    budget_bytes = sizes.trace_room_count * _segment_bytes(context) * 100 // FLOOR_PERCENT
    for number in range(BASE_COUNT):
        models.make_safetensors(_base_path(context, number), budget_bytes * BASE_PERCENT // 100)
    requests = zipf(sizes.trace_adapter_count, sizes.trace_request_count)
    ours = _loads(context, budget_bytes, requests)
    simulated = lru_loads(requests, sizes.trace_room_count)
    return [_row(context, _by_part(context, ours), _by_part(context, simulated))]


def zipf(count: int, request_count: int) -> list[int]:
    """Return which of so many is asked for, each time."""
    weights = [1 / rank**EXPONENT for rank in range(1, count + 1)]
    return random.Random(SEED).choices(range(count), weights, k=request_count)


def lru_loads(requests: Iterable[int], room_count: int) -> list[bool]:
    """Say of every request whether a cache of least recently used entries would have to load."""
    held: OrderedDict[int, None] = OrderedDict()
    loads = []
    for number in requests:
        loads.append(number not in held)
        held[number] = None
        held.move_to_end(number)
        if len(held) > room_count:
            held.popitem(last=False)
    return loads


def _loads(context: Context, budget_bytes: int, requests: Sequence[int]) -> list[bool]:
    """Say of every request whether the daemon had to load."""
    with (
        context.daemon(budget_bytes, spare_bytes=0) as daemon,
        warmshelf.connect(daemon.address) as shelf,
    ):
        for number in range(context.sizes.trace_adapter_count):
            shelf.register(_adapter_id(number), context.folder / "trace" / str(number))
        for number in range(BASE_COUNT):
            shelf.register(_base_id(number), _base_path(context, number))
        return list(_serve(shelf, requests))


def _serve(shelf: warmshelf.Shelf, requests: Sequence[int]) -> Iterator[bool]:
    bases = cycle(range(BASE_COUNT))
    for turn, number in enumerate(requests):
        if turn % REQUESTS_PER_BASE == 0:
            shelf.acquire(_base_id(next(bases))).release()
        yield _had_to_load(shelf, _adapter_id(number))


def _had_to_load(shelf: warmshelf.Shelf, artifact_id: str) -> bool:
    try:
        shelf.acquire(artifact_id, resident_only=True).release()
    except NotResident:
        shelf.acquire(artifact_id).release()
        return True
    return False


def _segment_bytes(context: Context) -> int:
    """Return the room that one adapter takes, as the daemon counts it."""
    with context.daemon(ADAPTER_BYTES) as daemon, warmshelf.connect(daemon.address) as shelf:
        shelf.register(_adapter_id(0), context.folder / "trace" / "0")
        with shelf.acquire(_adapter_id(0)):
            return shelf.get(_adapter_id(0)).size_bytes


def _by_part(context: Context, loads: Sequence[bool]) -> tuple[float, ...]:
    """Return the number of loads in each part of the trace."""
    size = len(loads) // context.sizes.round_count
    return tuple(float(sum(loads[start : start + size])) for start in range(0, size * context.sizes.round_count, size))


def _row(context: Context, ours: tuple[float, ...], simulated: tuple[float, ...]) -> Row:
    sizes = context.sizes
    name = (
        f"adapter loads in {sizes.trace_request_count // sizes.round_count:,} requests, {sizes.trace_adapter_count:,} "
        f"adapters, room for {sizes.trace_room_count}, bases in turn"
    )
    note = f"all {sizes.trace_request_count:,} requests: {sum(ours):,.0f} beside {sum(simulated):,.0f}"
    sides = Side("warmshelf", ours, "loads"), Side("LRU without bases", simulated, "loads")
    return at_most("trace.loads", name, *sides, LOADS_RATIO_AIM, note)


def _adapter_id(number: int) -> str:
    return f"bench/adapter-{number}"


def _base_id(number: int) -> str:
    return f"bench/base-{number}"


def _base_path(context: Context, number: int) -> Path:
    return context.folder / f"trace-base-{number}.safetensors"
