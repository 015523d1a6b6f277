"""One connection to a Redis server: commands out, replies in, long ones straight into memory that is there.

Only what a reader needs. No reply makes us allocate more than was asked for, and none
takes longer than it may: neither silence nor a drip holds a thread. A reply that is
not read to its end leaves the connection unusable, so its owner closes it after any
error. Knows no keys.

Of an error reply only the first word is kept: servers repeat arguments in the rest,
and one of the arguments is the password.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

LINE_BYTES_MAX = 16 << 10
"""Longest line of a reply that is read; Redis' own errors have some hundred bytes."""

_BUFFER_BYTES = 32 << 10
_END = b"\r\n"
_NUMBER = re.compile(rb"-1|0|[1-9][0-9]{0,18}")
_CODE = re.compile(rb"[A-Z][A-Z0-9]{0,31}")

_OTHER = "answered something else than was asked"

Command = Sequence[bytes]

Reply: TypeAlias = "bytes | int | list[Reply] | RedisRefusedError | TooLong | None"
"""Whatever a server says: None where it has nothing, an error as a value."""

_DEPTH_MAX = 8
"""Deepest nesting of a reply: that of a stream's entries is 5."""

_ITEMS_MAX = 1 << 20
"""Longest array of a reply."""

_DISCARD_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server may take.

    Attributes:
        connect_seconds: to accept a connection.
        silence_seconds: between two pieces of a reply; above any pause of a healthy server.
        work_seconds: for everything that one piece of work asks, however steadily it drips.
        retry_seconds: what trying again may take, first attempt included, before it is given up.
        attempts: how often it is tried at most.
    """

    connect_seconds: float = 3.0
    silence_seconds: float = 3.0
    work_seconds: float = 60.0
    retry_seconds: float = 5.0
    attempts: int = 4


class RedisAwayError(Exception):
    """The server cannot be reached, does not answer in time, or speaks something else. May pass."""


class RedisRefusedError(Exception):
    """The server answered with an error. ``code`` is its first word."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class RedisTooLongError(Exception):
    """A value is longer than there is room for; none of it was read."""

    def __init__(self, size_bytes: int, size_max: int) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes
        self.size_max = size_max


class TooLong(Enum):
    """Stands in a reply for a value that was longer than asked for: it was read and dropped."""

    VALUE = "value"


class RedisWire:
    """One connection. Belongs to one thread at a time."""

    def __init__(self, sock: socket.socket, silence_seconds: float) -> None:
        self._sock = sock
        self._silence_seconds = silence_seconds
        self._deadline = 0.0
        # What was received and not read yet is _buffer[_start:_stop].
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._stop = 0

    def allow(self, seconds: float) -> None:
        """Give what follows so many seconds."""
        self._deadline = time.monotonic() + seconds

    def send(self, commands: Iterable[Command]) -> None:
        """Send commands; as many replies are to be read."""
        data = b"".join(map(_encode, commands))
        self._set_timeout()
        try:
            self._sock.sendall(data)
        except OSError as error:
            raise _away(error) from None

    def answer(self) -> bytes | int:
        """Read a status or a number."""
        kind, text = self._head()
        if kind == b"+":
            return text
        if kind == b":":
            return _number(text)
        raise RedisAwayError(_OTHER)

    def values(self, count: int, size_max: int) -> list[bytes | None]:
        """Read an array of so many values, together of at most so many bytes; None: there is no such value."""
        if self._head() != (b"*", b"%d" % count):
            raise RedisAwayError(_OTHER)
        values: list[bytes | None] = []
        for _ in range(count):
            value = self._value(size_max)
            size_max -= len(value or b"")
            values.append(value)
        return values

    def value_into(self, view: memoryview) -> int:
        """Read a value into the beginning of the view; return how long it is, 0 if there is none."""
        size = self._size(*self._head(), len(view))
        if size is None:
            return 0
        with view[:size] as target:
            self._fill(target)
        self._end_value()
        return size

    def reply(self, value_bytes_max: int, depth: int = 0) -> Reply:
        """Read any reply; values in it that are longer than may be are dropped, errors are values."""
        try:
            kind, text = self._head()
        except RedisRefusedError as error:
            return error
        if kind == b"+":
            return text
        if kind == b":":
            return _number(text)
        if kind == b"$":
            return self._bounded(_number(text), value_bytes_max)
        if kind != b"*" or depth == _DEPTH_MAX or (count := _number(text)) > _ITEMS_MAX:
            raise RedisAwayError("does not speak Redis' protocol")
        return None if count < 0 else [self.reply(value_bytes_max, depth + 1) for _ in range(count)]

    def _bounded(self, size: int, size_max: int) -> bytes | TooLong | None:
        if size < 0:
            return None
        if size <= size_max:
            value = bytearray(size)
            self._fill(memoryview(value))
            self._end_value()
            return bytes(value)
        scratch = memoryview(bytearray(_DISCARD_BYTES))
        while size > 0:
            self._fill(scratch[: min(size, _DISCARD_BYTES)])
            size -= min(size, _DISCARD_BYTES)
        self._end_value()
        return TooLong.VALUE

    def fileno(self) -> int:
        """Return the socket's descriptor, to wait for what comes."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._sock.close()

    def cut(self) -> None:
        """Have the thread that waits for this connection see its end. For any thread."""
        with contextlib.suppress(OSError):  # closed already
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)  # TLS's own would wait, and change the object

    # --- replies ------------------------------------------------------------

    def _head(self) -> tuple[bytes, bytes]:
        """Read a reply's first line: its kind, and the rest."""
        line = self._line()
        kind, text = line[:1], line[1:]
        if kind == b"-":
            code = _CODE.match(text)
            raise RedisRefusedError(code[0].decode() if code else "ERR")
        return kind, text

    def _value(self, size_max: int) -> bytes | None:
        size = self._size(*self._head(), size_max)
        if size is None:
            return None
        value = bytearray(size)
        self._fill(memoryview(value))
        self._end_value()
        return bytes(value)

    def _size(self, kind: bytes, text: bytes, size_max: int) -> int | None:
        if kind != b"$":
            raise RedisAwayError(_OTHER)
        size = _number(text)
        if size > size_max:
            raise RedisTooLongError(size, size_max)
        return None if size < 0 else size

    def _end_value(self) -> None:
        end = bytearray(len(_END))
        self._fill(memoryview(end))
        if end != _END:
            raise RedisAwayError("answered with a value that does not end where it says")

    def _line(self) -> bytes:
        while (end := self._buffer.find(_END, self._start, self._stop)) < 0:
            if self._stop - self._start > LINE_BYTES_MAX:
                raise RedisAwayError(f"answered with a line of more than {LINE_BYTES_MAX} bytes")
            self._receive_more()
        line = bytes(self._view[self._start : end])
        self._start = end + len(_END)
        return line

    def _fill(self, target: memoryview) -> None:
        """Fill the target with what comes next: first from the buffer, then straight from the socket."""
        done = min(len(target), self._stop - self._start)
        target[:done] = self._view[self._start : self._start + done]
        self._start += done
        while done < len(target):
            with target[done:] as rest:
                done += self._receive(rest)

    def _receive_more(self) -> None:
        if self._start == self._stop:
            self._start = self._stop = 0
        elif self._start > _BUFFER_BYTES // 2:
            left = bytes(self._view[self._start : self._stop])
            self._view[: len(left)] = left
            self._start, self._stop = 0, len(left)
        self._stop += self._receive(self._view[self._stop :])

    def _receive(self, target: memoryview) -> int:
        self._set_timeout()
        try:
            count = self._sock.recv_into(target)
        except OSError as error:
            raise _away(error) from None
        if count == 0:
            raise RedisAwayError("closed the connection")
        return count

    def _set_timeout(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise RedisAwayError("took too long")
        self._sock.settimeout(min(left, self._silence_seconds))


def _number(text: bytes) -> int:
    if not _NUMBER.fullmatch(text):
        raise RedisAwayError("does not speak Redis' protocol")
    return int(text)


def _encode(command: Command) -> bytes:
    return b"".join((b"*%d\r\n" % len(command), *(b"$%d\r\n%b\r\n" % (len(part), part) for part in command)))


def _away(error: OSError) -> RedisAwayError:
    if isinstance(error, TimeoutError):
        return RedisAwayError("does not answer")
    return RedisAwayError(f"broke the connection: {error.strerror or type(error).__name__}")
