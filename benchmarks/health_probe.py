"""Asks a daemon for its health, again and again, from a process of its own, while something else is measured.

    python -m benchmarks.health_probe ADDRESS     # until its input ends; then prints the seconds that each took

A thread would not do: it would wait for the interpreter's lock, not for the daemon.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

PAUSE_SECONDS = 0.001
"""Between two checks, so that asking takes little of the processor."""


@contextmanager
def probing(address: str) -> Iterator[list[float]]:
    """Ask during the body; the list has the seconds of every check when it is over."""
    command = [sys.executable, "-m", "benchmarks.health_probe", address]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    seconds: list[float] = []
    try:
        if not (process.stdout or sys.stdin).readline():
            raise RuntimeError("the health checks could not begin")
        yield seconds
        seconds += json.loads(process.communicate("")[0])
    finally:
        process.kill()
        process.communicate()


def check(stub: health_pb2_grpc.HealthStub) -> float:
    """Ask once; return the seconds it took."""
    began = time.perf_counter()
    answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
    seconds = time.perf_counter() - began
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise RuntimeError(f"the daemon's health is {answer.status}")
    return seconds


def main() -> None:
    """Ask until the input ends."""
    seconds = []
    with grpc.insecure_channel(sys.argv[1]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        check(stub)  # the first one connects
        print("asking", flush=True)
        while not select.select([sys.stdin], [], [], PAUSE_SECONDS)[0]:
            seconds.append(check(stub))
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
