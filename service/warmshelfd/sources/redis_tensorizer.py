"""A model that tensorizer's ``to_redis`` wrote, as the one ``.tensors`` file that it was.

tensorizer has a key for the file's front, ``PREFIX:header:0``, and for each tensor one
for its header and one for its data, ``PREFIX:NAME:OFFSET``. All of them follow from the
front, so nothing is searched for. The end of the file, which is zeros, is not kept.

What the front means is asked of a function that is passed in: formats are not known here.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import Protocol

from warmshelf.errors import SourceTruncated
from warmshelf.redis_uri import RedisUri
from warmshelfd.redis_wire import RedisRefusedError, RedisTooLongError, RedisWire
from warmshelfd.sources.redis_pool import RedisPool
from warmshelfd.sources.redis_ranges import ShortValueError, Want, read_sizes, read_wants
from warmshelfd.sources.redis_stored import StoredSource

FILE_NAME = "model.tensors"
"""The name of the one file, whatever it was called."""

END_BYTES = 8
"""Zeros at the end of every such file."""

FRONT_BYTES_MAX = (128 << 20) + 4096
"""Longest front: that of the longest index that a format reads by default."""


class Piece(Protocol):
    """One tensor in the file: where its header and its data begin, and where the data ends."""

    @property
    def name(self) -> bytes:
        """Its name, as it stands in the keys."""

    @property
    def header_offset(self) -> int:
        """Where the header begins."""

    @property
    def data_offset(self) -> int:
        """Where the header ends and the data begins."""

    @property
    def end(self) -> int:
        """Where the data ends."""


FindPieces = Callable[[str, bytes], Sequence[Piece]]
"""Returns the tensors in the front of a file of this name, in their order and without a hole."""


class TensorizerSource(StoredSource):
    """One model."""

    def __init__(self, uri: RedisUri, pool: RedisPool, find_pieces: FindPieces) -> None:
        """Read the front and every header; the errors are those of ``SourceOpener.open``."""
        super().__init__(uri, pool)
        self._find_pieces = find_pieces
        self._front, self._pieces, self._headers, sizes = self._all()
        self._look = _digest(self._front, self._headers, sizes)
        self._starts = [piece.header_offset for piece in self._pieces]
        self._header_starts = _sums(len(piece) for piece in map(_header_range, self._pieces))
        self._end = self._pieces[-1].end if self._pieces else len(self._front)
        self._sizes = MappingProxyType({FILE_NAME: self._end + END_BYTES})
        self._check_sizes(sizes)

    def read_into(self, name: str, offset: int, view: memoryview) -> None:
        """Take fronts and headers from memory, and read data from where it is kept."""
        self._check_range(name, offset, len(view))
        wants: list[Want] = []
        try:
            done = 0
            while done < len(view):
                with view[done:] as rest:
                    done += self._place(offset + done, rest, wants)
            self._read(wants)
        finally:  # an error keeps this frame, and no view may outlive the call
            for want in wants:
                want.view.release()

    def _place(self, at: int, rest: memoryview, wants: list[Want]) -> int:
        """Fill the beginning of the view, or want it filled; return how much."""
        if at < len(self._front):
            return _copy(self._front, at, rest)
        if at >= self._end:
            return _copy(bytes(END_BYTES), at - self._end, rest)
        number = bisect_right(self._starts, at) - 1
        piece = self._pieces[number]
        if at < piece.data_offset:
            start = self._header_starts[number]
            header = self._headers[start : start + len(_header_range(piece))]
            return _copy(header, at - piece.header_offset, rest)
        size = min(piece.end - at, len(rest))
        wants.append(Want(self._data_key(piece), at - piece.data_offset, rest[:size]))
        return size

    # --- what is there ------------------------------------------------------

    def _look_now(self) -> str:
        front, _, headers, sizes = self._all()
        return _digest(front, headers, sizes)

    def _all(self) -> tuple[bytes, Sequence[Piece], bytes, list[int]]:
        """Return the front, the tensors, all headers, and how long each tensor's data is."""
        try:
            return self._pool.run(self._ask)
        except ShortValueError as error:
            raise self._incomplete(error.key) from None
        except (RedisRefusedError, RedisTooLongError) as error:
            raise self._unfit(error) from None

    def _ask(self, wire: RedisWire) -> tuple[bytes, Sequence[Piece], bytes, list[int]]:
        key = self._key(b"header", 0)
        size = read_sizes(wire, [key])[0]
        if not size:
            raise self._gone()
        if size > FRONT_BYTES_MAX:
            raise RedisTooLongError(size, FRONT_BYTES_MAX)
        front = bytearray(size)
        read_wants(wire, [Want(key, 0, memoryview(front))])
        pieces = self._find_pieces(FILE_NAME, bytes(front))
        headers = bytearray(sum(len(_header_range(piece)) for piece in pieces))
        read_wants(wire, self._header_wants(pieces, memoryview(headers)))
        return bytes(front), pieces, bytes(headers), read_sizes(wire, [self._data_key(piece) for piece in pieces])

    def _header_wants(self, pieces: Sequence[Piece], view: memoryview) -> Iterator[Want]:
        start = 0
        for piece in pieces:
            end = start + len(_header_range(piece))
            yield Want(self._key(piece.name, piece.header_offset), 0, view[start:end])
            start = end

    def _check_sizes(self, sizes: Sequence[int]) -> None:
        """Check that every tensor's data is there and as long as the front says."""
        for piece, size in zip(self._pieces, sizes, strict=True):
            expected = piece.end - piece.data_offset
            if size != expected:
                key = self._data_key(piece).decode(errors="backslashreplace")
                raise SourceTruncated(
                    f"{self.uri}: the value of {key} has {size} bytes, it should have {expected}",
                    uri=self.uri,
                    key=key,
                    size_bytes=size,
                    expected_bytes=expected,
                )

    def _incomplete(self, key: bytes) -> SourceTruncated:
        shown = key.decode(errors="backslashreplace")
        return SourceTruncated(f"{self.uri}: the value of {shown} is missing or too short", uri=self.uri, key=shown)

    def _data_key(self, piece: Piece) -> bytes:
        return self._key(piece.name, piece.data_offset)

    def _key(self, name: bytes, offset: int) -> bytes:
        return b"%b:%b:%d" % (self._name.encode(), name, offset)


def front_key(name: str) -> bytes:
    """Return the key of the front of the model of this name."""
    return f"{name}:header:0".encode()


def _header_range(piece: Piece) -> range:
    return range(piece.header_offset, piece.data_offset)


def _sums(sizes: Iterator[int]) -> list[int]:
    """Return where each of these begins, one behind the other."""
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += size
    return starts


def _copy(source: bytes, at: int, target: memoryview) -> int:
    size = min(len(source) - at, len(target))
    target[:size] = source[at : at + size]
    return size


def _digest(front: bytes, headers: bytes, sizes: Sequence[int]) -> str:
    digest = hashlib.sha256(b"%d:" % len(front))
    digest.update(front)
    digest.update(headers)
    digest.update(" ".join(map(str, sizes)).encode())
    return digest.hexdigest()
