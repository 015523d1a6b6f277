"""What tests of pushes need: a client of bare stubs, a proxy that cuts, and a look at the spool's disk."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import crc32c
import grpc

from kit.plain import CALL_SECONDS
from kit.processes import Daemon
from warmshelf.v1 import push_pb2, push_pb2_grpc

CHUNK = 512 << 10

PUSH_STEPS = ("push.chunk=9*kill", "push.proven=kill", "push.stored=kill", "push.kept=kill", "register.recorded=kill")
"""Where a daemon is killed in a push of 12 MiB."""


class PlainPush:
    """A push by generated stubs, step by step: what anybody could send."""

    def __init__(self, address: str, files: Mapping[str, bytes], push_id: str = "ab" * 16) -> None:
        self.channel = grpc.insecure_channel(address)
        self.stub = push_pb2_grpc.PushServiceStub(self.channel)
        self.files = files
        self.push_id = push_id

    def __enter__(self) -> PlainPush:  # noqa: PYI034
        return self

    def __exit__(self, *exc: object) -> None:
        self.channel.close()

    def begin(self, artifact_id: str = "a", **fields: Any) -> list[int]:
        request = push_pb2.BeginPushRequest(push_id=self.push_id, artifact_id=artifact_id, **fields)
        if not request.files:
            for name, data in self.files.items():
                request.files.add(name=name, size_bytes=len(data))
        return list(self.stub.BeginPush(request, timeout=CALL_SECONDS).received_bytes)

    def chunk(self, index: int, start: int, size: int = CHUNK, **fields: Any) -> push_pb2.WritePushRequest:
        data = list(self.files.values())[index][start : start + size]
        wanted = {"push_id": self.push_id, "file_index": index, "offset_bytes": start, "data": data, **fields}
        wanted.setdefault("crc32c", crc32c.crc32c(wanted["data"]))
        return push_pb2.WritePushRequest(**wanted)

    def chunks(self, received: Iterable[int] = ()) -> Iterator[push_pb2.WritePushRequest]:
        starts = list(received) or [0] * len(self.files)
        for index, data in enumerate(self.files.values()):
            for start in range(starts[index], len(data), CHUNK):
                yield self.chunk(index, start)

    def write(self, chunks: Iterable[push_pb2.WritePushRequest]) -> list[int]:
        return list(self.stub.WritePush(iter(chunks), timeout=CALL_SECONDS).received_bytes)

    def finish(self, *hashes: bytes) -> Any:
        wanted = hashes or [hashlib.sha256(data).digest() for data in self.files.values()]
        request = push_pb2.FinishPushRequest(push_id=self.push_id, file_sha256=wanted)
        return self.stub.FinishPush(request, timeout=CALL_SECONDS).artifact


def spool_of(daemon: Daemon) -> Path:
    return daemon.registry.with_suffix(".spool")


def kept(daemon: Daemon) -> list[str]:
    """The pushes that are kept for good."""
    return sorted(path.name for path in (spool_of(daemon) / "kept").iterdir())


def unfinished(daemon: Daemon) -> list[str]:
    return sorted(path.name for path in (spool_of(daemon) / "incoming").iterdir())


def spooled_bytes(daemon: Daemon) -> int:
    """The bytes of all files of unfinished pushes."""
    return sum(path.stat().st_size for path in (spool_of(daemon) / "incoming").glob("*/files/*"))


class CuttingProxy:
    """Forwards TCP; resets each of its first ``cut_count`` connections after it has carried so many bytes."""

    def __init__(self, target: str, cut_after_bytes: int, cut_count: int) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._cut_after_bytes = cut_after_bytes
        self.cuts_left = cut_count
        self.address = ""
        self._tasks: set[asyncio.Future[None]] = set()  # a loop itself does not keep its tasks

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._target)
        cut = self.cuts_left > 0
        ways = [self._carry(reader, back, cut=cut, counts=True), self._carry(there, writer)]
        tasks = [asyncio.ensure_future(way) for way in ways]
        own = asyncio.current_task()
        assert own is not None
        self._tasks |= {own, *tasks}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for end in (writer, back):
                end.transport.abort()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._tasks -= {own, *tasks}

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, cut: bool = False, counts: bool = False
    ) -> None:
        carried = 0
        while data := await reader.read(1 << 16):
            carried += len(data)
            if cut and counts and carried > self._cut_after_bytes:
                self.cuts_left -= 1
                raise ConnectionResetError
            writer.write(data)
            await writer.drain()


@contextmanager
def cutting_proxy(target: str, cut_after_bytes: int, cut_count: int) -> Iterator[CuttingProxy]:
    """Run the proxy in a thread of its own."""
    proxy = CuttingProxy(target, cut_after_bytes, cut_count)
    loop = asyncio.new_event_loop()
    started = threading.Event()
    stopped: list[asyncio.Event] = []

    async def run() -> None:
        stop = asyncio.Event()
        stopped.append(stop)
        server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
        proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        await stop.wait()
        server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    assert started.wait(10)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(stopped[0].set)
        thread.join(10)
        loop.close()
