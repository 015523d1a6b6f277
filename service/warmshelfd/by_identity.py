"""Remembers what follows from objects that never change, by the objects themselves.

Equal headers are parsed once and then shared, so the same large objects come by again and
again; to hash or to compare them would cost about as much as what is remembered.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

V = TypeVar("V")


class ByIdentity(Generic[V]):
    """The latest results. May be used by several threads."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._lock = threading.Lock()  # guards what follows; the last used come last
        # The objects are kept too: no other can have their identity meanwhile.
        self._kept: OrderedDict[tuple[int, ...], tuple[tuple[object, ...], V]] = OrderedDict()

    def find(self, *of: object) -> V | None:
        """Return what was kept for these very objects; None if nothing is."""
        key = tuple(map(id, of))
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][1]

    def keep(self, value: V, *of: object) -> V:
        """Keep a value for these objects, and return it."""
        with self._lock:
            self._kept[tuple(map(id, of))] = (of, value)
            while len(self._kept) > self._count_max:
                self._kept.popitem(last=False)
        return value
