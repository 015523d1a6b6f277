"""What a connection is opened with: TLS, a token, or neither; for which tenant; and whose Unix socket is trusted.

Files are named here and read when they are used, so that a renewed one counts. Knows no call,
and shows no token: not in an error, nor when printed.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc

from warmshelf._handshake import hint
from warmshelf.errors import DaemonUnreachable, InvalidRequest

DAEMON_UID_VARIABLE = "WARMSHELF_DAEMON_UID"
"""A user besides oneself and root whose Unix socket is trusted."""
CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE = "WARMSHELF_TLS_CA", "WARMSHELF_TLS_CERT", "WARMSHELF_TLS_KEY"
TOKEN_VARIABLE = "WARMSHELF_TOKEN_FILE"  # noqa: S105 - names a file

TENANT_VARIABLE = "WARMSHELF_TENANT"
TENANT_METADATA_KEY = "warmshelf-tenant"
"""What a call names a tenant with, where an operator of none calls for one."""

TOKEN_BYTES_MAX = 8 << 10
"""Longest token: the daemon takes 16 KiB of metadata, and a wrong path may be a disk."""

_TENANT = re.compile(r"[a-z0-9-]{0,63}")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750

Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Tls:
    """How a daemon is known over TLS, and this program to it. Files of PEM.

    Attributes:
        ca: authorities that may vouch for the daemon; "" for the public ones that gRPC knows.
        cert: this program's certificate with its chain, where the daemon asks for one.
        key: its key.
        server_name: the name that the daemon's certificate must have; "" for the address's host.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    server_name: str = ""

    def credentials(self) -> grpc.ChannelCredentials:
        """Return what gRPC opens a channel with; reads the files."""
        return grpc.ssl_channel_credentials(*(_read(path) if path else None for path in (self.ca, self.key, self.cert)))

    def stamp(self) -> Stamp:
        """Return what changes when one of the files does."""
        return tuple(_stamp(path) for path in (self.ca, self.cert, self.key) if path)

    def is_whole(self) -> bool:
        """Say whether the files can be read, and the key is the certificate's."""
        if not (self.cert and self.key):
            return True
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(self.cert, self.key, lambda: "")
        except (OSError, ValueError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class Security:
    """What connections to one daemon are opened with. Without TLS, TCP is plain."""

    tls: Tls | grpc.ChannelCredentials | None = None
    token: Callable[[], str] | None = field(default=None, repr=False)
    tenant: str = ""

    def channel(self, target: str, options: tuple[tuple[str, object], ...], *, is_unix: bool) -> grpc.Channel:
        """Return a channel, not connected yet."""
        channel = self._channel(target, options, is_unix=is_unix)
        return grpc.intercept_channel(channel, _ForTenant(self.tenant)) if self.tenant else channel

    def _channel(self, target: str, options: tuple[tuple[str, object], ...], *, is_unix: bool) -> grpc.Channel:
        if is_unix:
            local = self.token and grpc.local_channel_credentials(grpc.LocalConnectionType.UDS)
            credentials = local or None
        else:
            credentials = self.tls.credentials() if isinstance(self.tls, Tls) else self.tls
        if isinstance(self.tls, Tls) and self.tls.server_name and not is_unix:
            options += (("grpc.ssl_target_name_override", self.tls.server_name),)
        if credentials is None:
            return grpc.insecure_channel(target, options=options)
        if self.token is not None:
            credentials = grpc.composite_channel_credentials(
                credentials, grpc.metadata_call_credentials(_Bearer(self.token))
            )
        return grpc.secure_channel(target, credentials, options=options)

    def hint(self, said: str) -> str:
        """Return what may be wrong with a connection over TCP of which gRPC says this; "" if nobody can tell."""
        has_cert = not isinstance(self.tls, Tls) or bool(self.tls.cert)  # of a caller's own credentials nobody knows
        return hint(said, has_tls=self.tls is not None, has_cert=has_cert)

    def stamp(self) -> Stamp:
        """Return what changes when a file does that a channel is opened with; a token is read for each call."""
        return self.tls.stamp() if isinstance(self.tls, Tls) else ()

    def is_whole(self) -> bool:
        """Say whether a new connection could be opened with what the files hold now."""
        return self.tls.is_whole() if isinstance(self.tls, Tls) else True


PLAIN = Security()


def choose(
    tls: Tls | grpc.ChannelCredentials | None,
    token: str | os.PathLike[str] | None,
    tenant: str | None = None,
    *,
    is_unix: bool,
) -> Security:
    """Return what arguments and environment mean for an address.

    Raises:
        InvalidRequest: they contradict each other or the address.
    """
    named = os.environ.get(TENANT_VARIABLE, "") if tenant is None else tenant
    if not _TENANT.fullmatch(named):
        raise InvalidRequest(f"a tenant's name has small letters, digits and -: {named[:64]!a}", field="tenant")
    if tls is not None and is_unix:
        raise InvalidRequest("the address is a Unix socket: no TLS there")
    chosen = None if is_unix else tls or _of_environment()
    if isinstance(chosen, Tls) and bool(chosen.cert) != bool(chosen.key):
        raise InvalidRequest("a certificate and its key go together")
    file = os.environ.get(TOKEN_VARIABLE, "")
    if token is None and not file:
        return Security(chosen, tenant=named)
    if chosen is None and not is_unix:
        raise InvalidRequest(
            f"a token is not sent over plain TCP, where others can read it: give --tls-ca (tls=) or {CA_VARIABLE}"
            + (f", or unset {TOKEN_VARIABLE}" if token is None else "")
        )
    return Security(chosen, _fixed(token) if isinstance(token, str) else _in_file(os.fspath(token or file)), named)


def _of_environment() -> Tls | None:
    files = [os.environ.get(variable, "") for variable in (CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE)]
    return Tls(*files) if any(files) else None


def _fixed(token: str) -> Callable[[], str]:
    checked = _checked(token, "the token")
    return lambda: checked


def _in_file(path: str) -> Callable[[], str]:
    return lambda: _checked(_read(path, TOKEN_BYTES_MAX).decode("ascii", "replace").strip(), path)


def _checked(token: str, where: str) -> str:
    if len(token) > TOKEN_BYTES_MAX or not _TOKEN.fullmatch(token):
        raise InvalidRequest(f"{where} is not of the letters, digits and ._~+/- that a bearer token has")
    return token


class _Details(NamedTuple):
    """What is known of a call before it is made, as gRPC wants it."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class _ForTenant(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
):
    """Names the tenant in each call. Who may not, is told so by the daemon."""

    def __init__(self, tenant: str) -> None:
        self._named = (TENANT_METADATA_KEY, tenant)

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(self._of_tenant(details), request)

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(self._of_tenant(details), request)

    def intercept_stream_unary(self, continuation: Any, details: Any, requests: Any) -> Any:
        return continuation(self._of_tenant(details), requests)

    def _of_tenant(self, details: Any) -> _Details:
        metadata = [*(details.metadata or ()), self._named]
        more = details.credentials, details.wait_for_ready, details.compression
        return _Details(details.method, details.timeout, metadata, *more)


class _Bearer(grpc.AuthMetadataPlugin):
    """Puts the token into each call. gRPC sees to it that it goes nowhere without TLS, but to a Unix socket."""

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def __call__(self, _context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        try:
            token = self._token()
        except InvalidRequest as error:
            callback((), error)
        else:
            callback((("authorization", f"Bearer {token}"),), None)


def _read(path: str, bytes_max: int = 1 << 20) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise InvalidRequest(f"{path!r} cannot be read: {error.strerror}", path=path) from error
    if len(data) > bytes_max:
        raise InvalidRequest(f"{path!r} is longer than {bytes_max} bytes", path=path)
    return data


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns


# --- whose socket ---------------------------------------------------------------


def check_owner(path: str) -> None:
    """Refuse a socket that another user has put there, or could.

    One that is not there fails by itself.

    Raises:
        DaemonUnreachable: it, or a directory that it is in, is somebody else's.
    """
    trusted = _trusted()
    for where, owner in _owners(path):
        if owner not in trusted:
            raise DaemonUnreachable(
                f"{where} belongs to user {owner}, neither to this user ({os.geteuid()}) nor to root: not trusted "
                f"({DAEMON_UID_VARIABLE}={owner} if that is the daemon's)",
                path=path,
                owner_number=owner,
            )


def _trusted() -> set[int]:
    named = os.environ.get(DAEMON_UID_VARIABLE, "")
    return {0, os.geteuid()} | ({int(named)} if named.isascii() and named.isdigit() else set())


def _owners(path: str) -> Iterator[tuple[str, int]]:
    try:
        yield f"socket {path}", os.stat(path).st_uid
        directory = os.path.dirname(path)
        yield f"the directory of socket {path}", os.stat(directory).st_uid
        if stat.S_ISLNK(os.lstat(path).st_mode):
            directory = os.path.dirname(os.path.realpath(path))
            yield f"the directory {directory} of socket {path}", os.stat(directory).st_uid
    except OSError:
        return
