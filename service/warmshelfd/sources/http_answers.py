"""What the head of an HTTP answer says: of a file, of a range, of a failure. Opens nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import mktime_tz, parsedate_tz

from warmshelf.errors import (
    InvalidSpec,
    SourceChangedDuringLoad,
    SourceNotFound,
    SourceUnavailable,
    WarmshelfError,
)
from warmshelfd.sources.retrying import TryAgain

OK, PARTIAL, UNSATISFIABLE = 200, 206, 416
ABSENT = frozenset({404, 410})
MOVED = frozenset({301, 302, 303, 307, 308})
_FOR_THE_MOMENT = frozenset({408, 429, 500, 502, 503, 504})

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_NO_RANGE = re.compile(r"bytes \*/([0-9]{1,18})")
_COUNT = re.compile(r"[0-9]{1,18}")

Headers = Mapping[str, str]
"""By name in lower case."""


@dataclass(frozen=True, slots=True)
class HttpState:
    """How a file looks: it differs once the server has another version of it."""

    size_bytes: int
    etag: str
    last_modified: str

    @property
    def if_range(self) -> str:
        """What makes a server send a range of this version only; "" where it may not be used: for weak tags."""
        return self.etag if self.etag.startswith('"') else ""

    def accepts(self, now: HttpState) -> bool:
        """Say whether an answer's state is this one. One to If-Range may leave the date out."""
        dates_differ = bool(self.last_modified and now.last_modified) and self.last_modified != now.last_modified
        if not self.etag:  # the date alone tells
            dates_differ = self.last_modified != now.last_modified
        return self.size_bytes == now.size_bytes and self.etag == now.etag and not dates_differ


def read_whole_state(url: str, status: int, headers: Headers, asked_bytes: int) -> HttpState:
    """Return the state of a file of whose beginning ``asked_bytes`` were asked for.

    Raises:
        InvalidSpec: the server does not do what a source of tensors needs.
        WarmshelfError, TryAgain: the answer is a failure, or another than asked for.
    """
    size = _size_of(url, status, headers, asked_bytes)
    state = HttpState(size, headers.get("etag", ""), headers.get("last-modified", ""))
    if not state.etag and not state.last_modified:
        raise InvalidSpec(f"{url} has neither ETag nor Last-Modified: a change while it is read would not be seen")
    return state


def _size_of(url: str, status: int, headers: Headers, asked_bytes: int) -> int:
    if status == PARTIAL:
        first, last, size = _range_of(url, headers)
        _check_body(url, headers, last + 1 - first)
        if (first, last) != (0, min(asked_bytes, size) - 1):
            raise _another_range(url)
        return size
    empty = _NO_RANGE.fullmatch(headers.get("content-range", ""))
    if status == UNSATISFIABLE and empty is not None and int(empty[1]) == 0:
        return 0
    if status == OK and headers.get("content-length") == "0":
        return 0
    if status == OK:
        raise InvalidSpec(f"{url}: its server sends no ranges, which a source of tensors needs", uri=url)
    raise failure_of(url, status, headers)


def check_part(url: str, status: int, headers: Headers, first: int, last: int, state: HttpState) -> None:
    """Check that an answer is the range of the version that was asked for.

    Raises:
        SourceChangedDuringLoad: it is of another version.
        WarmshelfError, TryAgain: it is a failure, or another range.
    """
    if status == PARTIAL:
        got_first, got_last, size = _range_of(url, headers)
        _check_same(url, state, HttpState(size, headers.get("etag", ""), headers.get("last-modified", "")))
        if (got_first, got_last) != (first, last):
            raise _another_range(url)
        _check_body(url, headers, last + 1 - first)
    elif status == OK:  # the answer to If-Range where the version is another
        length = headers.get("content-length", "")
        size = int(length) if _COUNT.fullmatch(length) else state.size_bytes
        _check_same(url, state, HttpState(size, headers.get("etag", ""), headers.get("last-modified", "")))
        raise SourceUnavailable(f"{url}: the whole was sent where a range was asked for", uri=url)
    elif status in (412, UNSATISFIABLE):
        raise _changed(url)
    else:
        raise failure_of(url, status, headers)


def failure_of(url: str, status: int, headers: Headers) -> WarmshelfError | TryAgain:
    """Return what an answer that is no success is to its caller."""
    if status in ABSENT:
        return SourceNotFound(f"{url} is not there: the server answers {status}", uri=url, status=str(status))
    error = SourceUnavailable(f"{url}: the server answers {status}", uri=url, status=str(status))
    if status in _FOR_THE_MOMENT:
        return TryAgain(error, retry_after_seconds(headers.get("retry-after", ""), time.time()))
    return error


def retry_after_seconds(text: str, now: float) -> float:
    """Return how long a server asks to be left alone, told as seconds or as a date; 0 if it says nothing sensible."""
    if _COUNT.fullmatch(text):
        return float(text)
    date = parsedate_tz(text)
    return max(0.0, mktime_tz(date) - now) if date is not None else 0.0


def _range_of(url: str, headers: Headers) -> tuple[int, int, int]:
    match = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
    if match is None:
        raise SourceUnavailable(f"{url}: a part was sent without saying which", uri=url)
    first, last, size = int(match[1]), int(match[2]), int(match[3])
    if not first <= last < size:
        raise _another_range(url)
    return first, last, size


def _check_body(url: str, headers: Headers, size: int) -> None:
    """Check that the body is plain and says, if it says anything, to be as long as its range."""
    encoding = headers.get("content-encoding", "identity").lower()
    if encoding != "identity" or headers.get("transfer-encoding", "chunked").lower() != "chunked":
        raise InvalidSpec(f"{url} is sent encoded, though its plain bytes were asked for", uri=url)
    length = headers.get("content-length")
    if length is not None and length != str(size):
        raise SourceUnavailable(f"{url}: the answer's length is not that of its range", uri=url, range_bytes=size)


def _check_same(url: str, state: HttpState, now: HttpState) -> None:
    if not state.accepts(now):
        raise _changed(url)


def _changed(url: str) -> SourceChangedDuringLoad:
    return SourceChangedDuringLoad(f"{url} is not what it was when it was opened", uri=url)


def _another_range(url: str) -> SourceUnavailable:
    return SourceUnavailable(f"{url}: another range was sent than was asked for", uri=url)
