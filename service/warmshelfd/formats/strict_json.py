"""Reads JSON that somebody hostile may have written, a value at a time.

``json.loads`` builds everything a text asks for, some twenty times its length,
before anybody can object, and lets the last of two equal keys win. This reader
holds only the value at hand and refuses equal keys, numbers that are no natural
ones, NaN, and text that is not UTF-8. It knows nothing of what the values mean.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import NoReturn

from warmshelf.errors import MalformedArtifact
from warmshelfd import stopping

_SPACE = re.compile(rb"[ \t\n\r]*")
_MARKS = {mark: re.compile(rb"[ \t\n\r]*" + re.escape(mark)) for mark in (b"{", b"}", b"[", b"]", b":", b",")}
_FLAT_OBJECT = re.compile(rb"\{[^{}]*\}")
_SCALAR = re.compile(rb"(?:true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(?![^ \t\n\r,\]}])")
# At most 64 escapes at a time: the pattern engine keeps some hundred bytes for each.
_STRING_PART = re.compile(rb'[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*){0,64}')

_DEPTH_MAX = 16
"""Deepest nesting of values that are only skipped; what writers add beside the weights has two levels."""

_QUOTE = b'"'


class StrictJson:
    """A place in a JSON text, moving forward.

    Every method raises MalformedArtifact, naming the file and the byte, if the text
    is not what the method reads.
    """

    def __init__(self, data: bytes, file_name: str) -> None:
        """Start at the first byte of ``data``, which stands in the file ``file_name``."""
        self._data = data
        self._file_name = file_name
        self.at = 0  # the next byte to read; a reader belongs to one thread

    def members(self, known: Collection[str], key_bytes_max: int) -> Iterator[str]:
        """Read an object: yield each key, of which none may be among ``known``.

        The caller reads the value before it asks for the next key, and adds the key
        to ``known``.
        """
        self._take(b"{")
        if self._skip_if(b"}"):
            return
        while True:
            stopping.check()
            at = self.at
            key = self.string(key_bytes_max)
            if key in known:
                self._refuse(f"the key {_shown(key)} stands there twice", at)
            self._take(b":")
            yield key
            if not self._skip_if(b","):
                self._take(b"}")
                return

    def string(self, bytes_max: int) -> str:
        """Read a string of at most that many bytes of UTF-8."""
        start = self._skip_space()
        if self._data[start : start + 1] != _QUOTE:
            self._refuse("a string should begin", start)
        end = self._string_end(start + 1, start + 6 * bytes_max + 2)  # \u0061: six bytes for one
        raw = self._data[start:end]
        self.at = end
        try:
            text: str = json.loads(raw.decode()) if b"\\" in raw else raw[1:-1].decode()
            size = len(text.encode())
        except ValueError:
            self._refuse("a string is not JSON in UTF-8", start)
        if size > bytes_max:
            self._refuse(f"a string has {size} bytes, at most {bytes_max} are allowed", start)
        return text

    def flat_object(self, bytes_max: int) -> dict[str, object]:
        """Read an object that holds no other and whose numbers are natural."""
        start = self._skip_space()
        match = _FLAT_OBJECT.match(self._data, start, start + bytes_max)
        if match is None:
            self._refuse(f"an object of at most {bytes_max} bytes should begin", start)
        self.at = match.end()
        try:
            value: dict[str, object] = _DECODER.decode(match[0].decode())
        except (ValueError, RecursionError) as error:
            self._refuse(f"an object cannot be read: {error}", start)
        return value

    def skip(self, bytes_max: int) -> None:
        """Read any value of at most that many bytes and forget it."""
        self._skip_value(self._skip_space(), bytes_max, _DEPTH_MAX)

    def check_length(self, start: int, bytes_max: int) -> None:
        """Check that what was read since ``start`` has at most so many bytes."""
        if self.at - start > bytes_max:
            self._refuse(f"a value has more than {bytes_max} bytes", start)

    def end(self) -> None:
        """Check that only white space follows."""
        if self._skip_space() != len(self._data):
            self._refuse("something follows the JSON", self.at)

    def _skip_value(self, start: int, bytes_max: int, depth_max: int) -> None:
        """Read a value that is, or is part of, the one of ``bytes_max`` bytes that began at ``start``."""
        at = self._skip_space()
        if depth_max == 0:
            self._refuse(f"values are nested deeper than {_DEPTH_MAX}", at)
        opening = self._data[at : at + 1]
        if opening == b"{":
            keys: set[str] = set()
            for key in self.members(keys, bytes_max):
                keys.add(key)
                self._skip_value(start, bytes_max, depth_max - 1)
        elif opening == b"[":
            self._skip_array(start, bytes_max, depth_max)
        elif opening == _QUOTE:
            self.string(bytes_max)
        else:
            self._skip_scalar(at)
        self.check_length(start, bytes_max)

    def _skip_array(self, start: int, bytes_max: int, depth_max: int) -> None:
        self._take(b"[")
        if self._skip_if(b"]"):
            return
        self._skip_value(start, bytes_max, depth_max - 1)
        while self._skip_if(b","):
            self._skip_value(start, bytes_max, depth_max - 1)
        self._take(b"]")

    def _skip_scalar(self, start: int) -> None:
        match = _SCALAR.match(self._data, start)
        if match is None:
            self._refuse("a value should begin", start)
        self.at = match.end()

    def _string_end(self, at: int, end_max: int) -> int:
        """Return the first byte after the string whose inside begins at ``at``."""
        while True:
            match = _STRING_PART.match(self._data, at, end_max)
            end = match.end() if match else at
            if self._data[end : end + 1] == _QUOTE and end < end_max:
                return end + 1
            if end == at:
                self._refuse("a string does not end, is too long, or holds a control character", at)
            at = end

    def _skip_space(self) -> int:
        match = _SPACE.match(self._data, self.at)
        if match:
            self.at = match.end()
        return self.at

    def _skip_if(self, mark: bytes) -> bool:
        match = _MARKS[mark].match(self._data, self.at)
        if match:
            self.at = match.end()
        return match is not None

    def _take(self, mark: bytes) -> None:
        if not self._skip_if(mark):
            self._refuse(f"{mark.decode()!r} should stand", self._skip_space())

    def _refuse(self, what: str, at: int) -> NoReturn:
        raise MalformedArtifact(
            f"{self._file_name}: {what} at byte {at} of its JSON", file=self._file_name, offset_bytes=at
        )


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key stands there twice")
    return value


def _natural(text: str) -> int:
    if not text.isdigit():
        raise ValueError(f"{text[:32]} is no natural number")
    return int(text)


def _shown(text: str) -> str:
    return repr(text[:64])


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_natural, parse_float=_natural, parse_constant=_natural
)
