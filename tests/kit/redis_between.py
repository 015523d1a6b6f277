"""Stands between a client and a Redis server, sees which commands come on which connection, and may cut one."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class CutsAtFirst:
    """Passes everything on, but cuts the connection on which a command comes for the first time, unseen by the server.

    ``seen`` has, for each connection, which of the watched commands came on it.
    """

    def __init__(self, target: tuple[str, int], command: str, watched: tuple[str, ...]) -> None:
        self._target = target
        self._cut = command.encode()
        self._watched = tuple(word.encode() for word in watched)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.seen: list[list[str]] = []
        self._has_cut = False  # the listener's thread and those of connections; one connection is under way at a time
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> CutsAtFirst:  # noqa: PYI034
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (self._listener, *self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(10)

    def _run(self, function: object, *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                self.seen.append([])
                self._run(self._there, client, server, self.seen[-1])
                self._run(_pass, server, client)

    def _there(self, client: socket.socket, server: socket.socket, seen: list[str]) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                seen += [word.decode() for word in self._watched if word + b"\r\n" in data]
                if self._cut + b"\r\n" in data and not self._has_cut:
                    self._has_cut = True
                    break
                server.sendall(data)
        for sock in (client, server):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def _pass(server: socket.socket, client: socket.socket) -> None:
    with suppress(OSError):
        while data := server.recv(1 << 16):
            client.sendall(data)
