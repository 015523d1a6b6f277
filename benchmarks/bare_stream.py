"""A gRPC stream with nothing in it but bytes: what a streamed acquire is measured against.

The server, a process of its own, sends a mapped file in chunks, each behind sixteen bytes
that say where it belongs. No check, no lease, no protobuf.

    python -m benchmarks.bare_stream FILE CHUNK_BYTES      # prints its port, serves until killed
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

METHOD = "/bench.Bare/Read"
HEAD = struct.Struct("<QQ")  # offset, size
MESSAGE_BYTES_MAX = 16 << 20


@contextmanager
def serve(file: Path, chunk_bytes: int) -> Iterator[str]:
    """Run the server; yield its address."""
    command = [sys.executable, "-m", "benchmarks.bare_stream", str(file), str(chunk_bytes)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield f"127.0.0.1:{(process.stdout or sys.stdin).readline().strip()}"
    finally:
        process.kill()
        process.communicate()


def read(address: str, size: int) -> mmap.mmap:
    """Store the whole stream in fresh memory, as a client of warmshelf does."""
    buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    buffer.madvise(mmap.MADV_HUGEPAGE)
    options = (("grpc.http2.bdp_probe", 0), ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX))
    with grpc.insecure_channel(address, options) as channel, memoryview(buffer) as view:
        call: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(METHOD)
        for message in call(b""):
            offset, count = HEAD.unpack_from(message)
            view[offset : offset + count] = memoryview(message)[HEAD.size :]
    return buffer


async def _serve(file: Path, chunk_bytes: int) -> None:
    with file.open("rb") as opened:
        view = memoryview(mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ))

    async def send(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        for start in range(0, len(view), chunk_bytes):
            data = view[start : start + chunk_bytes]
            yield b"".join((HEAD.pack(start, len(data)), data))

    service, method = METHOD.strip("/").split("/")
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {method: grpc.unary_stream_rpc_method_handler(send)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), int(sys.argv[2])))
