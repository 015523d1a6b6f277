"""N7, G8: readers that take nothing, a hundred on every run and a thousand in the night."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.models import write_model
from kit.plain import Plain
from kit.processes import Daemon, Worker, eventually
from kit.scrape import HTTP, pages_of

pytestmark = pytest.mark.e2e

MIB = 1 << 20
EXTRA_BYTES_MAX = 300 * MIB
STREAMS_PER_WORKER = 100
"""Also the bound of one session here: each worker has one."""

ASKED = 200
HEALTH_SECONDS_MAX = 2.0
"""At the 99th percentile, on a machine that does other things too; what it was is printed."""

STALLED = """
import sys, grpc
from kit.plain import Plain
from warmshelf.v1 import transfer_pb2, transfer_pb2_grpc
plain = Plain(sys.argv[1])
lease_id = plain.acquire("a").lease.lease_id
request = transfer_pb2.ReadSegmentRequest(lease_id=lease_id, session_id=plain.session_id)
options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
channels = [grpc.insecure_channel(sys.argv[1], options) for _ in range(int(sys.argv[2]))]
streams = [transfer_pb2_grpc.TransferServiceStub(channel).ReadSegment(request) for channel in channels]
for stream in streams:
    next(stream)
print("stalled", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    models = tmp_path / "models"
    models.mkdir()
    write_model(models / "a.safetensors", 1, 32 * MIB)
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm") as arena:
        it = Daemon(tmp_path, Path(arena), models)
        it.start("--budget", "64MiB", *HTTP, env={"WARMSHELF_STALL_SECONDS": "600"})
        yield it
        assert it.kill(15) == 0
        it.check()


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=[pytest.mark.nightly, pytest.mark.timeout(600)])])
def test_stalled_readers_cost_a_bounded_memory_and_nobody_waits_for_them(daemon: Daemon, count: int) -> None:
    with Plain(daemon.tcp_address) as plain:
        plain.register("a", daemon.models / "a.safetensors")
        plain.release(plain.acquire("a").lease.lease_id)
        assert plain.health_of() == "SERVING"
        before = daemon.memory_bytes()
        each = str(STREAMS_PER_WORKER)
        workers = [Worker(STALLED, daemon.tcp_address, each) for _ in range(count // STREAMS_PER_WORKER)]
        try:
            assert [worker.line(300) for worker in workers] == ["stalled"] * len(workers)
            assert pages_of(daemon).scrape()["warmshelf_streams"] == count
            extra = daemon.memory_bytes() - before
            took = sorted(_asked(plain) for _ in range(ASKED))
            late = took[ASKED * 99 // 100 - 1]
        finally:
            for worker in workers:
                worker.end()
        print(
            f"{count} stalled readers: {extra / MIB:.0f} MiB; health takes {1000 * statistics.median(took):.1f} ms, "
            f"at the 99th percentile {1000 * late:.1f} ms"
        )
        assert extra <= EXTRA_BYTES_MAX
        assert late <= HEALTH_SECONDS_MAX
        eventually(lambda: pages_of(daemon).scrape()["warmshelf_streams"] == 0, "no stream is left", 30)


def _asked(plain: Plain) -> float:
    began = time.perf_counter()
    assert plain.health_of() == "SERVING"
    return time.perf_counter() - began
