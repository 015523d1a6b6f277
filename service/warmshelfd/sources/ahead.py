"""Reads what will be asked for next before it is asked for: all of it at once, one request each.

An inspection looks into every file of a source, one after the other. Where each look
costs a round trip, they are made at the same time and kept here until the inspection
comes to them. Knows no protocol.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from warmshelf.errors import SourceUnavailable, WarmshelfError
from warmshelfd.sources.base import Range

AHEAD_BYTES_MAX = 32 << 20
"""Most bytes kept for one open source: the heads of 128 shards, or the headers of a hundred thousand tensors."""

AHEAD_THREADS = 32
"""Requests at once. A checkpoint of a hundred shards takes three or four round trips."""

DATA_BYTES_MIN = 1 << 20
"""So long are reads of tensors. Once those begin, nobody asks for what was read ahead any more."""


class ReadAhead:
    """Ranges of one source's files that were read before they were asked for. For several threads."""

    def __init__(self, fetch: Callable[[str, int, int], bytes]) -> None:
        """``fetch`` reads a range: name, offset and size."""
        self._fetch = fetch
        self._lock = threading.Lock()  # guards the two below
        self._held: dict[str, list[tuple[int, bytes]]] = {}  # by name: where a range begins, and what is there
        self._size_bytes = 0

    def hold(self, name: str, offset: int, data: bytes) -> None:
        """Keep a range that was read."""
        with self._lock:
            if self._size_bytes + len(data) <= AHEAD_BYTES_MAX:
                self._held.setdefault(name, []).append((offset, data))
                self._size_bytes += len(data)

    def expect(self, ranges: Iterable[Range]) -> None:
        """Read the ranges, but for those that are held and those for which there is no room.

        Raises:
            SourceUnavailable: any of them cannot be read just now. Other failures are told to
                whoever asks for that range, if anybody does.
        """
        wanted = list(self._wanted(ranges))
        if not wanted:
            return
        with ThreadPoolExecutor(min(len(wanted), AHEAD_THREADS), "read-ahead") as threads:
            for _ in threads.map(self._read, wanted):
                pass

    def copy_to(self, name: str, offset: int, view: memoryview) -> bool:
        """Fill the view from what is held; say whether all of it was there."""
        if len(view) >= DATA_BYTES_MIN:
            self.clear()
            return False
        found = self._find(name, offset, len(view))
        if found is None:
            return False
        view[:] = found
        return True

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._held.clear()
            self._size_bytes = 0

    def _wanted(self, ranges: Iterable[Range]) -> Iterator[Range]:
        room = AHEAD_BYTES_MAX - self._size_bytes
        for name, offset, size in ranges:
            if size and size <= room and self._find(name, offset, size) is None:
                room -= size
                yield name, offset, size

    def _read(self, wanted: Range) -> None:
        try:
            self.hold(wanted[0], wanted[1], self._fetch(*wanted))
        except SourceUnavailable:
            raise
        except WarmshelfError:
            return

    def _find(self, name: str, offset: int, size: int) -> memoryview | None:
        with self._lock:
            for start, data in self._held.get(name, ()):
                if start <= offset and offset + size <= start + len(data):
                    return memoryview(data)[offset - start : offset - start + size]
        return None
