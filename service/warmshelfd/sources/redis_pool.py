"""The connections of one open source to its Redis server, and trying again when one breaks.

A connection is made when a thread wants one and none is free, is lent to one piece of
work at a time, and is closed after any failure: what would have been read from it
belongs to nobody. Knows how to log in; knows no keys.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from warmshelf.errors import InvalidConfig, SourceUnavailable
from warmshelf.redis_uri import RedisUri, parse_prefix
from warmshelfd.redis_wire import Command, Patience, RedisAwayError, RedisRefusedError, RedisWire
from warmshelfd.sources.retrying import RetryLimits, TryAgain, check_stopped, retried
from warmshelfd.sources.settings import SourceSettings, read_secret

T = TypeVar("T")

_WAIT_FIRST_SECONDS, _WAIT_MAX_SECONDS = 0.05, 1.0
"""Between two tries: a server that fails over is back within seconds."""

_PASSING = frozenset({"LOADING", "BUSY", "TRYAGAIN", "MASTERDOWN", "CLUSTERDOWN"})
"""Errors of a server that soon works again."""

_LOGIN = frozenset({"NOAUTH", "WRONGPASS", "NOPERM"})
"""Errors that say that credentials are wrong, missing or not enough."""

_MOVED = frozenset({"MOVED", "ASK", "CROSSSLOT"})
"""Errors of a node of a cluster that does not hold the key."""

_OK = b"OK"


@dataclass(frozen=True)
class Access:
    """How to log in at a server. Never shown: ``password`` is the secret itself."""

    username: str = ""
    password: bytes = field(default=b"", repr=False)
    ca_file: str | None = None

    @classmethod
    def of(cls, settings: SourceSettings | None) -> Access:
        """Return what the operator says, with secrets as they are now.

        Raises:
            InvalidConfig: a secret cannot be read, or there is a user and no password.
        """
        if settings is None:
            return cls()
        if settings.username and not settings.password:
            raise InvalidConfig(f"the source table of {settings.prefix} has a username and no password")
        password = read_secret(settings.password) if settings.password else b""
        return cls(settings.username or "", password, settings.ca_file)


def settings_of(scheme: str, settings: Iterable[SourceSettings]) -> list[SourceSettings]:
    """Return those of one scheme, with their prefixes in the one spelling.

    Raises:
        InvalidSpec: a prefix is none.
    """
    return [
        one.model_copy(update={"prefix": parse_prefix(one.prefix).path})
        for one in settings
        if one.prefix.startswith(f"{scheme}://")
    ]


class RedisPool:
    """The connections to the server of one URI. May be used by several threads."""

    def __init__(self, uri: RedisUri, access: Access, patience: Patience) -> None:
        self._uri = uri
        self._access = access
        self._patience = patience
        self._stopped = threading.Event()
        self._lock = threading.Lock()  # guards the three below
        self._busy: set[RedisWire] = set()
        self._free: list[RedisWire] = []
        self._closed = False

    def run(self, work: Callable[[RedisWire], T]) -> T:
        """Return what the work returns, which is done again from its beginning if a connection breaks.

        Raises:
            SourceUnavailable: the server stays away, or refuses.
            RedisRefusedError: with code WRONGTYPE: that is for the work's owner to say.
        """
        patience = self._patience
        limits = RetryLimits(patience.attempts, patience.retry_seconds, _WAIT_FIRST_SECONDS, _WAIT_MAX_SECONDS)
        return retried(lambda: self._attempt(work), limits, self._stopped)

    def stop(self) -> None:
        """End what is under way soon, and begin nothing more."""
        self._stopped.set()
        with self._lock:
            busy = list(self._busy)
        for wire in busy:
            wire.cut()

    def close(self) -> None:
        """Close every connection. Idempotent."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
        for wire in free:
            wire.close()

    def _attempt(self, work: Callable[[RedisWire], T]) -> T:
        try:
            return self._once(work)
        except RedisAwayError as error:
            check_stopped(self._stopped)
            raise TryAgain(self._unavailable(str(error))) from None
        except RedisRefusedError as error:
            if error.code == "WRONGTYPE":
                raise
            refusal = self._unavailable(_meaning(error.code), error.code)
            if error.code in _PASSING:
                raise TryAgain(refusal) from None
            raise refusal from None

    def _once(self, work: Callable[[RedisWire], T]) -> T:
        wire = self._take() or self._connect()
        try:
            with self._lock:
                self._busy.add(wire)
            check_stopped(self._stopped)  # after the wire can be seen by ``stop``
            wire.allow(self._patience.work_seconds)
            result = work(wire)
        except BaseException:
            with self._lock:
                self._busy.discard(wire)
            wire.close()
            raise
        self._give(wire)
        return result

    def _take(self) -> RedisWire | None:
        with self._lock:
            return self._free.pop() if self._free else None

    def _give(self, wire: RedisWire) -> None:
        with self._lock:
            self._busy.discard(wire)
            if not self._closed:
                self._free.append(wire)
                return
        wire.close()

    # --- connecting ---------------------------------------------------------

    def _connect(self) -> RedisWire:
        sock = self._socket()
        wire = RedisWire(sock, self._patience.silence_seconds)
        try:
            wire.allow(self._patience.connect_seconds)
            self._log_in(wire)
        except BaseException:
            wire.close()
            raise
        return wire

    def _socket(self) -> socket.socket:
        host = self._uri.host.strip("[]")
        try:
            sock = socket.create_connection((host, self._uri.port), self._patience.connect_seconds)
        except OSError as error:
            raise RedisAwayError(f"cannot be reached: {error.strerror or type(error).__name__}") from None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._encrypted(sock, host) if self._uri.is_tls else sock
        except BaseException:
            sock.close()
            raise

    def _encrypted(self, sock: socket.socket, host: str) -> socket.socket:
        ca_file = self._access.ca_file
        try:
            context = ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            raise InvalidConfig(f"the ca_file {ca_file!r} cannot be used: {type(error).__name__}") from None
        try:
            return context.wrap_socket(sock, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise self._unavailable(f"has a certificate that is not trusted: {error.verify_message}") from None
        except OSError as error:
            raise RedisAwayError(f"does not speak TLS: {error.strerror or type(error).__name__}") from None

    def _log_in(self, wire: RedisWire) -> None:
        commands: list[Command] = []
        if self._access.password:
            user = [self._access.username.encode()] if self._access.username else []
            commands.append([b"AUTH", *user, self._access.password])
        if self._uri.db:
            commands.append([b"SELECT", b"%d" % self._uri.db])
        wire.send(commands)
        for command in commands:
            try:
                answer = wire.answer()
            except RedisRefusedError as error:
                if error.code != "ERR":
                    raise
                what = "login" if command[0] == b"AUTH" else f"database {self._uri.db}"
                raise self._unavailable(f"refuses the {what}") from None
            if answer != _OK:
                raise RedisAwayError("answered something else than was asked")

    def _unavailable(self, what: str, code: str = "") -> SourceUnavailable:
        details = {"code": code} if code else {}
        server = f"{self._uri.scheme}://{self._uri.host}:{self._uri.port}"
        return SourceUnavailable(f"{self._uri}: the server {what}", uri=str(self._uri), server=server, **details)


def _meaning(code: str) -> str:
    if code in _LOGIN:
        return f"refuses the credentials that the configuration has for it ({code})"
    if code in _MOVED:
        return f"is a node of a cluster that does not hold the key ({code}); name the one that does"
    return f"refuses to read ({code})"
