"""How far a load is, as those who wait for it see. Knows nothing of how it is done."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from warmshelf.errors import ArenaFull
from warmshelf.types import LoadPhase
from warmshelfd.shelved import Waiters
from warmshelfd.turns import Priority


@dataclass
class Load:
    """One load under way. Only the event loop touches it, but for ``done_bytes``.

    ``done_bytes`` is written by the thread that reads and only shown. ``room`` is why
    it waits for room, while it does. ``is_replaced`` says that it was stopped because its artifact has
    other bytes now. ``priority`` is the highest of those who want it.
    ``begun`` says when each phase began, by the monotonic clock. ``scheme`` is where the bytes are taken
    from, if that is not the artifact's source.
    """

    artifact_id: str
    phase: LoadPhase = LoadPhase.INSPECT
    done_bytes: int = 0
    total_bytes: int = 0
    room: ArenaFull | None = None
    priority: Priority = Priority.PRELOAD
    waiters: Waiters = field(default_factory=Waiters)
    task: asyncio.Task[None] | None = None
    error: Exception | None = None
    is_replaced: bool = False
    scheme: str = ""
    begun: list[tuple[LoadPhase, float]] = field(default_factory=lambda: [(LoadPhase.INSPECT, time.monotonic())])

    def begin_again(self) -> None:
        """Begin from the source, after a neighbour turned out to be of no use."""
        self.scheme = ""
        self.room = None
        self.enter(LoadPhase.INSPECT)

    def enter(self, phase: LoadPhase, total_bytes: int = 0) -> None:
        """Begin a phase."""
        self.begun.append((phase, time.monotonic()))
        self.phase, self.done_bytes, self.total_bytes = phase, 0, total_bytes

    def advance(self, done_bytes: int) -> None:
        """Note how far the phase is."""
        self.done_bytes = done_bytes

    def wait_for_room(self, room: ArenaFull | None) -> None:
        """Note why there is no room, or that there is."""
        self.room = room
