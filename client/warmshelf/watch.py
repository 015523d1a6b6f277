"""Watching the catalog: one sequence of changes, whatever becomes of the connection.

``Watch`` decides where to go on and when to start over. It knows no gRPC, only feeds,
each of which lasts until it breaks; ``Stream`` is the daemon's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol

from warmshelf._channel import PAUSE_SECONDS, Connection
from warmshelf._wire import change_from_proto
from warmshelf.errors import Cancelled, DaemonUnreachable, Draining, InvalidRequest, SequenceCompacted
from warmshelf.types import Change, ChangeKind
from warmshelf.v1 import catalog_pb2

SEQUENCE_MAX = 2**63 - 1
"""Largest number that the wire has room for."""


class Feed(Protocol):
    """Changes after one number, until it breaks."""

    def receive(self) -> Change:
        """Wait for the next change and return it.

        Raises:
            SequenceCompacted: changes after the number are gone.
            DaemonUnreachable, Draining, Cancelled: it is broken, or was cancelled.
        """

    def cancel(self) -> None:
        """End it, and wake who waits in ``receive``. Idempotent."""


class Watch(Iterator[Change]):
    """The changes of a catalog as they happen. One thread iterates it, any may ``close`` it.

    When the connection breaks, or the daemon is started anew, it goes on after the last
    change that it told. If the daemon no longer has what came after that one, it tells a
    STARTED_OVER and then everything as it is now.
    """

    def __init__(self, open_feed: Callable[[int], Feed], after: int = 0) -> None:
        """``open_feed`` returns the changes after a number; what it raises ends the iteration."""
        if not 0 <= after <= SEQUENCE_MAX:
            raise InvalidRequest(f"sequence {after} is not from 0 to {SEQUENCE_MAX}", sequence_number=after)
        self._open_feed = open_feed
        # Written by the thread that iterates. The feed is also cancelled by ``close``.
        self._feed: Feed | None = None
        self._after = after  # the number to go on after; 0 until a snapshot is complete
        self._has_told = after > 0  # there is a picture that a snapshot would replace
        self._starts_over = False  # the feed's first change is the first of such a snapshot
        self._held: Change | None = None  # that change, while STARTED_OVER is told
        self._pause_seconds = 0.0  # before the next feed; rises while feeds break that brought nothing
        # Set once, by any thread.
        self._closed = threading.Event()

    def close(self) -> None:
        """End the iteration, also one that is waiting. Idempotent."""
        self._closed.set()
        feed = self._feed
        if feed is not None:
            feed.cancel()

    def __next__(self) -> Change:
        change, self._held = self._held or self._receive(), None
        if self._starts_over:
            self._starts_over = False
            self._held = change
            return Change(0, ChangeKind.STARTED_OVER)
        self._after = change.sequence
        self._has_told = True
        return change

    def __enter__(self) -> Watch:  # noqa: PYI034 - typing.Self is of Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _receive(self) -> Change:
        while not self._closed.is_set():
            if self._feed is None and self._closed.wait(self._pause_seconds):
                break
            feed = self._feed or self._open()
            try:
                change = feed.receive()
            except SequenceCompacted:
                if self._after == 0:
                    raise
                self._after = 0
            except (Cancelled, DaemonUnreachable, Draining):
                self._lengthen_pause()
            else:
                self._pause_seconds = 0.0
                return change
            self._feed = None
        raise StopIteration

    def _open(self) -> Feed:
        self._feed = feed = self._open_feed(self._after)
        self._starts_over = self._after == 0 and self._has_told
        if self._closed.is_set():  # before it could see this feed
            feed.cancel()
        return feed

    def _lengthen_pause(self) -> None:
        first, longest = PAUSE_SECONDS
        self._pause_seconds = min(max(2 * self._pause_seconds, first), longest)


class Stream:
    """A call of WatchArtifacts. It has no deadline: nothing may change for hours."""

    def __init__(self, connection: Connection, after: int) -> None:
        self._connection = connection
        request = catalog_pb2.WatchArtifactsRequest(after_sequence=after)
        self._call: Any = connection.once(lambda: connection.catalog.WatchArtifacts(request))

    def receive(self) -> Change:
        """Wait for the next change and return it."""
        message = self._connection.once(lambda: next(self._call, None))
        if message is None:
            raise DaemonUnreachable(f"the daemon at {self._connection.address.text} ended the watch")
        return change_from_proto(message)

    def cancel(self) -> None:
        """End the call."""
        self._call.cancel()
