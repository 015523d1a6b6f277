"""Connections to the Redis server that holds the registry now, found through Sentinels or a cluster if need be.

Every step has a short time. Knows how to log in; knows no record.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from warmshelf.errors import InvalidConfig
from warmshelfd.redis_wire import Command, RedisAwayError, RedisRefusedError, RedisWire, Reply
from warmshelfd.registry.redis_place import RedisPlace, Server

OPERATION_SECONDS = 0.5
"""What one exchange may take: a healthy server of the same site answers in a millisecond."""

_NAME_BYTES_MAX = 4096
"""Longest value in what Sentinels and cluster nodes tell of each other."""

TAG = b"{warmshelf}"
"""What keys begin with that belong to no tenant."""

Credentials = Callable[[], "tuple[str, bytes]"]
"""Returns the user, "" for the default one, and the password as it is now, empty for none."""


@dataclass(frozen=True)
class Link:
    """How the registry's server is reached. ``slot_key`` is any key of ours, to find it in a cluster.

    All keys begin with ``space``, of which each tenant has its own; what they have in braces puts them into one slot.
    """

    place: RedisPlace
    credentials: Credentials
    ca_file: str | None
    slot_key: bytes
    space: bytes = TAG

    def connect(self) -> RedisWire:
        """Return a new connection, logged in, to the server that takes writes.

        Raises:
            RedisAwayError: it cannot be reached or does not answer.
            RedisRefusedError: it refuses the login.
            InvalidConfig: the credentials cannot be read.
        """
        if self.place.kind == "sentinel":
            return self._open(self._any(self._ask_sentinel), self.place.db)
        if self.place.kind == "cluster":
            return self._open(self._any(self._ask_node), 0)
        return self._open(self.place.servers[0], self.place.db)

    def _any(self, ask: Callable[[Server], Server]) -> Server:
        """Return the first answer of those that may be asked."""
        fault: Exception = RedisAwayError("cannot be reached")
        for server in self.place.servers:
            try:
                return ask(server)
            except (RedisAwayError, RedisRefusedError) as error:
                fault = error
        raise fault

    def _ask_sentinel(self, server: Server) -> Server:
        wire = self._open(server, 0)
        try:
            (answer,) = exchange(
                wire, [[b"SENTINEL", b"get-master-addr-by-name", self.place.master.encode()]], _NAME_BYTES_MAX
            )
        finally:
            wire.close()
        if not isinstance(answer, list):
            raise RedisAwayError(f"is a Sentinel that knows no {self.place.master!r}")
        return _address(answer, server)

    def _ask_node(self, server: Server) -> Server:
        wire = self._open(server, 0)
        try:
            slot, ranges = exchange(wire, [[b"CLUSTER", b"KEYSLOT", self.slot_key], [b"CLUSTER", b"SLOTS"]], 4096)
        finally:
            wire.close()
        for one in ranges if isinstance(ranges, list) else []:
            match one:
                case [int(first), int(last), [*node], *_] if isinstance(slot, int) and first <= slot <= last:
                    return _address(node, server)
        raise RedisAwayError("is a cluster in which no node holds the registry's slot")

    def _open(self, server: Server, db: int) -> RedisWire:
        wire = RedisWire(self._socket(server), OPERATION_SECONDS)
        try:
            username, password = self.credentials()
            commands: list[Command] = [[b"PING"]]
            if db:
                commands.insert(0, [b"SELECT", b"%d" % db])
            if password:
                commands.insert(0, [b"AUTH", *([username.encode()] if username else []), password])
            exchange(wire, commands, _NAME_BYTES_MAX)
        except BaseException:
            wire.close()
            raise
        return wire

    def _socket(self, server: Server) -> socket.socket:
        try:
            sock = socket.create_connection(server, OPERATION_SECONDS)
        except OSError as error:
            raise RedisAwayError(f"cannot be reached: {error.strerror or type(error).__name__}") from None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._encrypted(sock, server[0]) if self.place.is_tls else sock
        except BaseException:
            sock.close()
            raise

    def _encrypted(self, sock: socket.socket, host: str) -> socket.socket:
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            raise InvalidConfig(f"registry_ca_file cannot be used: {type(error).__name__}") from None
        try:
            return context.wrap_socket(sock, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise RedisAwayError(f"has a certificate that is not trusted: {error.verify_message}") from None
        except OSError as error:
            raise RedisAwayError(f"does not speak TLS: {error.strerror or type(error).__name__}") from None


def space_of(tenant: str) -> bytes:
    """Return what the keys of a tenant begin with; "" is for what belongs to none."""
    return TAG + b":tenant:" + tenant.encode("ascii") if tenant else TAG


def exchange(wire: RedisWire, commands: Iterable[Command], value_bytes_max: int) -> list[Reply]:
    """Send commands and return their replies; a refusal is raised once all are read, so the connection stays good."""
    sent = list(commands)
    wire.allow(OPERATION_SECONDS)
    wire.send(sent)
    replies = []
    for _ in sent:
        replies.append(wire.reply(value_bytes_max))
        wire.allow(OPERATION_SECONDS)  # each has its own time
    for reply in replies:
        if isinstance(reply, RedisRefusedError):
            raise reply
    return replies


def _address(answer: Sequence[Reply], asked: Server) -> Server:
    match answer:
        case [bytes(host), (bytes() | int()) as port, *_] if str(int(port)).isdigit():
            return host.decode("ascii", "replace") or asked[0], int(port)
    raise RedisAwayError("does not say where the registry's server is")
