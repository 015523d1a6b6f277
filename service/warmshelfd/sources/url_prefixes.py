"""URLs of remote sources: the one spelling that is kept, and the prefixes that are allowed.

Whatever two readers of URLs could understand differently is refused instead of
repaired: user names, backslashes, dot segments, encoded slashes, numbers in place of
addresses. Pure text: knows no protocol, no network, and nothing of what exists.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn
from urllib.parse import quote

from warmshelf.errors import InvalidSpec, SourceNotAllowed

URL_BYTES_MAX = 4096
"""Longest URL in its one spelling; servers take 8 KiB with all of a request's headers."""

_SHAPE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)(\?[^#]*)?(#.*)?", re.DOTALL)
_HIDDEN = re.compile(r"[\x00-\x20\x7f\\]")  # some readers drop these, some cut there, some read a slash
_PLACE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::([1-9][0-9]{0,4}))?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ENCODED_TWICE = re.compile(r"%25[0-9A-Fa-f]{2}")
_NEVER_ENCODED = frozenset({0x2F, 0x5C, 0x7F, *range(0x20)})  # slash, backslash and control characters
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_PLAIN_IN_PATHS = "/!$&'()*+,;=:@%"
_HOST_BYTES_MAX = 253
_PORT_MAX = 65535


@dataclass(frozen=True, slots=True)
class Url:
    """A URL, taken apart. Its text is its one spelling, and never has the query."""

    scheme: str
    host: str
    """In lower case; an IPv6 address has its brackets."""
    port: int | None
    """None where it is the scheme's own."""
    path: str
    """Begins with a slash; encoded where a URL must be and nowhere else."""
    query: str = field(default="", repr=False)
    """With its question mark. May be a secret: a redirect's, since no source's own URI has one."""

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"{self.scheme}://{self.host}" + ("" if self.port is None else f":{self.port}")

    def __str__(self) -> str:
        return self.origin + self.path


def parse_url(text: str, ports: Mapping[str, int | None], *, query: bool = False) -> Url:
    """Take a URL apart.

    Args:
        text: the URL.
        ports: the schemes that there are, and the port of each that need not be said.
        query: whether it may have a query.

    Raises:
        InvalidSpec: it can be read in more than one way, or has what no source has. Never shows the text.
    """
    shape = _SHAPE.fullmatch(text)
    if shape is None or shape[1].lower() not in ports:
        _refuse(f"a URL begins with {' or '.join(f'{scheme}://' for scheme in ports)} and the name of a server")
    if _HIDDEN.search(text):
        _refuse("a URL has no white space, no control characters and no backslash")
    if shape[5] is not None or (shape[4] is not None and not query):
        _refuse("a source's URL has no query and no fragment; secrets belong in the daemon's configuration")
    scheme = shape[1].lower()
    host, port = _parse_place(shape[2])
    url = Url(scheme, host, None if port == ports[scheme] else port, _parse_path(shape[3]), shape[4] or "")
    if len(str(url)) > URL_BYTES_MAX:
        _refuse(f"a source's URL has at most {URL_BYTES_MAX} bytes")
    return url


def _parse_place(text: str) -> tuple[str, int | None]:
    if "@" in text:
        _refuse("a source's URL has no user and no password; they belong in the daemon's configuration")
    place = _PLACE.fullmatch(text)
    if place is None:
        _refuse("what follows :// in a source's URL is HOST, HOST:PORT, or an IPv6 address in brackets")
    port = int(place[2]) if place[2] else None
    if port is not None and port > _PORT_MAX:
        _refuse(f"a port is at most {_PORT_MAX}")
    return _parse_host(place[1].lower()), port


def _parse_host(host: str) -> str:
    """Return the one spelling of a host's name or address."""
    try:
        if host.startswith("["):
            return f"[{ipaddress.IPv6Address(host[1:-1])}]"
        if _NUMBER.fullmatch(host.rpartition(".")[2]):  # many readers make an address of 2130706433, 0x7f.1 or 127.1
            return str(ipaddress.IPv4Address(host))
    except ValueError:
        _refuse("an address in a source's URL is four decimal numbers without leading zeros, or IPv6 in brackets")
    if len(host) > _HOST_BYTES_MAX or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        _refuse("a host in a source's URL is a name in ASCII (xn-- for others) without a dot at its end")
    return host


def names_an_address(host: str) -> bool:
    """Say whether a host in its one spelling says by itself which machine it is: an address, or ``localhost``."""
    return host == "localhost" or host.startswith("[") or _NUMBER.fullmatch(host.rpartition(".")[2]) is not None


def _parse_path(path: str) -> str:
    if _BAD_ESCAPE.search(path) or _ENCODED_TWICE.search(path):
        _refuse("a percent sign in a source's URL begins the code of one character, and is not encoded twice")
    if any(int(code, 16) in _NEVER_ENCODED for code in _ESCAPE.findall(path)):
        _refuse("a source's URL has no slash, backslash or control character in encoded form")
    try:
        path = _ESCAPE.sub(_spell, quote(path, safe=_PLAIN_IN_PATHS)) or "/"
    except UnicodeEncodeError:
        _refuse("a source's URL is UTF-8")
    parts = path[1:].split("/")
    if "" in parts[:-1]:
        _refuse("a source's URL has no empty part")
    if any(part.partition(";")[0] in (".", "..") for part in parts):  # some servers drop what follows a semicolon
        _refuse("a source's URL has no part '.' or '..'")
    return path


def _spell(escape: re.Match[str]) -> str:
    code = int(escape[1], 16)
    return chr(code) if code in _UNRESERVED else escape[0].upper()


def _refuse(why: str) -> NoReturn:
    # The text itself is not shown: it may carry a password or a signature.
    raise InvalidSpec(why)


class UrlPrefixes:
    """The prefixes that sources may lie under. None allows nothing."""

    def __init__(self, prefixes: Iterable[str]) -> None:
        """Take prefixes in their one spelling. Each allows itself and what is below it, in whole parts."""
        self._prefixes = tuple(prefix.rstrip("/") for prefix in prefixes)

    def allow(self, url: str) -> bool:
        """Say whether a URL in its one spelling, without query, is allowed."""
        return any(url == prefix or url.startswith(prefix + "/") for prefix in self._prefixes)

    def check(self, url: str) -> None:
        """Refuse a URL that is not allowed.

        Raises:
            SourceNotAllowed: in the same words whether or not there is something. Nothing has been asked for.
        """
        if not self.allow(url):
            raise SourceNotAllowed(f"{url} is outside the allowed prefixes", uri=url)
