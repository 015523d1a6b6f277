"""How the values of options are written: sizes, shares and addresses.

Text in, values out; a value that is one already stays as it is. Knows no option by
name and looks at nothing outside. What cannot be read is a ``ValueError`` that says
what is right.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from warmshelf._sizes import parse_size

SOCKET_PATH_BYTES_MAX = 107
"""Longest path of a Unix socket: the kernel's ``sun_path`` has 108 bytes, the last a NUL."""

_INT64_MAX = (1 << 63) - 1
_PERCENT_MAX = 100
_PORT_MAX = 65535
_COUNT = re.compile(r"[0-9]{1,19}")
_PERCENT = re.compile(r"([0-9]{1,3})\s*%")
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_ADVERTISED = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9.]+)(?::([0-9]{1,5}))?")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Share:
    """A number of bytes, or so many percent of a whole that is known later."""

    size_bytes: int = 0
    percent: int = 0

    def of(self, whole_bytes: int) -> int:
        """Return the bytes that are meant, given the whole."""
        return whole_bytes * self.percent // 100 if self.percent else self.size_bytes


@dataclass(frozen=True, slots=True)
class Listen:
    """An address to listen on: ``path`` of a Unix socket, or ``host`` and ``port``.

    ``host`` is without brackets; ``port`` 0 lets the kernel choose.
    """

    kind: Literal["unix", "tcp"]
    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it. A name is taken for what it says: only ``localhost`` is."""
        try:
            return self.kind == "unix" or self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.kind == "unix":
            return f"unix://{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Advertised:
    """Where others reach this node: an IP address, and a port or 0 for the one that is listened on."""

    ip: str
    port: int = 0

    def at(self, port: int) -> str:
        """Return ``IP:PORT``, given the port that is listened on."""
        host = f"[{self.ip}]" if ":" in self.ip else self.ip
        return f"{host}:{self.port or port}"


def parse_advertised(value: object) -> Advertised:
    """Return the address that ``IP``, ``IP:PORT``, ``[IPv6]`` or ``[IPv6]:PORT`` means."""
    if isinstance(value, Advertised):
        return value
    match = _ADVERTISED.fullmatch(value) if isinstance(value, str) else None
    try:
        if match is not None and int(match[2] or 1) in range(1, _PORT_MAX + 1):
            ip = ipaddress.ip_address(match[1].strip("[]"))
            if not ip.is_unspecified and (ip.version == 6) == match[1].startswith("["):  # noqa: PLR2004
                return Advertised(str(ip), int(match[2] or 0))
    except ValueError:
        pass
    raise ValueError("it must be an IP address that others can connect to, or IP:PORT; IPv6 in brackets")


def parse_network(value: object) -> Network:
    """Return the network that ``10.0.0.0/8`` or a single address means."""
    if isinstance(value, (ipaddress.IPv4Network, ipaddress.IPv6Network)):
        return value
    try:
        return ipaddress.ip_network(str(value))
    except ValueError:
        raise ValueError("a network is an address with the length of its prefix, as in 10.0.0.0/8") from None


def parse_share(value: object) -> Share:
    """Return the share that ``20%`` or a size means."""
    if isinstance(value, Share):
        return value
    match = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return Share(size_bytes=parse_size(value))
    if int(match[1]) > _PERCENT_MAX:
        raise ValueError("a share is at most 100%")
    return Share(percent=int(match[1]))


def parse_count(value: object) -> int:
    """Return a whole number, given as one or as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _COUNT.fullmatch(value.strip()):
        return int(value)
    raise ValueError("it must be a whole number")


def parse_seconds(value: object) -> float:
    """Return seconds, given as a number or as text."""
    try:
        if isinstance(value, (int, float, str)) and not isinstance(value, bool) and math.isfinite(float(value)):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise ValueError("it must be a number of seconds")


def parse_listen(value: object) -> Listen:
    """Return the address that ``unix:///path`` or ``HOST:PORT`` means."""
    if isinstance(value, Listen):
        return value
    if not isinstance(value, str):
        raise ValueError("an address is text")  # noqa: TRY004 - a wrong value like any other
    if value.startswith("unix:"):
        return Listen("unix", path=_socket_path(value))
    host, colon, port = value.rpartition(":")
    if not colon or not host or not re.fullmatch("[0-9]{1,5}", port):
        raise ValueError("an address is unix:///ABSOLUTE/PATH or HOST:PORT; 0.0.0.0:PORT means every interface")
    if int(port) > _PORT_MAX:
        raise ValueError(f"port {port} is above {_PORT_MAX}")
    return Listen("tcp", host=_host(host), port=int(port))


def _socket_path(value: str) -> str:
    path = value.removeprefix("unix://")
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise ValueError("a socket is named by its absolute path, as in unix:///run/warmshelf/api.sock")
    size = len(os.fsencode(path))
    if size > SOCKET_PATH_BYTES_MAX:
        raise ValueError(f"the socket's path has {size} bytes, at most {SOCKET_PATH_BYTES_MAX} are allowed")
    return path


def _host(host: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise ValueError(f"{host} is no IPv6 address") from None
    if not _HOST.fullmatch(host):
        raise ValueError("the host is a name, an IPv4 address, or an IPv6 address in brackets as in [::1]:50051")
    return host
