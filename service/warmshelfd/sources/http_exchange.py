"""Asks HTTP servers for ranges: with the prefix's credentials, along redirects that are allowed, never elsewhere.

Every hop of a redirect is judged like a source's own URL and gets the credentials of
its own prefix or none. Proxies of the environment are not used. Knows nothing of
files; an answer's body is what its reader makes of it.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import re
import ssl
import threading
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import urllib3.exceptions

from warmshelf.errors import InvalidConfig, InvalidSpec, SourceNotAllowed, SourceUnavailable
from warmshelfd.sources.guarded import PlainConnection, TlsConnection, Watch, open_connection
from warmshelfd.sources.http_answers import ABSENT, MOVED, Headers
from warmshelfd.sources.limits import TimeLimits
from warmshelfd.sources.retrying import TryAgain, check_stopped
from warmshelfd.sources.settings import SourceSettings, read_secret, settings_for
from warmshelfd.sources.url_prefixes import Url, UrlPrefixes, names_an_address, parse_url

PORTS: Mapping[str, int | None] = {"http": 80, "https": 443}

REDIRECTS_MAX = 5
"""Most redirects of one request; downloads have one or two."""

_DRAINED_BYTES_MAX = 64 << 10
"""Longest body that nobody wants and that is read nonetheless, since a new connection would cost more."""

_FORGETTING = ABSENT | {401, 403}
"""Answers after which the target of a redirect is asked for anew: it was lent for a time."""

_BAD_HEADER = re.compile(rb"[^\x20-\x7e\x80-\xff\t]")

Connection = PlainConnection | TlsConnection


class Reach:
    """Where sources may be and how they are reached: what all of them share."""

    def __init__(self, allowed: Sequence[str], settings: Sequence[SourceSettings], limits: TimeLimits) -> None:
        """Take the prefixes that are allowed, and the settings by prefix, in whatever spelling.

        Raises:
            InvalidConfig: one of them is no URL.
        """
        self.prefixes = UrlPrefixes([_spelled(prefix) for prefix in allowed])
        self._settings = [one.model_copy(update={"prefix": _spelled(one.prefix)}) for one in settings]
        self.limits = limits
        self.watch = Watch()
        self._lock = threading.Lock()  # guards _contexts
        self._contexts: dict[str | None, ssl.SSLContext] = {}  # what is trusted, by ca_file

    def settings_for(self, url: Url) -> SourceSettings | None:
        """Return the settings of the longest prefix that the URL lies below."""
        return settings_for(str(url), self._settings)

    def allows_private(self, url: Url) -> bool:
        """Say whether a URL's server may be at an address that is not public.

        The settings of its prefix say so, or the allowed prefix names the address itself: whoever
        allows ``http://127.0.0.1:8000`` has said which server is meant.
        """
        settings = self.settings_for(url)
        named = names_an_address(url.host) and self.prefixes.allow(str(url))
        return named or (settings is not None and settings.allow_private)

    def tls(self, ca_file: str | None) -> ssl.SSLContext:
        """Return what verifies certificates by the authorities in a file, or by the system's.

        Raises:
            InvalidConfig: the file cannot be used.
        """
        with self._lock:
            if ca_file not in self._contexts:
                try:
                    self._contexts[ca_file] = ssl.create_default_context(cafile=ca_file)
                except OSError as error:
                    raise InvalidConfig(f"ca_file {ca_file!r} cannot be used: {error.strerror}") from error
            return self._contexts[ca_file]


def _spelled(prefix: str) -> str:
    try:
        return str(parse_url(prefix, PORTS))
    except InvalidSpec as error:
        raise InvalidConfig(f"the prefix {prefix!r}: {error.message}") from None


@dataclass(frozen=True, slots=True)
class Answer:
    """The head of an answer, and its body to be read.

    ``url`` is the source's own, also behind redirects: theirs may hold secrets.
    """

    url: str
    status: int
    headers: Headers
    _response: http.client.HTTPResponse

    def read_into(self, view: memoryview) -> int:
        """Read some of the body; less than asked for only where it ends."""
        return self._response.readinto(view)

    def read(self, size: int) -> bytes:
        """Return at most so many bytes of the body."""
        return self._response.read(size)


class Exchange:
    """The requests of one source. Its connections are its own, and end with it."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self.stopped = threading.Event()
        self._lock = threading.Lock()  # guards what follows
        self._busy: set[Connection] = set()
        self._idle: dict[tuple[str, str | None, bool], list[Connection]] = {}  # by origin, ca_file, allow_private
        self._targets: dict[Url, Url] = {}  # where redirects led

    @contextlib.contextmanager
    def ask(self, url: Url, first: int, last: int, if_range: str = "") -> Iterator[Answer]:
        """Ask for a range of bytes, both ends included, and give the answer.

        Raises:
            SourceNotAllowed: a redirect, or an address, that is not allowed.
            TryAgain: the connection failed, also in the body.
            SourceUnavailable: it fails for longer than a moment.
        """
        headers = {"Range": f"bytes={first}-{last}", "Accept-Encoding": "identity", "User-Agent": "warmshelfd"}
        if if_range:
            headers["If-Range"] = if_range
        with self._lock:
            target = self._targets.get(url, url)
        for _ in range(REDIRECTS_MAX + 2):  # one more where a target is no longer lent
            with self.send(url, target, headers, last + 1 - first) as answer:
                if answer.status in MOVED:
                    target = self._next(url, target, answer.headers.get("location", ""))
                elif answer.status in _FORGETTING and self._forget(url):
                    target = url
                else:
                    self._remember(url, target)
                    yield answer
                    return
        raise SourceUnavailable(f"{url} is redirected more than {REDIRECTS_MAX} times", uri=str(url))

    def stop(self) -> None:
        """End every request under way. For any thread."""
        self.stopped.set()
        with self._lock:
            for connection in self._busy:
                connection.cut()

    def close(self) -> None:
        """Close the connections. No request may be under way."""
        with self._lock:
            for connections in self._idle.values():
                for connection in connections:
                    connection.close()
            self._idle.clear()

    # --- redirects ----------------------------------------------------------

    def _next(self, url: Url, target: Url, location: str) -> Url:
        """Return where a redirect leads, if that is allowed."""
        if not location:
            raise SourceUnavailable(f"{url} is redirected, and not said where to", uri=str(url))
        try:
            moved = parse_url(urllib.parse.urljoin(str(target), location), PORTS, query=True)
        except (ValueError, InvalidSpec):
            moved = None
        is_worse = moved is not None and (target.scheme, moved.scheme) == ("https", "http")
        if moved is None or is_worse or not self._reach.prefixes.allow(str(moved)):
            # Where to is not shown: it may be a signed URL, or a place inside.
            raise SourceNotAllowed(f"{url} is redirected to outside the allowed prefixes", uri=str(url))
        return moved

    def _remember(self, url: Url, target: Url) -> None:
        if target != url:
            with self._lock:
                self._targets[url] = target

    def _forget(self, url: Url) -> bool:
        """Say whether a redirect's target was remembered; it no longer is."""
        with self._lock:
            return self._targets.pop(url, None) is not None

    # --- one request --------------------------------------------------------

    @contextlib.contextmanager
    def send(self, url: Url, target: Url, headers: dict[str, str], size: int) -> Iterator[Answer]:
        """Send one request to where a URL leads to, and give the answer; failures of the body are ours too.

        Redirects are answers. Errors name ``url``, never the target; the others are those of ``ask``.
        """
        limits = self._reach.limits
        settings = self._reach.settings_for(target)
        headers = {**headers, **credentials(settings)}
        connection, key = self._take(target, settings)
        response: http.client.HTTPResponse | None = None
        try:
            with self._reach.watch.limit(connection, limits.seconds_for(size)):
                connection.request("GET", target.path + target.query, headers=headers)
                response = connection.answer(limits)
                if connection.is_cut:  # the library takes a head that was cut off for one that ends
                    raise ConnectionAbortedError
                yield Answer(str(url), response.status, _by_name(response), response)
                _drain(response)
        except (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError) as error:
            check_stopped(self.stopped)
            raise _failure(url, error, is_slow=connection.is_cut) from error
        finally:
            self._give_back(connection, key, response)

    def _take(self, target: Url, settings: SourceSettings | None) -> tuple[Connection, tuple[str, str | None, bool]]:
        """Return a connection to the target's server, and what to keep it under."""
        ca_file = settings.ca_file if settings else None
        allow_private = self._reach.allows_private(target)
        key = (target.origin, ca_file, allow_private)
        tls = self._reach.tls(ca_file) if target.scheme == "https" else None
        port = target.port or PORTS[target.scheme] or 0
        with self._lock:
            idle = self._idle.setdefault(key, [])
            connection = idle.pop() if idle else None
            if connection is not None and not connection.is_connected:
                connection.close()  # the server did, meanwhile
                connection = None
            if connection is None:
                host = target.host.strip("[]")
                limits = self._reach.limits
                connection = open_connection(host, port, tls=tls, allow_private=allow_private, limits=limits)
            self._busy.add(connection)
        if self.stopped.is_set():  # it may have been stopped before the connection could be cut
            connection.cut()
        return connection, key

    def _give_back(
        self,
        connection: Connection,
        key: tuple[str, str | None, bool],
        response: http.client.HTTPResponse | None,
    ) -> None:
        """Keep the connection if the answer was read to its end; close it else."""
        is_whole = response is not None and response.isclosed() and not connection.is_closed and not connection.is_cut
        if response is not None:
            response.close()
        if not is_whole:
            connection.close()
        with self._lock:
            self._busy.discard(connection)
            if is_whole:
                self._idle[key].append(connection)


def credentials(settings: SourceSettings | None) -> dict[str, str]:
    """Return the headers that a prefix's settings ask for, with secrets as they are now.

    Raises:
        InvalidConfig: a secret cannot be had, or is none that a header can hold.
    """
    if settings is None:
        return {}
    headers = {name: _header(name, read_secret(secret)) for name, secret in settings.headers.items()}
    if settings.bearer_token is not None:
        headers["Authorization"] = _header("Authorization", b"Bearer " + read_secret(settings.bearer_token))
    elif settings.password is not None:
        pair = (settings.username or "").encode() + b":" + read_secret(settings.password)
        headers["Authorization"] = "Basic " + base64.b64encode(pair).decode()
    return headers


def _header(name: str, value: bytes) -> str:
    if _BAD_HEADER.search(value):
        raise InvalidConfig(f"the secret for the header {name} has a character that no header can hold")
    return value.decode("latin-1")


def _by_name(response: http.client.HTTPResponse) -> Headers:
    """Return the headers; one that is there several times is joined, and so never what was asked for."""
    headers: dict[str, str] = {}
    for spelled, value in response.getheaders():
        name = spelled.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value.strip()
    return headers


def _drain(response: http.client.HTTPResponse) -> None:
    """Read what is left of a short body, so that the connection can be used again."""
    if not response.isclosed() and response.length is not None and response.length <= _DRAINED_BYTES_MAX:
        response.read()


def _failure(url: Url, error: Exception, *, is_slow: bool) -> TryAgain | SourceUnavailable:
    """Return what a failed connection is to its caller. Errors' own texts may hold URLs."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"the server's certificate is not trusted: {error.verify_message}"
        return SourceUnavailable(f"{url} cannot be read: {why}", uri=str(url))
    if isinstance(error, ssl.SSLError) and not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return SourceUnavailable(f"{url} cannot be read: TLS says {error.reason}", uri=str(url))
    why = type(error).__name__
    if is_slow or isinstance(error, TimeoutError):
        why = "it takes too long"
    elif isinstance(error, OSError) and error.strerror:
        why = error.strerror
    return TryAgain(SourceUnavailable(f"{url} cannot be read: {why}", uri=str(url)))
