"""How a place in Redis is written: ``redis://HOST:PORT/DB/NAME``, and the one spelling kept.

``rediss`` is the same over TLS. Pure text: knows no server and opens nothing. A URI
never has a user or a password; what is wrong with one is said without showing it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import NoReturn
from urllib.parse import quote, unquote_to_bytes

from warmshelf.errors import InvalidSpec

SCHEMES = ("redis", "rediss")
PORT = 6379
PORT_MAX = 65535

NAME_BYTES_MAX = 512
"""Longest name: an ID of 255 characters below a prefix of as many."""

LAYOUTS = ("warmshelf", "tensorizer")
"""Who wrote what is there, and so how it lies."""

_URI = re.compile(r"([A-Za-z]+)://([^/?#]*)(?:/([^?#]*))?(?:\?([^#]*))?")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")
_PORT = re.compile(r"[0-9]{1,5}")
_DB = re.compile(r"0|[1-9][0-9]{0,4}")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})|%2[Ff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class RedisUri:
    """A place in Redis.

    Attributes:
        scheme: ``redis`` or ``rediss``.
        host: in lower case; an IPv6 address in brackets.
        port: of the server.
        db: number of the database, or None: all of them, in a prefix.
        name: of what is there, or "": everything, in a prefix or a store.
        layout: how it lies, or "": to be seen from the keys.
    """

    scheme: str
    host: str
    port: int
    db: int | None = None
    name: str = ""
    layout: str = ""

    @property
    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.scheme == "rediss"

    @property
    def path(self) -> str:
        """The URI without its layout: what prefixes are compared with."""
        db = "" if self.db is None else f"/{self.db}"
        name = f"/{quote(self.name)}" if self.name else ""
        return f"{self.scheme}://{self.host}:{self.port}{db}{name}"

    def __str__(self) -> str:
        """Return the one spelling of the URI."""
        return self.path + (f"?layout={self.layout}" if self.layout else "")

    def below(self, name: str) -> RedisUri:
        """Return the place of a name below this one.

        Raises:
            InvalidSpec: it is no name.
        """
        return replace(self, name=_check_name(f"{self.name}/{name}" if self.name else name))


def parse_redis_uri(text: str) -> RedisUri:
    """Return the place of one artifact.

    Raises:
        InvalidSpec: it is none.
    """
    uri = _parse(text)
    if uri.db is None or not uri.name:
        _refuse("a Redis source is redis://HOST:PORT/DB/NAME")
    return uri


def parse_store(text: str) -> RedisUri:
    """Return the place below which artifacts are written, such as ``redis://cache:6379/0/loras``.

    Raises:
        InvalidSpec: it is none.
    """
    uri = _parse(text)
    if uri.db is None or uri.layout:
        _refuse("a store in Redis is redis://HOST:PORT/DB or redis://HOST:PORT/DB/NAME")
    return uri


def parse_prefix(text: str) -> RedisUri:
    """Return the prefix of places: a server, one of its databases, or names in it.

    Raises:
        InvalidSpec: it is none.
    """
    uri = _parse(text)
    if uri.layout:
        _refuse("a prefix in Redis has no layout")
    return uri


def _parse(text: str) -> RedisUri:
    match = _URI.fullmatch(text)
    if match is None or match[1].lower() not in SCHEMES:
        _refuse("a place in Redis is redis://HOST:PORT/DB/NAME, or rediss:// for TLS")
    host, port = _server(match[2])
    db, _, name = (match[3] or "").partition("/")
    if db and not _DB.fullmatch(db):
        _refuse("behind the server a Redis URI has the number of the database, as in redis://cache:6379/0/NAME")
    if name and not db:
        _refuse("a Redis URI has no empty part")
    return RedisUri(
        scheme=match[1].lower(),
        host=host,
        port=port,
        db=int(db) if db else None,
        name=_check_name(_decoded(name.removesuffix("/"))) if name else "",
        layout=_layout(match[4]),
    )


def _server(text: str) -> tuple[str, int]:
    if "@" in text:
        _refuse(
            "a Redis URI has no user and no password: the daemon takes them from its [[source]] tables, "
            "the client from WARMSHELF_STORE_USERNAME and WARMSHELF_STORE_PASSWORD"
        )
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text, str(PORT)
    if not _HOST.fullmatch(host) or not _PORT.fullmatch(port) or not 0 < int(port) <= PORT_MAX:
        _refuse("the server of a Redis URI is HOST:PORT, an IPv6 address stands in brackets")
    return host.lower(), int(port)


def _decoded(name: str) -> str:
    if _BAD_ESCAPE.search(name):
        _refuse("a percent sign in a Redis URI begins the code of a character other than a slash")
    try:
        return unquote_to_bytes(name).decode()
    except ValueError:
        _refuse("the name in a Redis URI is UTF-8")


def _check_name(name: str) -> str:
    if any(part in ("", ".", "..") for part in name.split("/")):
        _refuse("the name in a Redis URI has no empty part, no '.' and no '..'")
    try:
        size = len(name.encode())
    except ValueError:
        _refuse("the name in a Redis URI is UTF-8")
    if _CONTROL.search(name) or size > NAME_BYTES_MAX:
        _refuse(f"the name in a Redis URI has at most {NAME_BYTES_MAX} bytes and no control character")
    return name


def _layout(query: str | None) -> str:
    if query is None:
        return ""
    key, _, layout = query.partition("=")
    if key != "layout" or layout not in LAYOUTS:
        _refuse(f"the query of a Redis URI is {' or '.join(f'layout={one}' for one in LAYOUTS)}")
    return layout


def _refuse(why: str) -> NoReturn:
    # The text itself is not shown: it may carry a password.
    raise InvalidSpec(why)
