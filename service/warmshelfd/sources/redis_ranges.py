"""Reads ranges of many values over one connection, each straight to where its bytes belong.

Asked for in pieces, a few ahead: a server copies what it is asked for before it sends
it, so long questions cost it memory and lose the processor's cache, and one question at
a time leaves it idle. Knows no layout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from warmshelfd.redis_wire import Command, RedisAwayError, RedisWire

PIECE_BYTES = 256 << 10
"""What one question asks for at most: still in the cache of the server's core when it is sent."""

AHEAD_BYTES = 2 * PIECE_BYTES
"""What may be asked for and not read yet."""

AHEAD_COUNT = 128
"""How many questions may be open, however short their answers."""


@dataclass(frozen=True, slots=True)
class Want:
    """A range of a value, from ``offset`` on, and the memory that it fills."""

    key: bytes
    offset: int
    view: memoryview


class ShortValueError(Exception):
    """A value ends before ``end``, up to which it was wanted, or is not there."""

    def __init__(self, key: bytes, end: int) -> None:
        super().__init__(key)
        self.key = key
        self.end = end


def read_wants(wire: RedisWire, wants: Iterable[Want]) -> None:
    """Fill the memory of every want.

    Raises:
        ShortValueError: a value is too short.
    """
    pieces = _pieces(wants)
    pending: deque[Want] = deque()
    following = next(pieces, None)
    try:
        while following or pending:
            asked: list[Command] = []
            while following and _has_room(pending, following):
                asked.append(_question(following))
                pending.append(following)
                following = next(pieces, None)
            if asked:
                wire.send(asked)
            _read_piece(wire, pending.popleft())
    finally:  # an error keeps this frame, and no view may outlive the call
        for piece in (*pending, *filter(None, [following])):
            piece.view.release()


def _read_piece(wire: RedisWire, piece: Want) -> None:
    with piece.view as view:
        size = len(view)
        if wire.value_into(view) < size:
            raise ShortValueError(piece.key, piece.offset + size)


def read_sizes(wire: RedisWire, keys: Sequence[bytes]) -> list[int]:
    """Return how long each value is; 0 for one that is not there."""
    sizes: list[int] = []
    for first in range(0, len(keys), AHEAD_COUNT):
        some = keys[first : first + AHEAD_COUNT]
        wire.send([b"STRLEN", key] for key in some)
        for _ in some:
            size = wire.answer()
            if not isinstance(size, int):
                raise RedisAwayError("answered something else than was asked")
            sizes.append(size)
    return sizes


def _has_room(pending: deque[Want], following: Want) -> bool:
    ahead = sum(len(want.view) for want in pending) + len(following.view)
    return not pending or (ahead <= AHEAD_BYTES and len(pending) < AHEAD_COUNT)


def _question(want: Want) -> Command:
    return [b"GETRANGE", want.key, b"%d" % want.offset, b"%d" % (want.offset + len(want.view) - 1)]


def _pieces(wants: Iterable[Want]) -> Iterator[Want]:
    for want in wants:
        for start in range(0, len(want.view), PIECE_BYTES):
            yield Want(want.key, want.offset + start, want.view[start : start + PIECE_BYTES])
