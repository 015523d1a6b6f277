"""What is told to whoever traces: that an acquire begins and ends, and how a load went.

A ``Tracing`` as it stands here makes nothing of it, which is what a daemon has that was not told where
to send spans. ``otel.py`` makes spans. Knows neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeAlias

from warmshelf.types import LoadPhase

Metadata: TypeAlias = "Iterable[tuple[str, str | bytes]]"
"""What came with a call, beside its request."""


@dataclass(frozen=True, slots=True)
class EndedLoad:
    """A load that has ended; times by the monotonic clock.

    Attributes:
        artifact_id: of what.
        kind: as metrics have it.
        scheme: of its source.
        outcome: as metrics have it.
        begun: when each phase began, the first with the load.
        end: when it ended.
    """

    artifact_id: str
    kind: str
    scheme: str
    outcome: str
    begun: Sequence[tuple[LoadPhase, float]]
    end: float


class Tracing:
    """Makes no spans."""

    def acquire(self, artifact_id: str, metadata: Metadata) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return what a call to acquire happens in; what it starts belongs to it."""
        return _NOTHING

    def load_ended(self, load: EndedLoad) -> str:  # noqa: ARG002
        """Note a load, in the task that it ran in; return the ID of its trace, "" if nobody will see it."""
        return ""

    def close(self) -> None:
        """Send what is still to be sent, within a moment."""


_NOTHING = nullcontext()
NO_TRACING = Tracing()
