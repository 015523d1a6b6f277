"""How soon the daemon answers a health check while many readers stall."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2_grpc

import warmshelf
from benchmarks.context import Context
from benchmarks.health_probe import check
from benchmarks.report import Row, Side, at_most, limit, p99
from benchmarks.stalled_readers import stalled

P99_SECONDS_AIM = 0.020
ARTIFACT_ID = "bench/base"


def run(context: Context) -> list[Row]:
    """Measure alone, then beside the readers; the 99th of a hundred is each round's sample."""
    alone, beside_readers = [], []
    count = context.sizes.reader_count
    with context.daemon(context.sizes.base_bytes) as daemon, warmshelf.connect(daemon.address) as shelf:
        shelf.register(ARTIFACT_ID, context.base)
        for _ in shelf.load(ARTIFACT_ID):
            pass
        for _ in context.rounds():
            context.wait_quiet(daemon.pid)
            alone.append(_p99(daemon.tcp_address, context.sizes.check_count))
            with stalled(daemon.tcp_address, ARTIFACT_ID, count):
                beside_readers.append(_p99(daemon.tcp_address, context.sizes.check_count))
    ours = Side("p99", tuple(beside_readers))
    note = f"without readers {Side('', tuple(alone)).value * 1000:.3g} ms"
    name = f"health check while {count} readers stall"
    return [at_most("health.stalled", name, ours, limit("aim", P99_SECONDS_AIM), note=note)]


def _p99(address: str, check_count: int) -> float:
    with grpc.insecure_channel(address, (("grpc.use_local_subchannel_pool", 1),)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return p99([check(stub) for _ in range(check_count)])
