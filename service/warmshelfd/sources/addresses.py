"""Which network addresses are public, and connecting to those only.

A name is looked up once, each address is judged, and the connection is made to an
address that was judged: nothing can answer otherwise in between. What the socket says
it is connected to is judged again. Knows no protocol above TCP.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence

from warmshelf.errors import SourceNotAllowed

_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""Where networks without IPv4 show it: the last four bytes are judged."""

_NOT_PUBLIC_V4 = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # carriers' NAT; a cloud's metadata is at 100.100.100.200
        "127.0.0.0/8",
        "168.63.129.16/32",  # a cloud's host, from inside
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",  # multicast, reserved, broadcast
    )
)
_NOT_PUBLIC_V6 = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # protocols' own, also Teredo, which hides an IPv4 address
        "2001:db8::/32",
        "2002::/16",  # 6to4, which hides an IPv4 address
        "3fff::/20",
    )
)

Found = Sequence[tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]]
"""What ``socket.getaddrinfo`` returns."""


def is_public(address: str) -> bool:
    """Say whether a numeric address is of the public internet. The lists are our own: Python's differ by release."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv4Address):
        return not any(ip in network for network in _NOT_PUBLIC_V4)
    if ip.ipv4_mapped is not None:
        return is_public(str(ip.ipv4_mapped))
    if ip in _NAT64:
        return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
    return ip in _PUBLIC_V6 and not any(ip in network for network in _NOT_PUBLIC_V6)


def connect(
    host: str, port: int, *, allow_private: bool, timeout_seconds: float, note: Callable[[socket.socket], None]
) -> socket.socket:
    """Return a socket that is connected to one of the host's addresses.

    Args:
        host: a name, or an address without brackets.
        port: the port.
        allow_private: whether addresses that are not public may be connected to.
        timeout_seconds: for each address.
        note: told each socket before it connects.

    Raises:
        SourceNotAllowed: it has no address that may be connected to. None has been.
        OSError: of the last address tried.
    """
    found: Found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    allowed = [one for one in found if allow_private or is_public(str(one[4][0]))]
    if not allowed:
        raise _not_public(host)
    failure: OSError | None = None
    for family, kind, protocol, _, address in allowed:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(timeout_seconds)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            note(sock)
            sock.connect(address)
            check_peer(sock, host, allow_private=allow_private)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure or OSError(f"{host} has no address")


def check_peer(sock: socket.socket, host: str, *, allow_private: bool) -> None:
    """Raise SourceNotAllowed if a connected socket's peer may not be connected to."""
    if not allow_private and not is_public(str(sock.getpeername()[0])):
        raise _not_public(host)


def _not_public(host: str) -> SourceNotAllowed:
    # The address is not shown: it is of the network inside.
    return SourceNotAllowed(f"{host} is at no public address, and no setting of its prefix allows others", host=host)
