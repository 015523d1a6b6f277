"""How many bytes of headers may be under inspection at once, over all threads.

An inspection keeps what it has read until it ends, and may have to read more. So that
two never wait for each other, the oldest of those that hold something never waits:
the bound is exceeded by what one inspection needs, at most. Knows no file and no
format.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from warmshelfd import stopping
from warmshelfd.formats.base import Files, Range, expect

FREE_BYTES = 1 << 20
"""So much every inspection may read without waiting: most need less, and so wait neither for a large one nor for a slow
source. For each thread that inspects, the bound is exceeded by so much."""

_LOOK_SECONDS = 0.1
"""How often who waits looks whether he is still wanted."""


class HeaderRoom:
    """The bound. May be used by several threads."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._changed = threading.Condition()  # guards what is below; told when an inspection ends
        self._held: dict[object, int] = {}  # by inspection, the oldest first

    @contextmanager
    def inspecting(self, files: Files) -> Iterator[Files]:
        """Give files that wait for room before they are read; at the end all of it is given back."""
        inspection = object()
        try:
            yield _Counted(files, self, inspection)
        finally:
            with self._changed:
                self._held.pop(inspection, None)
                self._changed.notify_all()

    def take(self, inspection: object, size: int) -> None:
        """Wait until an inspection may read so many bytes more.

        Raises:
            LoadCancelled: it is not wanted any more.
        """
        with self._changed:
            while not self._may_read(inspection, size):
                stopping.check()
                self._changed.wait(_LOOK_SECONDS)
            self._held[inspection] = self._held.get(inspection, 0) + size

    def _may_read(self, inspection: object, size: int) -> bool:
        is_oldest = next(iter(self._held), inspection) is inspection
        is_small = self._held.get(inspection, 0) + size <= FREE_BYTES
        return is_oldest or is_small or sum(self._held.values()) + size <= self._bytes_max


class _Counted:
    """Files of which every read is counted, and stops when nobody wants it."""

    def __init__(self, files: Files, room: HeaderRoom, inspection: object) -> None:
        self._files = files
        self._room = room
        self._inspection = inspection

    def files(self) -> Mapping[str, int]:
        return self._files.files()

    def read(self, name: str, offset: int, size: int) -> bytes:
        stopping.check()
        self._room.take(self._inspection, size)
        return self._files.read(name, offset, size)

    def expect(self, ranges: Iterable[Range]) -> None:
        expect(self._files, ranges)
