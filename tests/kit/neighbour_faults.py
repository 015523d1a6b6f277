"""Nodes that are none: each passes what it is asked on to a real daemon, and changes what it reads of a segment."""

from __future__ import annotations

import socket
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import crc32c
import grpc
import redis

from warmshelf.v1 import transfer_pb2

SERVERS_THREADS = 16
READ = "/warmshelf.v1.TransferService/ReadSegment"


class Between:
    """Passes everything on as it is."""

    threads = SERVERS_THREADS

    def __init__(self, target: str) -> None:
        self._channel = grpc.insecure_channel(target)
        self._server = grpc.server(ThreadPoolExecutor(self.threads), handlers=(_Everything(self),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{self.port}"
        self.read_count = 0

    def __enter__(self) -> Between:  # noqa: PYI034
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()
        self._channel.close()

    def changed(self, chunk: transfer_pb2.ReadSegmentResponse, data_begins: int) -> Iterator[bytes]:
        """Yield what is sent in the place of a chunk."""
        yield chunk.SerializeToString()

    def handle(self, method: str, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        call = self._channel.unary_stream(method)(request)
        context.add_callback(call.cancel)
        try:
            for message in call:
                if method != READ:
                    yield message
                    continue
                self.read_count += 1
                yield from self.changed(transfer_pb2.ReadSegmentResponse.FromString(message), 4096)
        except grpc.RpcError as error:
            context.set_trailing_metadata(call.trailing_metadata())
            context.set_code(error.code())
            context.set_details(error.details())


class _Everything(grpc.GenericRpcHandler):
    def __init__(self, between: Between) -> None:
        self._between = between

    def service(self, details: Any) -> grpc.RpcMethodHandler[Any, Any]:
        def handle(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
            return self._between.handle(details.method, request, context)

        return grpc.unary_stream_rpc_method_handler(handle)


def _framed(offset: int, data: bytes) -> bytes:
    chunk = transfer_pb2.ReadSegmentResponse(offset_bytes=offset, crc32c=crc32c.crc32c(data), data=data)
    return chunk.SerializeToString()


class HoldsAllButTheFirst(Between):
    """Passes on all of the first load, and of others the beginning, until it may ``flow``; knows how many it held."""

    threads = 8 * SERVERS_THREADS  # each call that is held has one

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.flow = threading.Event()
        self.held_max = 0
        self._first = ""
        self._held: set[str] = set()  # leases; guarded by the lock, as is what is above
        self._lock = threading.Lock()

    def handle(self, method: str, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        messages = super().handle(method, request, context)
        lease_id = transfer_pb2.ReadSegmentRequest.FromString(request).lease_id if method == READ else ""
        for message in messages:  # there is one: it was not refused
            if lease_id:
                self._hold(lease_id)
            yield message

    def _hold(self, lease_id: str) -> None:
        with self._lock:
            self._first = self._first or lease_id
            if lease_id == self._first or self.flow.is_set():
                return
            self._held.add(lease_id)
            self.held_max = max(self.held_max, len(self._held))
        self.flow.wait()


class FlipsBits(Between):
    """One bit of each chunk of tensors is another, and its CRC says so: only the whole digest can tell."""

    def changed(self, chunk: transfer_pb2.ReadSegmentResponse, data_begins: int) -> Iterator[bytes]:
        data = bytearray(chunk.data)
        if chunk.offset_bytes >= data_begins and len(data) > 100_000:
            data[-1] ^= 1
        yield _framed(chunk.offset_bytes, bytes(data))


class BreaksCrcs(Between):
    """One bit of each chunk is another, and its CRC is the old one."""

    def changed(self, chunk: transfer_pb2.ReadSegmentResponse, data_begins: int) -> Iterator[bytes]:
        chunk.data = chunk.data[:-1] + bytes([chunk.data[-1] ^ 1])
        yield chunk.SerializeToString()


class Misplaces(Between):
    """Says that each chunk of tensors lies a byte further on."""

    def changed(self, chunk: transfer_pb2.ReadSegmentResponse, data_begins: int) -> Iterator[bytes]:
        yield _framed(chunk.offset_bytes + (chunk.offset_bytes >= data_begins), chunk.data)


class NeverEnds(Between):
    """Sends more than was asked for, without end."""

    def changed(self, chunk: transfer_pb2.ReadSegmentResponse, data_begins: int) -> Iterator[bytes]:
        yield chunk.SerializeToString()
        offset = chunk.offset_bytes + len(chunk.data)
        while True:
            yield _framed(offset, bytes(4096))
            offset += 4096


class EndsEarly(Between):
    """Sends the first half of each chunk."""

    def changed(self, chunk: transfer_pb2.ReadSegmentResponse, data_begins: int) -> Iterator[bytes]:
        yield _framed(chunk.offset_bytes, chunk.data[: (len(chunk.data) + 1) // 2])


class Drips(Between):
    """Sends a byte now and then."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._ended = threading.Event()

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        super().__exit__(*exc)

    def changed(self, chunk: transfer_pb2.ReadSegmentResponse, data_begins: int) -> Iterator[bytes]:
        if chunk.offset_bytes < data_begins:
            yield chunk.SerializeToString()
            return
        for place, byte in enumerate(chunk.data):
            if self._ended.wait(0.05):
                return
            yield _framed(chunk.offset_bytes + place, bytes([byte]))


class Hangs(Drips):
    """Sends nothing of any tensor."""

    def changed(self, chunk: transfer_pb2.ReadSegmentResponse, data_begins: int) -> Iterator[bytes]:
        if chunk.offset_bytes < data_begins:
            yield chunk.SerializeToString()
        else:
            self._ended.wait(30)


class LiesOfItsLayout(Between):
    """The first page says that the segment is a hundred times as large."""

    def changed(self, chunk: transfer_pb2.ReadSegmentResponse, data_begins: int) -> Iterator[bytes]:
        data = bytearray(chunk.data)
        if chunk.offset_bytes == 0 and len(data) == data_begins:
            data[56:64] = bytes(b ^ 0xFF for b in data[56:64])
        yield _framed(chunk.offset_bytes, bytes(data))


class Deaf:
    """Accepts connections and says nothing; counts them."""

    def __init__(self, _: str = "", host: str = "127.0.0.1") -> None:
        self._socket = socket.create_server((host, 0))
        self._socket.settimeout(0.05)
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        self.read_count = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._accept)

    def __enter__(self) -> Deaf:  # noqa: PYI034
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()

    def _accept(self) -> None:
        taken = []
        while not self._ended.is_set():
            try:
                taken.append(self._socket.accept()[0])
                self.read_count += 1
            except TimeoutError:
                continue
        for one in taken:
            one.close()


class Dead:
    """Has gone: nobody listens."""

    def __init__(self, _: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.address = f"127.0.0.1:{taken.getsockname()[1]}"

    def __enter__(self) -> Dead:  # noqa: PYI034
        return self

    def __exit__(self, *_: object) -> None:
        pass


def claim(client: redis.Redis, address: str, artifact_id: str, digest: str, node_id: str = "e" * 16) -> None:
    """Have a node that is none say that it has an artifact."""
    text = f"nobody - {address} all\n{artifact_id} {digest} 4096 -"
    client.set("{warmshelf}:node:" + node_id, b"a-1 " + zlib.compress(text.encode()))
    client.sadd("{warmshelf}:nodes", node_id)
