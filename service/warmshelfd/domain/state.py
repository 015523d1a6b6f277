"""The life of an artifact: one table, and the one function that reads it.

Two rules for this file. Everything that decides which state follows which stands
here. It does not know what a state costs or means: no bytes, leases, clock or I/O.

What still has holders after ``evicted``, ``replaced``, ``withdrawn`` or
``removed`` lives on as bytes without a name; that is the arena's matter, and no
state of the artifact.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from warmshelf.types import ArtifactState


class Event(Enum):
    """What can happen to an artifact that is known."""

    LOAD_STARTED = "load_started"
    """Space is reserved and bytes begin to arrive."""
    ADOPTED = "adopted"
    """A segment of an earlier daemon was found whole in the arena."""
    REMOVED = "removed"
    """Somebody asked to forget it."""
    SEALED = "sealed"
    """The segment is immutable, visible and readable."""
    LOAD_FAILED = "load_failed"
    """The load ended without a segment; the reason is kept."""
    LOAD_CANCELLED = "load_cancelled"
    """Nobody wanted the load any more."""
    EVICTED = "evicted"
    """Its segment was unlinked at once."""
    DRAIN_STARTED = "drain_started"
    """No new leases; the segment goes when the last one ends."""
    REPLACED = "replaced"
    """Other content was asked for: the next generation begins."""
    WITHDRAWN = "withdrawn"
    """Its bytes turned out not to be what they should be."""
    DRAINED = "drained"
    """The last lease ended and the segment was unlinked."""


GONE: Final = None
"""What ``step`` returns when the artifact is forgotten; it is no state."""

FIRST: Final = ArtifactState.REGISTERED
"""The state in which every life begins."""

TABLE: Mapping[ArtifactState, Mapping[Event, ArtifactState | None]] = {
    ArtifactState.REGISTERED: {
        Event.LOAD_STARTED: ArtifactState.LOADING,
        Event.ADOPTED: ArtifactState.READY,
        Event.REMOVED: GONE,
    },
    ArtifactState.LOADING: {
        Event.SEALED: ArtifactState.READY,
        Event.LOAD_FAILED: ArtifactState.FAILED,
        Event.LOAD_CANCELLED: ArtifactState.REGISTERED,
        Event.REMOVED: GONE,
    },
    ArtifactState.READY: {
        Event.EVICTED: ArtifactState.REGISTERED,
        Event.DRAIN_STARTED: ArtifactState.EVICTING,
        Event.REPLACED: ArtifactState.REGISTERED,
        Event.WITHDRAWN: ArtifactState.FAILED,
        Event.REMOVED: GONE,
    },
    ArtifactState.EVICTING: {
        Event.DRAINED: ArtifactState.REGISTERED,
        Event.REMOVED: GONE,
    },
    ArtifactState.FAILED: {
        Event.LOAD_STARTED: ArtifactState.LOADING,
        Event.REPLACED: ArtifactState.REGISTERED,
        Event.REMOVED: GONE,
    },
}
"""Every step there is. What is not here is a bug of whoever asks for it."""


class IllegalTransition(Exception):  # noqa: N818 - it names what was tried
    """The table has no such step; nothing has changed.

    Attributes:
        state: the state the artifact was, and is, in.
        event: what cannot happen there.
    """

    def __init__(self, state: ArtifactState, event: Event) -> None:
        super().__init__(f"an artifact that is {state.name} cannot be {event.value}")
        self.state = state
        self.event = event


def step(state: ArtifactState, event: Event) -> ArtifactState | None:
    """Return the state that follows, or GONE.

    Raises:
        IllegalTransition: the event cannot happen in this state.
    """
    row = TABLE[state]
    if event not in row:
        raise IllegalTransition(state, event)
    return row[event]


def mermaid() -> str:
    """Return the table as a mermaid state diagram, for the docs; one arrow per pair of states."""
    arrows: dict[tuple[str, str], list[str]] = {("[*]", FIRST.name): ["registered"]}
    for state, row in TABLE.items():
        for event, after in row.items():
            arrow = state.name, "[*]" if after is GONE else after.name
            arrows.setdefault(arrow, []).append(event.value)
    lines = [f"    {start} --> {end}: {', '.join(events)}" for (start, end), events in arrows.items()]
    return "\n".join(["stateDiagram-v2", *lines, ""])
