"""From an address to a daemon: channel, deadlines, and what a failed call means.

Knows gRPC and how to persist until a daemon is back; knows no session, lease or
artifact. With ``warmshelfd``'s servicers it is the only user of the service stubs.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import grpc

from warmshelf._handshake import is_settled
from warmshelf._security import PLAIN, Security, check_owner
from warmshelf._status import STATUS_METADATA_KEY, error_from_status
from warmshelf._trace import trace_metadata
from warmshelf.errors import Cancelled, DaemonUnreachable, DeadlineExceeded, InvalidRequest, WarmshelfError
from warmshelf.v1 import (
    alias_pb2_grpc,
    capabilities_pb2_grpc,
    catalog_pb2_grpc,
    lease_pb2_grpc,
    push_pb2_grpc,
    residency_pb2_grpc,
    transfer_pb2,
    transfer_pb2_grpc,
)

ADDRESS_VARIABLE = "WARMSHELF_ADDRESS"
SOCKET_PATH_BYTES_MAX = 107
"""Longest path of a Unix socket; the kernel's ``sun_path`` has 108 bytes with the final NUL."""
TIMEOUT_SECONDS_MAX = 7 * 24 * 3600.0
"""Longest time a call may be given, so that every call ends."""
FIRST_CONTACT_SECONDS = 5.0
"""How long to try an address that has never answered. One that has is tried until the deadline."""
PAUSE_SECONDS = (0.05, 1.0)
"""First and longest pause between two tries; the channel itself connects anew at least every 2 s."""

_PORT_MAX = 65535
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(\d{1,5})")

_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.http2.bdp_probe", 0),  # or the window grows to gigabytes while a reader is slow
    ("grpc.use_local_subchannel_pool", 1),  # one connection for each Shelf: a session ends with its own
    ("grpc.enable_http_proxy", 0),  # a proxy of the environment is for the web, not for a neighbour
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),  # a daemon long away is found again within seconds
    ("grpc.min_reconnect_backoff_ms", 5000),  # the time one attempt to connect may take
)
_TCP_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),  # a session is silent for hours
)

_T = TypeVar("_T")


# --- addresses ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Address:
    """Where a daemon listens.

    Attributes:
        text: as given.
        target: as gRPC wants it.
        socket_path: of the Unix socket; "" for TCP.
    """

    text: str
    target: str
    socket_path: str = ""


def default_address() -> str:
    """Return WARMSHELF_ADDRESS, or else where this user's daemon listens by default."""
    chosen = os.environ.get(ADDRESS_VARIABLE)
    if chosen:
        return chosen
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    directory = f"{runtime}/warmshelf" if runtime else f"/tmp/warmshelf-{os.getuid()}"  # noqa: S108 - its owner is checked
    return f"unix://{directory}/api.sock"


def parse_address(text: str) -> Address:
    """Return the address behind ``unix:///path`` or ``HOST:PORT``.

    Raises:
        InvalidRequest: it is neither.
    """
    if not isinstance(text, str):
        raise InvalidRequest(f"an address is a string, not {type(text).__name__}")
    if text.startswith("unix:"):
        return _unix_address(text)
    match = _HOST_PORT.fullmatch(text)
    if not match or not 0 < int(match[2]) <= _PORT_MAX:
        raise InvalidRequest(f"address {text!r} is neither unix:///PATH nor HOST:PORT", address=text)
    return Address(text, f"dns:///{text}")


def _unix_address(text: str) -> Address:
    path = text.removeprefix("unix:")
    path = path.removeprefix("//") if path.startswith("///") else path
    if not path.startswith("/") or path.startswith("//"):
        raise InvalidRequest(f"address {text!r} has no absolute path: unix:///PATH", address=text)
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_BYTES_MAX:
        raise InvalidRequest(
            f"socket path {path!r} has {length} bytes, the kernel takes at most {SOCKET_PATH_BYTES_MAX}",
            path_bytes=length,
            path_bytes_max=SOCKET_PATH_BYTES_MAX,
        )
    return Address(text, f"unix:{quote(path)}", path)


# --- deadlines ----------------------------------------------------------------


class Deadline:
    """A moment by which a call, with all that belongs to it, must have ended."""

    __slots__ = ("_end_seconds", "timeout_seconds")

    def __init__(self, timeout_seconds: float) -> None:
        if isinstance(timeout_seconds, bool) or not isinstance(timeout_seconds, (int, float)):
            raise InvalidRequest(f"a timeout is a number of seconds, not {timeout_seconds!r}")
        if not 0 < timeout_seconds <= TIMEOUT_SECONDS_MAX:
            raise InvalidRequest(
                f"timeout of {timeout_seconds} seconds is not above 0 and at most {TIMEOUT_SECONDS_MAX:.0f}",
                timeout_seconds=timeout_seconds,
                timeout_seconds_max=TIMEOUT_SECONDS_MAX,
            )
        self.timeout_seconds = timeout_seconds
        self._end_seconds = time.monotonic() + timeout_seconds

    def left(self) -> float:
        """Return the seconds left, above 0.

        Raises:
            DeadlineExceeded: there are none.
        """
        left = self._end_seconds - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(
                f"not done within {self.timeout_seconds:g} s", timeout_seconds=float(self.timeout_seconds)
            )
        return left

    def pause(self, seconds: float) -> bool:
        """Sleep about that long, spread so that many who wait do not come back at once; False: no time for it."""
        seconds *= random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, hides nothing
        if time.monotonic() + seconds >= self._end_seconds:
            return False
        time.sleep(seconds)
        return True


# --- connections --------------------------------------------------------------

_first_pid: int | None = None
"""The process that used gRPC first here. Written once, at the first channel; a forked child inherits it."""


class Connection:
    """A channel to one daemon, for one process, and the stubs on it.

    ``_answered`` and ``_closed`` turn true once and stay; a race on them costs a few seconds of patience,
    or the clearer of two texts.
    """

    def __init__(self, address: Address, security: Security = PLAIN) -> None:
        global _first_pid  # noqa: PLW0603 - a fact about the process, not about this object
        _first_pid = _first_pid or os.getpid()
        self.address = address
        if _first_pid != os.getpid():
            raise DaemonUnreachable(
                f"no connection to {address.text}: this process was forked from one that used gRPC, whose threads and "
                "locks do not live on in a child; start workers by spawn or exec, or connect only after the fork",
                address=address.text,
            )
        self._security = security
        self._stamp = security.stamp()
        self._channel = _open_channel(address, security)
        self._answered = False
        self._closed = False
        self.aliases: Any = alias_pb2_grpc.AliasServiceStub(self._channel)
        self.catalog: Any = catalog_pb2_grpc.CatalogServiceStub(self._channel)
        self.lease: Any = lease_pb2_grpc.LeaseServiceStub(self._channel)
        self.transfer: Any = transfer_pb2_grpc.TransferServiceStub(self._channel)
        self.residency: Any = residency_pb2_grpc.ResidencyServiceStub(self._channel)
        self.push: Any = push_pb2_grpc.PushServiceStub(self._channel)
        self.capabilities: Any = capabilities_pb2_grpc.CapabilitiesServiceStub(self._channel)
        self.read_segment: Any = self._channel.unary_stream(  # chunks stay bytes: see _frame.parse_frame
            "/warmshelf.v1.TransferService/ReadSegment",
            request_serializer=transfer_pb2.ReadSegmentRequest.SerializeToString,
            response_deserializer=None,
        )
        self.read_tensors: Any = self._channel.unary_stream(
            "/warmshelf.v1.TransferService/ReadTensors",
            request_serializer=transfer_pb2.ReadTensorsRequest.SerializeToString,
            response_deserializer=None,
        )

    def unary(self, method: Any, request: Any, deadline: Deadline) -> Any:
        """Return the method's answer, trying again while the daemon cannot be reached."""
        traced = trace_metadata()
        return self.persist(lambda: method(request, timeout=deadline.left(), metadata=traced), deadline)

    def persist(self, attempt: Callable[[], _T], deadline: Deadline) -> _T:
        """Return what the attempt returns, trying again while the daemon cannot be reached.

        A daemon that restarts is so waited for. An attempt may have reached the daemon
        and lost only the answer: every call of warmshelf may be repeated.
        """
        patience = Deadline(min(deadline.timeout_seconds, FIRST_CONTACT_SECONDS))
        pause, pause_max = PAUSE_SECONDS
        unreached: DaemonUnreachable | None = None
        began = time.monotonic()
        while True:
            self.check_daemon()  # outside the try: patience changes no owner
            try:
                return self._once(attempt)
            except DaemonUnreachable as error:
                if not self._answered and is_settled(error.message, time.monotonic() - began):
                    raise
                if not (deadline if self._answered else patience).pause(pause):
                    raise
                unreached = error
            except DeadlineExceeded:
                if unreached is None:
                    raise
                raise unreached from None  # the last moments before the deadline: it was not there all the time
            pause = min(2 * pause, pause_max)

    def once(self, attempt: Callable[[], _T]) -> _T:
        """Return what the attempt returns, and raise the typed error where gRPC raises its own."""
        self.check_daemon()
        return self._once(attempt)

    def check_daemon(self) -> None:
        """See whose the socket is before anything is sent: gRPC connects anew by itself.

        Raises:
            DaemonUnreachable: it is not trusted.
        """
        if self.address.socket_path:
            check_owner(self.address.socket_path)

    @property
    def is_renewed(self) -> bool:
        """Whether a certificate was renewed since this connection was made, which goes on with the old one.

        Not while only one of its two files is: that pair would open nothing.
        """
        return self._stamp != self._security.stamp() and self._security.is_whole()

    def _once(self, attempt: Callable[[], _T]) -> _T:
        try:
            result = attempt()
        except grpc.RpcError as error:
            typed = self.typed_error(error)
            self._answered |= not isinstance(typed, DaemonUnreachable | DeadlineExceeded)
            raise typed from None  # it says all that gRPC said
        except ValueError as error:  # what gRPC raises where a channel is closed
            if self._closed:
                raise Cancelled("the shelf was closed meanwhile") from error
            raise
        self._answered = True
        return result

    def typed_error(self, error: grpc.RpcError) -> WarmshelfError:
        """Return the error of warmshelf that a failed call means."""
        call: Any = error  # what gRPC raises is the call too, which its types do not say
        trailing = dict(call.trailing_metadata() or ())
        found = error_from_status(call.code().name, call.details() or "", trailing.get(STATUS_METADATA_KEY))
        is_ours = STATUS_METADATA_KEY in trailing or self._closed or found.message.startswith(_BY_US)
        if is_ours or not isinstance(found, DaemonUnreachable | DeadlineExceeded | Cancelled):
            return found
        where = self.address.text
        if isinstance(found, Cancelled):  # by a daemon that ends: what this process cancels is closed, or says so
            return DaemonUnreachable(f"the daemon at {where} ended the call", address=where)
        if isinstance(found, DaemonUnreachable):
            hint = "" if self.address.socket_path else self._security.hint(found.message)
            text = f"{hint} ({found.message})" if hint else found.message
            return DaemonUnreachable(f"no daemon answers at {where}: {text}", address=where)
        return DeadlineExceeded(f"the call to {where} did not end before its deadline", address=where)

    def close(self) -> None:
        """Close the channel; calls under way end as Cancelled."""
        self._closed = True
        self._channel.close()


_BY_US = "Locally cancelled"
"""Begins what gRPC says of a call that this process cancelled."""


def _open_channel(address: Address, security: Security) -> grpc.Channel:
    is_unix = bool(address.socket_path)
    return security.channel(address.target, _OPTIONS if is_unix else _OPTIONS + _TCP_OPTIONS, is_unix=is_unix)
