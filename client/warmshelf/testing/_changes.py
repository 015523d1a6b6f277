"""The changes of a FakeShelf, numbered, for whoever watches."""

from __future__ import annotations

import threading
from collections.abc import Callable

from warmshelf.errors import Cancelled, SequenceCompacted
from warmshelf.types import Artifact, Change, ChangeKind

_FIRST_SEQUENCE = 1  # before any change; 0 asks for a snapshot


class ChangeLog:
    """The ID of each change, oldest first. Guarded by ``changed``, which is notified of each."""

    def __init__(self, changed: threading.Condition) -> None:
        self.changed = changed
        self.closed = False
        self._noted: list[str] = []

    @property
    def last_sequence(self) -> int:
        """The number of the latest change."""
        return _FIRST_SEQUENCE + len(self._noted)

    def note(self, artifact_id: str) -> None:
        """Count a change."""
        with self.changed:
            self._noted.append(artifact_id)
            self.changed.notify_all()

    def wait_after(self, sequence: int, is_over: Callable[[], bool]) -> str:
        """Wait for the change after a number, and return its ID.

        Raises:
            SequenceCompacted: the number is not one of these.
            Cancelled: it is over.
        """
        with self.changed:
            index = sequence - _FIRST_SEQUENCE
            if not 0 <= index <= len(self._noted):
                raise SequenceCompacted(f"changes after {sequence} are not known", sequence_number=sequence)
            self.changed.wait_for(lambda: index < len(self._noted) or self.closed or is_over())
            if self.closed or is_over():
                raise Cancelled("the watch was closed")
            return self._noted[index]

    def close(self) -> None:
        """Wake all who wait; it is over."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()


class FakeFeed:
    """A feed as ``warmshelf.watch`` wants one. Read by one thread; ``_cancelled`` is set once, by any."""

    def __init__(self, log: ChangeLog, find: Callable[[str], Artifact | None], after: int) -> None:
        self._log = log
        self._find = find
        self._after = after
        self._snapshot: list[Change] = []
        self._cancelled = False

    def tell_first(self, artifacts: list[Artifact]) -> None:
        """Put a snapshot before the changes."""
        told = [Change(0, ChangeKind.CHANGED, artifact, artifact.artifact_id) for artifact in artifacts]
        self._snapshot = [*told, Change(self._log.last_sequence, ChangeKind.COMPLETE)]

    def receive(self) -> Change:
        """Wait for the next change and return it."""
        change = self._snapshot.pop(0) if self._snapshot else self._next()
        self._after = change.sequence
        return change

    def cancel(self) -> None:
        """End it."""
        self._cancelled = True
        with self._log.changed:
            self._log.changed.notify_all()

    def _next(self) -> Change:
        artifact_id = self._log.wait_after(self._after, lambda: self._cancelled)
        artifact = self._find(artifact_id)
        kind = ChangeKind.REMOVED if artifact is None else ChangeKind.CHANGED
        return Change(self._after + 1, kind, artifact, artifact_id)
