"""Readers that take one chunk each and then nothing: what the health check must not suffer from.

    python -m benchmarks.stalled_readers ADDRESS ID COUNT     # says when all stall, until its input ends

Each has a connection, a session and a lease of its own, on plain stubs: the client of warmshelf
would not behave so badly.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc

from warmshelf.v1 import lease_pb2, lease_pb2_grpc, transfer_pb2, transfer_pb2_grpc


@contextmanager
def stalled(address: str, artifact_id: str, count: int) -> Iterator[None]:
    """Run the body while that many readers stall."""
    command = [sys.executable, "-m", "benchmarks.stalled_readers", address, artifact_id, str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if not (process.stdout or sys.stdin).readline():
            raise RuntimeError("the readers could not begin")
        yield
    finally:
        process.kill()
        process.communicate()


def _stall(address: str, artifact_id: str, stack: ExitStack) -> Any:
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0))
    channel = stack.enter_context(grpc.insecure_channel(address, options))
    leases = lease_pb2_grpc.LeaseServiceStub(channel)
    transfer = transfer_pb2_grpc.TransferServiceStub(channel)
    session = leases.OpenSession(lease_pb2.OpenSessionRequest(holder="stalled reader"))
    session_id = next(session).session_id
    answer = leases.AcquireLease(lease_pb2.AcquireLeaseRequest(session_id=session_id, artifact_id=artifact_id))
    request = transfer_pb2.ReadSegmentRequest(session_id=session_id, lease_id=answer.lease.lease_id)
    chunks = transfer.ReadSegment(request)
    next(chunks)
    return session, chunks  # both streams end when they are forgotten


def main() -> None:
    """Begin all of them, say so, and wait."""
    address, artifact_id, count = sys.argv[1:]
    with ExitStack() as stack:
        kept = [_stall(address, artifact_id, stack) for _ in range(int(count))]
        print(len(kept), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
