"""Servers that are no Redis, each for one way in which a peer can be wrong."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

DRIP_SECONDS = 0.05


class FaultyServer:
    """Accepts connections and lets ``answer`` do what it likes with each, once something was asked."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.connections = 0  # only the accepting thread adds
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> FaultyServer:  # noqa: PYI034
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stopped.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def uri(self, name: str) -> str:
        return f"redis://127.0.0.1:{self.port}/0/{name}"

    def answer(self, connection: socket.socket) -> None:
        raise NotImplementedError

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection, suppress(OSError):
                connection.recv(1 << 16)
                self.answer(connection)


class Silent(FaultyServer):
    """Takes what it is asked, and says nothing."""

    def answer(self, connection: socket.socket) -> None:
        while not self.stopped.is_set() and connection.recv(1 << 16):
            pass


class Closes(FaultyServer):
    """Closes every connection without a word."""

    def answer(self, connection: socket.socket) -> None:
        pass


class Says(FaultyServer):
    """Answers with these bytes, whatever it was asked, then waits."""

    def __init__(self, reply: bytes) -> None:
        super().__init__()
        self._reply = reply

    def answer(self, connection: socket.socket) -> None:
        connection.sendall(self._reply)
        while not self.stopped.is_set() and connection.recv(1 << 16):
            pass


class Drips(FaultyServer):
    """Begins a line and goes on with it, a byte at a time, for ever: never silent for long."""

    def answer(self, connection: socket.socket) -> None:
        while not self.stopped.is_set():
            connection.sendall(b"+")
            time.sleep(DRIP_SECONDS)


class Floods(FaultyServer):
    """Sends a line that never ends, as fast as it is taken."""

    def answer(self, connection: socket.socket) -> None:
        while not self.stopped.is_set():
            connection.sendall(b"+" * (1 << 16))
