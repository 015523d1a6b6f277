"""Where a registry in Redis is: the URI forms of one server, of Sentinels and of a cluster.

    redis://HOST:PORT/DB
    redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB
    redis+cluster://HOST:PORT,HOST:PORT

``rediss`` in the place of ``redis`` is the same over TLS. Pure text: opens nothing. A URI
never has a user or a password; what is wrong with one is said without showing it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from warmshelf.errors import InvalidConfig

PORT = 6379
SENTINEL_PORT = 26379
PORT_MAX = 65535

_URI = re.compile(r"(rediss?)(?:\+(sentinel|cluster))?://([^/?#]*)(?:/([^?#]*))?")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")
_PORT = re.compile(r"[0-9]{1,5}")
_DB = re.compile(r"0|[1-9][0-9]{0,4}")
_MASTER = re.compile(r"[A-Za-z0-9._-]{1,128}")

Server = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RedisPlace:
    """Where a registry is.

    Attributes:
        kind: "" for one server, else ``sentinel`` or ``cluster``.
        is_tls: whether connections are encrypted.
        servers: host, without brackets, and port of each that may be asked.
        master: what Sentinels call the servers they watch.
        db: number of the database.
    """

    kind: str
    is_tls: bool
    servers: tuple[Server, ...]
    master: str = ""
    db: int = 0

    def __str__(self) -> str:
        """Return what may be shown of it."""
        names = ",".join(f"{host}:{port}" for host, port in self.servers)
        return f"redis{'s' * self.is_tls}{self.kind and '+' + self.kind}://{names}"


def is_redis(uri: str) -> bool:
    """Say whether a registry's URI names Redis."""
    return re.match(r"rediss?[+:]", uri) is not None


def parse_place(uri: str) -> RedisPlace:
    """Return the place that a URI names.

    Raises:
        InvalidConfig: it is none. Never shows it.
    """
    match = _URI.fullmatch(uri)
    if match is None:
        _refuse(
            "a registry in Redis is redis://HOST:PORT/DB, redis+sentinel://HOST:PORT,.../NAME/DB or "
            "redis+cluster://HOST:PORT,...; rediss for TLS"
        )
    kind = match[2] or ""
    servers = tuple(_server(text, SENTINEL_PORT if kind == "sentinel" else PORT) for text in match[3].split(","))
    master, db = _rest(kind, (match[4] or "").removesuffix("/"))
    if not kind and len(servers) > 1:
        _refuse("redis:// names one server; several are redis+sentinel:// or redis+cluster://")
    return RedisPlace(kind, match[1] == "rediss", servers, master, db)


def _rest(kind: str, path: str) -> tuple[str, int]:
    """Return the master's name and the database."""
    master = ""
    if kind == "sentinel":
        master, _, path = path.partition("/")
        if not _MASTER.fullmatch(master):
            _refuse("behind the Sentinels stands the name of what they watch, as in /mymaster/0")
    if kind == "cluster" and path not in ("", "0"):
        _refuse("a cluster has only database 0")
    if path and not _DB.fullmatch(path):
        _refuse("behind the server stands the number of the database, as in redis://cache:6379/0")
    return master, int(path or 0)


def _server(text: str, port_default: int) -> Server:
    if "@" in text:
        _refuse("the registry's URI has no user and no password: registry_username and registry_password name them")
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text, str(port_default)
    if not _HOST.fullmatch(host) or not _PORT.fullmatch(port) or not 0 < int(port) <= PORT_MAX:
        _refuse("a server of the registry's URI is HOST:PORT, an IPv6 address stands in brackets")
    return host.lower().strip("[]"), int(port)


def _refuse(why: str) -> NoReturn:
    raise InvalidConfig(why)
