"""What changed lately: numbers for watchers to go on from. Pure.

A change is the ID of an artifact that was added, changed or removed; what became
of it stands in the catalog. Old changes are forgotten, and who asks for those
is told to begin anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from warmshelf.errors import SequenceCompacted


class Changes:
    """The latest changes, by rising sequence numbers without holes."""

    def __init__(self, *, first_sequence: int, change_count_max: int) -> None:
        """Begin after ``first_sequence``, which is above every number an earlier daemon gave."""
        self._last = first_sequence
        self._ids: deque[str] = deque(maxlen=change_count_max)

    @property
    def last_sequence(self) -> int:
        """The number of the latest change."""
        return self._last

    def note(self, artifact_id: str) -> None:
        """Count a change."""
        self._last += 1
        self._ids.append(artifact_id)

    def after(self, sequence: int) -> Iterator[tuple[int, str]]:
        """Return number and artifact ID of each change after a number, oldest first.

        Raises:
            SequenceCompacted: some of them are forgotten, or the number is not one of ours.
        """
        oldest = self._last - len(self._ids)
        if not oldest <= sequence <= self._last:
            raise SequenceCompacted(
                f"changes after {sequence} are not known, only those after {oldest}; watch from 0 again",
                sequence_number=sequence,
                oldest_number=oldest,
            )
        return iter(list(enumerate(islice(self._ids, sequence - oldest, None), sequence + 1)))
