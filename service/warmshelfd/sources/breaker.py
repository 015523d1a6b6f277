"""Spares servers that do not answer, and whoever would wait for them: after some failures in a row, a pause.

A *place* is a server, or whatever else sources of one kind wait for. While it pauses, who
asks is refused at once, but for one at a time that tries whether it answers again: anybody
once the pause is over, and before that a source that has not failed itself, so that one
that is broken alone does not keep others of the same server away. Knows no protocol.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from warmshelf.errors import SourceUnavailable

PLACES_MAX = 1024
"""Most places that are remembered to have failed; operators allow far fewer."""

URIS_MAX = 4096
"""Most sources of one place that are remembered to have failed; beyond, all count as such."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """When a place pauses."""

    failures_max: int = 5
    """So many failures in a row, each after its own tries, and it pauses; one broken file alone is asked less often."""
    pause_seconds: float = 5.0
    """How long: short beside the time in which a server comes back, long beside what asking again costs."""


@dataclass(slots=True)
class _Place:
    """How a place has failed since it last answered."""

    failure_count: int = 0
    uris: set[int] = field(default_factory=set)  # hashes: that two are taken for one costs one of them a pause
    asked_from: float = 0.0  # when anybody may ask again
    tried_until: float = 0.0  # somebody tries it now; whoever never says how it went is forgotten then


class Breakers:
    """The places that failed. For several threads."""

    def __init__(self, limits: BreakerLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()  # guards the places, the last that failed last
        self._places: OrderedDict[str, _Place] = OrderedDict()

    def check(self, place: str, uri: str) -> None:
        """Return if a source may be asked for.

        Raises:
            SourceUnavailable: its place pauses; says how often it failed and for how long it will.
        """
        with self._lock:
            known, now = self._places.get(place), self._clock()
            if known is None or known.failure_count < self._limits.failures_max:
                return
            may_ask = now >= known.asked_from or (hash(uri) not in known.uris and len(known.uris) < URIS_MAX)
            if now >= known.tried_until and may_ask:
                known.tried_until = now + self._limits.pause_seconds
                return
            count, seconds = known.failure_count, max(known.asked_from, known.tried_until) - now
        raise SourceUnavailable(
            f"{place} has failed {count} times in a row; it is asked again in {seconds:.1f} s",
            server=place,
            failure_count=count,
            retry_after_seconds=round(seconds, 3),
        )

    def failed(self, place: str, uri: str) -> None:
        """Note that a place did not answer for a source."""
        with self._lock:
            known = self._places.pop(place, None) or _Place()
            self._places[place] = known
            known.failure_count += 1
            known.tried_until = 0.0
            if len(known.uris) < URIS_MAX:
                known.uris.add(hash(uri))
            if known.failure_count >= self._limits.failures_max:
                known.asked_from = self._clock() + self._limits.pause_seconds
            while len(self._places) > PLACES_MAX:
                self._places.popitem(last=False)
        if known.failure_count == self._limits.failures_max:
            _log.warning("%s has failed %d times in a row and is asked rarely now", place, known.failure_count)

    def answered(self, place: str) -> None:
        """Note that a place answered."""
        with self._lock:
            known = self._places.pop(place, None)
        if known is not None and known.failure_count >= self._limits.failures_max:
            _log.info("%s answers again", place)
