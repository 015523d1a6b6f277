"""The operators' port: a small HTTP server for a few pages.

It has threads of its own, so that it answers also while the event loop does not.
What the pages say is given to it; it knows no artifact and no metric. Whoever asks
is a stranger: a request is short, has seconds, and of too many the oldest makes way.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, TypeAlias

from warmshelf.errors import DaemonInUse, InvalidConfig
from warmshelfd.holders import port_holder, put_up_signs
from warmshelfd.options import Listen

_log = logging.getLogger(__name__)

CONNECTIONS_MAX = 16
"""Two scrapers and a kubelet need three; each costs a thread."""

REQUEST_SECONDS_MAX = 5.0
"""A request is one packet, and no page takes longer than a second."""

_LOOK_SECONDS = 0.1
"""How often the server looks whether it is to stop, and who takes too long."""

_BEATS = 10
"""Heartbeats in the time without one after which the event loop counts as stuck."""


class Heartbeat:
    """Whether the event loop still turns, for any thread to see."""

    def __init__(self, stuck_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._stuck_seconds = stuck_seconds
        self._clock = clock
        self._beat_time = clock()  # one number, set by the event loop and read by any thread

    def beat(self) -> None:
        """Note that it turns."""
        self._beat_time = self._clock()

    async def keep_beating(self) -> None:
        """Beat for as long as the daemon runs."""
        while True:
            self.beat()
            await asyncio.sleep(self._stuck_seconds / _BEATS)

    @property
    def age_seconds(self) -> float:
        """How long ago it was seen to turn."""
        return self._clock() - self._beat_time

    @property
    def alive(self) -> bool:
        """Whether that is not too long ago."""
        return self.age_seconds <= self._stuck_seconds


@dataclass(frozen=True, slots=True)
class Answer:
    """What a page says."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client asks of a page.

    Attributes:
        accept: the content types that it takes.
        query: what stands behind the question mark, as it came.
        host: under which name it looked for us, without the port; "" if it did not say.
    """

    accept: str = ""
    query: str = ""
    host: str = ""


Page: TypeAlias = Callable[[Asked], Answer]
"""Called in threads, several at once."""

_EVERY_HEADER = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Connection": "close"}
"""The library sees the last of these, and ends the connection behind the answer."""


def host_of(header: str) -> str:
    """Return the name or number in a Host header, without port, brackets and capitals."""
    host = header.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def cannot_be_rebound(host: str, own_names: Collection[str]) -> bool:
    """Say whether a name in a Host header is one that no stranger's DNS can lead to us.

    A page in a browser may read what its own name leads to, and whoever has that name may lead it
    here. So we answer to numbers and to names that are ours.
    """
    if not host or host == "localhost" or host.endswith(".localhost") or host in own_names:
        return True
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def yes_or_no(holds: bool) -> Answer:
    """Return what a probe is told."""
    return _plain(HTTPStatus.OK) if holds else _plain(HTTPStatus.SERVICE_UNAVAILABLE)


def _plain(status: HTTPStatus) -> Answer:
    return Answer(status, f"{status.phrase}\n".encode())


class HttpServer(ThreadingTCPServer):
    """Serves a few pages on one address."""

    daemon_threads = True
    allow_reuse_address = True  # of connections that have ended; of a live listener the kernel refuses it
    request_queue_size = 128  # connections that wait to be accepted; one that finds no place tries again after 1 s

    def __init__(self, listen: Listen, pages: Mapping[str, Page]) -> None:
        """Listen; nothing is answered before ``start``.

        Raises:
            DaemonInUse: another process listens there.
            InvalidConfig: it is no address of this host, or not for us.
        """
        self.pages = pages
        # Connections under way, oldest first, and since when. Guarded by the lock.
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        self._signs: list[socket.socket] = []  # set once, when the address is ours
        try:
            self.address_family, _, _, _, address = socket.getaddrinfo(
                listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            super().__init__(address[:2], _Handler)  # type: ignore[arg-type]  # a host and a port
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                pid, words = port_holder(listen.port)
                text = f"cannot serve HTTP on {listen}: {words} listens there"
                raise DaemonInUse(text, address=str(listen), pid_number=pid) from error
            raise InvalidConfig(f"cannot serve HTTP on {listen}: {error.strerror}", option="http") from error

        self._signs = put_up_signs(int(self.server_address[1]))

    @property
    def address(self) -> str:
        """Host and port, the latter as the kernel chose it."""
        host, port = self.server_address[:2]
        return str(Listen("tcp", host=str(host), port=int(port)))

    def start(self) -> None:
        """Answer from now on, in threads."""
        threading.Thread(target=self.serve_forever, args=(_LOOK_SECONDS,), name="http", daemon=True).start()

    def stop(self) -> None:
        """Stop answering, and free the address."""
        self.shutdown()
        self.server_close()

    def server_close(self) -> None:
        """Free the address."""
        super().server_close()
        for sign in self._signs:
            sign.close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin a connection; too many, and the oldest makes way."""
        with self._lock:
            self._open[request] = time.monotonic()
            if len(self._open) > CONNECTIONS_MAX:
                _break(next(iter(self._open)))
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End connections that take too long; called after each look."""
        limit = time.monotonic() - REQUEST_SECONDS_MAX
        with self._lock:
            for request in [request for request, since in self._open.items() if since < limit]:
                _break(request)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the library's signature
        """Log bugs, but not what clients do to their connections."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            _log.error("bug in an HTTP request", exc_info=error)


def _break(request: socket.socket) -> None:
    """Make whoever waits on a connection see its end."""
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """One connection with one request."""

    server: HttpServer
    protocol_version = "HTTP/1.1"
    timeout = REQUEST_SECONDS_MAX

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        page = self.server.pages.get(path)
        if page is None:
            return self._send(_plain(HTTPStatus.NOT_FOUND))
        try:
            answer = page(Asked(self.headers.get("Accept", ""), query, host_of(self.headers.get("Host", ""))))
        except Exception:  # noqa: BLE001 - this is the edge
            _log.exception("bug in an HTTP page")
            answer = _plain(HTTPStatus.INTERNAL_SERVER_ERROR)
        return self._send(answer)

    do_HEAD = do_GET  # noqa: N815

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Refuse what the library cannot read or has no method for, without repeating any of it."""
        unknown_method = code == HTTPStatus.NOT_IMPLEMENTED
        self._send(_plain(HTTPStatus.METHOD_NOT_ALLOWED if unknown_method else HTTPStatus(code)))

    def _send(self, answer: Answer) -> None:
        self.send_response_only(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in {**_EVERY_HEADER, **answer.headers}.items():
            self.send_header(name, value)
        if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Keep silent: probes ask every few seconds."""
