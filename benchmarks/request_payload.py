"""What a request costs that carries its adapter, and one that carries the adapter's ID.

    python -m benchmarks.request_payload ADDRESS     # the worker's side: prints its port, answers until its input ends

A worker process on loopback TCP answers both kinds once the adapter's tensors are at
hand: parsed from the request by the safetensors library, or acquired from the shelf,
where they are resident. Requests are JSON; the adapter that travels is its file as it is.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import safetensors.torch

import warmshelf
import warmshelf.torch
from benchmarks import adapters
from benchmarks.context import Context, Stopwatch
from benchmarks.report import Row, Side, at_most, faster, limit

REQUEST_BYTES_AIM = 1024
ADAPTER_ID = "acme/support-lora"
PROMPT = "What is the capital of France?"
_SIZE = struct.Struct("<Q")


def run(context: Context) -> list[Row]:
    """Send requests of both kinds in turn."""
    directory = adapters.make_adapter(context.folder / "payload", adapters.shape_of(context.sizes.adapter_bytes, 30))
    payload = (directory / adapters.WEIGHTS_NAME).read_bytes()
    watch = Stopwatch()
    with context.daemon(context.sizes.adapter_bytes) as daemon, warmshelf.connect(daemon.address) as shelf:
        shelf.register(ADAPTER_ID, directory)
        with _worker(daemon.address) as connection:
            by_id, whole = _request(b"", ADAPTER_ID), _request(payload, "")
            for request in (by_id, whole):
                _ask(connection, request)  # warms up, does not count
            for _ in context.rounds():
                watch.add("adapter in the request", _ask(connection, whole))
                watch.add("ID in the request", _ask(connection, by_id))
    name = f"request whose adapter of {len(payload) / 1e6:,.1f} MB is resident"
    ours, other = watch.side("ID in the request"), watch.side("adapter in the request")
    size = Side("ID in the request", tuple(float(len(by_id)) for _ in context.rounds()), "bytes")
    return [
        at_most("payload.bytes", f"bytes of a {name}", size, limit("limit", REQUEST_BYTES_AIM, "bytes")),
        faster("payload.seconds", f"time until the tensors of a {name} are there", ours, other, 1),
    ]


def _request(payload: bytes, adapter_id: str) -> bytes:
    """Return one request: its length, its head, and the adapter if it travels."""
    head = json.dumps({"prompt": PROMPT, "max_tokens": 16, "adapter": adapter_id}).encode()
    return b"".join((_SIZE.pack(len(head)), _SIZE.pack(len(payload)), head, payload))


def _ask(connection: socket.socket, request: bytes) -> float:
    began = time.perf_counter()
    connection.sendall(request)
    if connection.recv(1) != b"k":
        raise RuntimeError("the worker went away")
    return time.perf_counter() - began


@contextmanager
def _worker(address: str) -> Iterator[socket.socket]:
    command = [sys.executable, "-m", "benchmarks.request_payload", address]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        port = int((process.stdout or sys.stdin).readline())
        with socket.create_connection(("127.0.0.1", port)) as connection:
            yield connection
    finally:
        process.kill()
        process.communicate()


def main() -> None:
    """Be the worker."""
    with socket.create_server(("127.0.0.1", 0)) as server, warmshelf.connect(sys.argv[1]) as shelf:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as requests:
            while sizes := requests.read(2 * _SIZE.size):
                (head_bytes,), (payload_bytes,) = _SIZE.unpack(sizes[:8]), _SIZE.unpack(sizes[8:])
                head, payload = json.loads(requests.read(head_bytes)), requests.read(payload_bytes)
                if head["adapter"]:
                    with shelf.acquire(head["adapter"]) as lease:
                        tensors = warmshelf.torch.tensors(lease)
                else:
                    tensors = safetensors.torch.load(payload)
                if not tensors:
                    raise RuntimeError("an adapter without tensors")
                connection.sendall(b"k")


if __name__ == "__main__":
    main()
