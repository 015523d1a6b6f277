"""The daemon's addresses: two gRPC servers, one for Unix sockets and one for TCP, with TLS or without.

Two, because keepalive differs: on TCP a peer that vanished must be seen, on a
Unix socket the kernel tells, and a paused worker keeps its leases. gRPC itself
takes over a live socket path and shares TCP ports without a word, so a lock file
and ``so_reuseport=0`` see to it that an address has one daemon.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from warmshelf.errors import DaemonInUse, InvalidConfig
from warmshelfd.holders import describe, lock_holder, port_holder, put_up_signs
from warmshelfd.options import Listen

_SERVICES = (
    "warmshelf.v1.CatalogService",
    "warmshelf.v1.LeaseService",
    "warmshelf.v1.TransferService",
    "warmshelf.v1.CapabilitiesService",
    "warmshelf.v1.PushService",
    "warmshelf.v1.AliasService",
    "warmshelf.v1.ResidencyService",
)

_GRPC_LOGGER = "grpc._cython.cygrpc"
"""Under this name gRPC's servers log what they did not expect."""

_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Neither a link is followed, nor a pipe waited for."""

_COMMON_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", 4 << 20),
)


def _is_news(record: logging.LogRecord) -> bool:
    """Say whether what gRPC logs is worth a line: that a caller has gone while it was answered is not.

    Bytes that are no request, where our own guard does not see them, get a line and no traceback.
    """
    kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
    if kind == "DecodeError":
        record.exc_info = None
    return kind != "ExecuteBatchError"


@dataclass(frozen=True, slots=True)
class Transport:
    """Limits of the servers, in gRPC's words.

    ``message_bytes_max`` and ``call_metadata_bytes_max`` bound a request, ``calls_per_connection_max`` how many of one
    connection are answered at once; ``keepalive_seconds`` and
    ``keepalive_timeout_seconds`` are how often a silent TCP peer is asked, and how long
    it may take to answer.
    """

    message_bytes_max: int
    call_metadata_bytes_max: int
    calls_per_connection_max: int
    keepalive_seconds: float
    keepalive_timeout_seconds: float


class Servers:
    """The gRPC servers of one daemon."""

    def __init__(
        self,
        listens: Sequence[Listen],
        transport: Transport,
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        add_services: Callable[[grpc.aio.Server], None],
        credentials: Callable[[], grpc.ServerCredentials] | None,
    ) -> None:
        """``credentials`` makes what a TCP address is opened with; without it, TCP is plain."""
        self._credentials = credentials
        logging.getLogger(_GRPC_LOGGER).addFilter(_is_news)
        self.health = health.aio.HealthServicer()
        self.addresses: list[str] = []
        self._servers: list[grpc.aio.Server] = []
        self._locks: list[_SocketLock] = []
        self._signs: list[socket.socket] = []  # that the TCP ports are ours, as long as they are
        for is_unix in (True, False):
            mine = [listen for listen in listens if (listen.kind == "unix") is is_unix]
            if mine:
                options = (*_COMMON_OPTIONS, *_limits(transport), *(() if is_unix else _keepalive(transport)))
                server = grpc.aio.server(interceptors=list(interceptors), options=options)
                add_services(server)
                health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
                reflection.enable_server_reflection((*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
                self._servers.append(server)
                for listen in mine:
                    self._bind(server, listen)

    def _bind(self, server: grpc.aio.Server, listen: Listen) -> None:
        if listen.kind == "unix":
            self._locks.append(_SocketLock(listen.path))
        old = os.umask(0o177)  # the socket is its owner's alone
        try:
            if listen.kind == "tcp" and self._credentials is not None:
                port = server.add_secure_port(_target(listen), self._credentials())
            else:
                port = server.add_insecure_port(_target(listen))
        except RuntimeError as error:
            raise _why_not(listen) from error
        finally:
            os.umask(old)
        if listen.kind == "tcp":
            self._signs += put_up_signs(port)
        self.addresses.append(f"unix://{listen.path}" if listen.kind == "unix" else f"{_bracket(listen.host)}:{port}")

    async def start(self) -> None:
        """Accept calls, and say so in the health service."""
        for server in self._servers:
            await server.start()
        await self.set_serving(True)

    async def set_serving(self, serving: bool) -> None:
        """Set the health of the whole and of each service."""
        status = health_pb2.HealthCheckResponse.ServingStatus
        for name in ("", *_SERVICES):
            await self.health.set(name, status.SERVING if serving else status.NOT_SERVING)

    async def stop(self, grace_seconds: float) -> None:
        """Stop accepting calls, give those under way their grace, and free the addresses."""
        for server in self._servers:
            await server.stop(grace_seconds)
        for lock in self._locks:
            lock.release()
        for sign in self._signs:
            sign.close()


def _limits(transport: Transport) -> tuple[tuple[str, int], ...]:
    return (
        ("grpc.max_receive_message_length", transport.message_bytes_max),
        ("grpc.max_metadata_size", transport.call_metadata_bytes_max),
        # Between the two gRPC refuses by chance: the more, the more often.
        ("grpc.absolute_max_metadata_size", transport.call_metadata_bytes_max),
        ("grpc.max_concurrent_streams", transport.calls_per_connection_max),
    )


def _keepalive(transport: Transport) -> tuple[tuple[str, int], ...]:
    return (
        ("grpc.keepalive_time_ms", int(transport.keepalive_seconds * 1000)),
        ("grpc.keepalive_timeout_ms", int(transport.keepalive_timeout_seconds * 1000)),
        ("grpc.http2.ping_timeout_ms", int(transport.keepalive_timeout_seconds * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    )


def _why_not(listen: Listen) -> DaemonInUse | InvalidConfig:
    """Return why an address cannot be listened on, which gRPC does not say: try it without gRPC."""
    what = f"cannot listen on {listen}"
    try:
        if listen.kind == "unix":
            family, address = socket.AF_UNIX, listen.path
        else:
            found = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, address = found[0][0], found[0][4]  # type: ignore[assignment]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except OSError as error:  # also what getaddrinfo raises
        if error.errno == errno.EADDRINUSE:
            pid, words = port_holder(listen.port)
            return DaemonInUse(f"{what}: {words} does", address=str(listen), pid_number=pid)
        return InvalidConfig(f"{what}: {error.strerror}", option="listen", address=str(listen))
    return InvalidConfig(f"{what}: gRPC refuses it", option="listen", address=str(listen))


def _target(listen: Listen) -> str:
    return f"unix:{listen.path}" if listen.kind == "unix" else f"{_bracket(listen.host)}:{listen.port}"


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _check_owner(directory: str, path: str) -> None:
    """Refuse a directory whose owner may put another socket in the place of ours."""
    owner = os.stat(directory).st_uid
    if owner not in {0, os.geteuid()}:
        raise InvalidConfig(
            f"cannot listen on unix://{path}: its directory belongs to user {owner}, who could replace the socket",
            path=path,
            owner_number=owner,
        )


class _SocketLock:
    """The right to a socket's path: a lock on a file beside it, which a dead daemon cannot hold."""

    def __init__(self, path: str) -> None:
        self._path = path
        directory = os.path.dirname(path)
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            _check_owner(directory, path)
            self._fd = os.open(path + ".lock", _LOCK_FLAGS, 0o600)
        except OSError as error:
            raise InvalidConfig(f"cannot listen on unix://{path}: {error.strerror}", path=path) from error
        try:
            self._take()
        except BaseException:
            os.close(self._fd)
            raise

    def _take(self) -> None:
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            raise InvalidConfig(f"{self._path}.lock is no regular file", path=self._path)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = lock_holder(os.fstat(self._fd))
            text = f"unix://{self._path} is served by {describe(pid)}"
            raise DaemonInUse(text, path=self._path, pid_number=pid) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        self._remove_socket()  # a dead daemon's leftover: the lock proves that nobody serves it

    def _remove_socket(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(self._path).st_mode):
                raise InvalidConfig(f"cannot listen on unix://{self._path}: something else is there", path=self._path)
            os.unlink(self._path)

    def release(self) -> None:
        """Remove the socket and let others have the path."""
        with contextlib.suppress(InvalidConfig):  # somebody put something else there: it is not ours to remove
            self._remove_socket()
        os.close(self._fd)
