"""Connections that reach no address they may not, and that another thread can cut.

Cutting ends whatever a connection waits for, TLS handshakes included: a source that is
stopped does it, and the watch, when a request takes too long in all. Knows no URLs.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator

from urllib3.connection import HTTPConnection, HTTPSConnection

from warmshelfd.sources.addresses import check_peer, connect
from warmshelfd.sources.limits import TimeLimits

_WATCH_LINGER_SECONDS = 5.0
"""The watch's thread ends when it has had nothing to watch for so long."""


class _Guarded(HTTPConnection):
    """What both kinds of connection do beyond urllib3's."""

    allow_private = False
    is_cut = False  # set once, by another thread, under _lock

    def guard(self, *, allow_private: bool) -> None:
        """Say what may be connected to; comes before the first request."""
        self.allow_private = allow_private
        self._lock = threading.Lock()
        # Another descriptor of the connection: cutting through it meddles with no TLS state. Guarded by _lock.
        self._handle: socket.socket | None = None

    def _new_conn(self) -> socket.socket:
        timeout = self.timeout if isinstance(self.timeout, (int, float)) else 0.0
        return connect(self.host, self.port, allow_private=self.allow_private, timeout_seconds=timeout, note=self._note)

    def connect(self) -> None:
        """Connect; then look once more at where to, whatever urllib3 did."""
        super().connect()
        check_peer(self.sock, self.host, allow_private=self.allow_private)

    def answer(self, limits: TimeLimits) -> http.client.HTTPResponse:
        """Return the standard library's answer, which reads into a buffer without a copy; urllib3's makes one."""
        sock = self.sock  # the library lets go of it where the server will close the connection
        sock.settimeout(limits.answer_seconds)
        response = http.client.HTTPConnection.getresponse(self)
        sock.settimeout(limits.stall_seconds)
        return response

    def cut(self) -> None:
        """End the connection under whoever uses it. For any thread; idempotent."""
        with self._lock:
            self.is_cut = True
            if self._handle is not None:
                with contextlib.suppress(OSError):  # it is not connected, or no longer
                    self._handle.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close both descriptors. Idempotent."""
        super().close()
        self._replace_handle(None)

    def _note(self, sock: socket.socket) -> None:
        self._replace_handle(sock.dup())
        if self.is_cut:
            raise ConnectionAbortedError("cut")

    def _replace_handle(self, handle: socket.socket | None) -> None:
        with self._lock:
            if self._handle is not None:
                self._handle.close()
            self._handle = handle


class PlainConnection(_Guarded):
    """A connection without TLS."""


class TlsConnection(_Guarded, HTTPSConnection):
    """A connection with TLS, whose certificate is verified."""


def open_connection(
    host: str, port: int, *, tls: ssl.SSLContext | None, allow_private: bool, limits: TimeLimits
) -> PlainConnection | TlsConnection:
    """Return a connection that is made at its first request."""
    connection: PlainConnection | TlsConnection
    if tls is None:
        connection = PlainConnection(host, port, timeout=limits.connect_seconds)
    else:
        connection = TlsConnection(
            host, port, timeout=limits.connect_seconds, ssl_context=tls, cert_reqs=ssl.CERT_REQUIRED
        )
    connection.guard(allow_private=allow_private)
    return connection


class Watch:
    """Cuts connections that have been used for too long: no socket's timeout sees those, each byte starts it anew."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards what follows
        self._ends: dict[_Guarded, float] = {}  # when each watched connection is cut, by the monotonic clock
        self._wakes_at = 0.0
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def limit(self, connection: PlainConnection | TlsConnection, seconds: float) -> Iterator[None]:
        """Cut the connection if the body takes longer."""
        self._add(connection, time.monotonic() + seconds)
        try:
            yield
        finally:
            with self._changed:
                self._ends.pop(connection, None)

    def _add(self, connection: PlainConnection | TlsConnection, end: float) -> None:
        with self._changed:
            self._ends[connection] = end
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="watch-sources", daemon=True)
                self._thread.start()
            elif end < self._wakes_at:
                self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for connection in [one for one, end in self._ends.items() if end <= now]:
                    del self._ends[connection]
                    connection.cut()
                is_idle = not self._ends
                self._wakes_at = min(self._ends.values(), default=now + _WATCH_LINGER_SECONDS)
                if not self._changed.wait(self._wakes_at - now) and is_idle and not self._ends:
                    self._thread = None
                    return
