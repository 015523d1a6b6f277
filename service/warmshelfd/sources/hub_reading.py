"""Reads ranges of the files of one commit: where each lies is asked of the hub, the bytes of whoever has them.

A hub sends large files by another server, to which it gives a signed address that
expires. That address is kept for a file until it is refused, never shown, and never
sent the token. Knows nothing of repositories beyond their names.
"""

from __future__ import annotations

import importlib
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from warmshelf.errors import InvalidSpec, SourceChangedDuringLoad, SourceNotAllowed, SourceNotFound, SourceUnavailable
from warmshelfd.sources.http_exchange import PORTS, Answer, Exchange, Reach
from warmshelfd.sources.limits import TimeLimits
from warmshelfd.sources.retrying import TryAgain, check_stopped, retried
from warmshelfd.sources.settings import SourceSettings
from warmshelfd.sources.url_prefixes import Url, parse_url

_PIECE_BYTES = 1 << 20
"""Read this much between two notes of how far it is."""

_PARTIAL, _WHOLE = 206, 200
_REFUSED = (401, 403)
_GONE = (404, 410)
_BUSY = (408, 425, 429, 500, 502, 503, 504)
_MOVED = (301, 302, 303, 307, 308)
_CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+)")


def _again(what: str, why: str) -> TryAgain:
    return TryAgain(SourceUnavailable(f"{what} cannot be read: {why}"))


@contextmanager
def passing(what: str) -> Iterator[None]:
    """Tell failures that may pass from those that stay."""
    from huggingface_hub import errors, get_session  # noqa: PLC0415 - as in hub

    library = importlib.import_module(type(get_session()).__module__.partition(".")[0])
    try:
        yield
    except errors.OfflineModeIsEnabled:
        raise
    except library.TransportError as error:
        raise _again(what, f"no answer ({type(error).__name__})") from None
    except errors.HfHubHTTPError as error:
        if error.response.status_code in _BUSY:
            raise _again(what, f"the hub answers {error.response.status_code}") from None
        raise


@dataclass(frozen=True, slots=True)
class Hub:
    """Where a hub is, and what it is told. Without an endpoint it is the public one."""

    endpoint: str | None = None
    token: str | None = None
    settings: SourceSettings | None = None


class HubReach(Reach):
    """How the bytes are reached: the hub itself as the operator named it, wherever else it sends readers with care."""

    def __init__(self, shared: Reach, hub_origin: str, settings: SourceSettings | None) -> None:
        super().__init__((), (), shared.limits)
        self.watch = shared.watch
        self._shared = shared
        self._hub_origin = hub_origin
        self._settings_of_hub = settings or SourceSettings(prefix="hf://")

    def tls(self, ca_file: str | None) -> ssl.SSLContext:
        """Return what all sources of hubs share."""
        return self._shared.tls(ca_file)

    def settings_for(self, url: Url) -> SourceSettings:
        """Return what holds for a place: no secret but to the hub, no address inside unless that is allowed."""
        if url.origin == self._hub_origin:
            return self._settings_of_hub.model_copy(update={"allow_private": True})
        return self._settings_of_hub.model_copy(update={"bearer_token": None, "password": None, "headers": {}})


class HubReader:
    """Reads the files of one commit. For several threads."""

    def __init__(
        self, hub: Hub, reach: Reach, repository: str, commit: str, limits: TimeLimits, stopped: threading.Event
    ) -> None:
        self._endpoint, self._token = hub.endpoint, hub.token
        self._repository, self._commit = repository, commit
        self._limits = limits
        self._stopped = stopped
        self._exchange = Exchange(HubReach(reach, _origin(self._url("x")), hub.settings))
        self._lock = threading.Lock()  # guards _places
        self._places: dict[str, Url] = {}  # where each file lies, by its path; secrets

    def read_into(self, path: str, size: int, offset: int, view: memoryview) -> None:
        """Fill the view from a file of this size; what was read before a failure is not read again.

        Raises:
            SourceUnavailable: it cannot be read just now.
            LoadCancelled: the source was stopped.
            SourceNotAllowed: a fresh address is refused.
            SourceChangedDuringLoad: the answer is of another file.
        """
        done = 0

        def note(count: int) -> None:
            nonlocal done
            done += count

        def read() -> None:
            with passing(f"{self._repository}: {path}"), view[done:] as rest:
                self._read(path, size, offset + done, rest, note)

        retried(read, self._limits.retry, self._stopped)

    def stop(self) -> None:
        """End every read of bytes under way. For any thread."""
        self._exchange.stop()

    def close(self) -> None:
        """Close the connections. No read may be under way."""
        self._exchange.close()

    def _read(self, path: str, size: int, offset: int, view: memoryview, note: Callable[[int], None]) -> None:
        """Make one request, and note each piece that was copied."""
        place, is_fresh = self._place(path)
        headers = {"Range": f"bytes={offset}-{offset + len(view) - 1}", "Accept-Encoding": "identity"}
        shown = Url(place.scheme, place.host, place.port, f"/{self._repository}/{path}")  # never the signed address
        with self._exchange.send(shown, place, headers, len(view)) as answer:
            self._check_status(path, answer.status, is_fresh=is_fresh)
            self._check_range(path, answer, (offset, offset + len(view), size))
            done = 0
            while done < len(view):
                check_stopped(self._stopped)
                with view[done : done + _PIECE_BYTES] as piece:
                    count = answer.read_into(piece)
                if not count:
                    raise _again(f"{self._repository}: {path}", "the connection ended in the middle of an answer")
                done += count
                note(count)

    def _check_status(self, path: str, status: int, *, is_fresh: bool) -> None:
        if status in (_PARTIAL, _WHOLE):
            return
        with self._lock:
            self._places.pop(path, None)
        if status in _GONE:
            raise SourceNotFound(f"{self._repository}: {path} is not where the hub says it is ({status})", file=path)
        if status in _REFUSED and is_fresh:
            raise SourceNotAllowed(f"{self._repository}: {path} is refused ({status})", file=path)
        if status in _MOVED and is_fresh:
            raise SourceUnavailable(f"{self._repository}: {path} is sent from one server to the next", file=path)
        raise _again(f"{self._repository}: {path}", f"the server answers {status}")

    def _check_range(self, path: str, answer: Answer, wanted: tuple[int, int, int]) -> None:
        """Hold what the answer says of itself against what was asked for."""
        start, end, size = wanted
        found = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
        is_whole = answer.status == _WHOLE and (start, end) == (0, size)
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise SourceUnavailable(f"{self._repository}: {path} is sent encoded, which was not asked for", file=path)
        if found and answer.status == _PARTIAL:
            if (int(found[1]), int(found[2]) + 1, int(found[3])) != wanted:
                raise SourceChangedDuringLoad(f"{self._repository}: another range of {path} came than was asked for")
        elif not is_whole:
            raise SourceUnavailable(f"{self._repository}: the server of {path} does not send ranges", file=path)

    # --- where files lie --------------------------------------------------------

    def _place(self, path: str) -> tuple[Url, bool]:
        """Return where a file lies, and whether the hub was asked just now."""
        with self._lock:
            known = self._places.get(path)
        if known is not None:
            return known, False
        place = self._ask(path)
        with self._lock:
            self._places[path] = place
        return place, True

    def _ask(self, path: str) -> Url:
        from huggingface_hub import get_hf_file_metadata  # noqa: PLC0415

        url = self._url(path)
        found = get_hf_file_metadata(url, token=self._token or False, timeout=self._limits.answer_seconds)
        if found.commit_hash not in (None, self._commit):
            raise SourceChangedDuringLoad(f"{self._repository}: the hub has {path} of another commit", file=path)
        if url.startswith("https:") and not found.location.startswith("https:"):
            raise SourceUnavailable(f"{self._repository}: the hub sends {path} without TLS", file=path)
        try:
            return parse_url(found.location, PORTS, query=True)
        except InvalidSpec:
            raise SourceUnavailable(f"{self._repository}: the hub names no place for {path}", file=path) from None

    def _url(self, path: str) -> str:
        from huggingface_hub import hf_hub_url  # noqa: PLC0415

        return hf_hub_url(self._repository, path, revision=self._commit, endpoint=self._endpoint)


def _origin(url: str) -> str:
    return parse_url(url, PORTS).origin
