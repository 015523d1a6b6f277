"""A proxy before an HTTP server that lets faults happen: each is a small class, named for what it does.

It passes requests without bodies on, byte for byte, so that signatures stay right.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from dataclasses import dataclass, field

_HEAD_END = b"\r\n\r\n"
_PIECE_BYTES = 64 << 10


@dataclass(frozen=True)
class Request:
    """The first line of a request, the range it asks for, and all of it."""

    method: str
    target: str
    range: tuple[int, int] | None
    head: str

    @property
    def is_data(self) -> bool:
        """Whether it asks for a part of an object that does not begin at its head."""
        return self.method == "GET" and self.range is not None and self.range[0] > 0


class Fault:
    """What may happen to an exchange. This one lets everything pass."""

    def before(self, request: Request) -> bytes | None:
        """Return an answer of our own, None to ask the server, or wait."""

    def body_bytes_max(self, request: Request) -> int | None:
        """Return after how many bytes of the body the connection is cut, if it is."""

    def release(self) -> None:
        """Let go whoever waits in here."""


@dataclass
class Busy(Fault):
    """Answers the first requests for data with 503; ``times`` None means all of them."""

    times: int | None = None
    count: int = 0

    def before(self, request: Request) -> bytes | None:
        if not request.is_data or (self.times is not None and self.count >= self.times):
            return None
        self.count += 1
        body = b"<Error><Code>SlowDown</Code><Message>canary-in-body</Message></Error>"
        return b"HTTP/1.1 503 Slow Down\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


@dataclass
class Cut(Fault):
    """Cuts the connection in the middle of the body, for the first requests for data; None: all of them."""

    times: int | None = None
    count: int = 0

    def body_bytes_max(self, request: Request) -> int | None:
        if not request.is_data or (self.times is not None and self.count >= self.times):
            return None
        self.count += 1
        return 1000


@dataclass
class Hold(Fault):
    """Holds requests for data until it is released."""

    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def before(self, request: Request) -> bytes | None:
        if request.is_data:
            self.reached.set()
            self.released.wait(60)
        return None

    def release(self) -> None:
        self.released.set()


@dataclass
class IgnoreConditions(Fault):
    """Stands for a server that knows no ``If-Match``: the proxy renames the header."""


class FaultProxy:
    """Listens on a port of its own and passes on to one server. Change ``fault`` at any time."""

    def __init__(self, host: str, port: int) -> None:
        self.fault: Fault = Fault()
        self.requests: list[Request] = []  # appended to by the threads of connections, as is:
        self.passed: list[Request] = []  # those to which the server gave an answer that is no failure of its own
        self._server = (host, port)
        self._sockets: set[socket.socket] = set()  # guarded by _lock
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self.fault.release()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        with self._lock:
            for one in self._sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> FaultProxy:  # noqa: PYI034 - Self came with Python 3.11
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(client,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(self._server) as server:
            with self._lock:
                self._sockets |= {client, server}
            try:
                while self._exchange(client, server):
                    pass
            finally:
                with self._lock:
                    self._sockets -= {client, server}

    def _exchange(self, client: socket.socket, server: socket.socket) -> bool:
        """Pass one request and its answer; say whether the connection goes on."""
        head, _ = _read_head(client)
        if not head:
            return False
        request = _parse(head)
        self.requests.append(request)
        fault = self.fault
        own = fault.before(request)
        if own is not None:
            client.sendall(own)
            return True
        if isinstance(fault, IgnoreConditions):
            head = re.sub(rb"(?i)\r\nif-match:", b"\r\nx-was-if-match:", head)
        server.sendall(head)
        answer, rest = _read_head(server)
        if re.match(rb"HTTP/1\.[01] [1-4]", answer):
            self.passed.append(request)
        client.sendall(answer)
        return self._pass_body(client, server, request, _length(request, answer), rest, fault)

    def _pass_body(
        self, client: socket.socket, server: socket.socket, request: Request, length: int, rest: bytes, fault: Fault
    ) -> bool:
        most = fault.body_bytes_max(request)
        end = length if most is None else min(most, length)
        done = 0
        while done < end:
            piece = (rest or server.recv(_PIECE_BYTES))[: end - done]
            if not piece:
                return False
            client.sendall(piece)
            done, rest = done + len(piece), b""
        return done == length


def _read_head(connection: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while _HEAD_END not in data:
        piece = connection.recv(_PIECE_BYTES)
        if not piece:
            return b"", b""
        data += piece
    head, _, rest = data.partition(_HEAD_END)
    return head + _HEAD_END, rest


def _parse(head: bytes) -> Request:
    method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
    found = re.search(rb"(?i)\r\nrange: *bytes=(\d+)-(\d+)", head)
    return Request(method, target, (int(found[1]), int(found[2]) + 1) if found else None, head.decode())


def _length(request: Request, answer: bytes) -> int:
    found = re.search(rb"(?i)\r\ncontent-length: *(\d+)", answer)
    return int(found[1]) if found and request.method != "HEAD" else 0
