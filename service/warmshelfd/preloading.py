"""Loads that nobody waits for: the daemon's own wishes, which give way to everybody else's.

Knows no reason for such a wish.
"""

from __future__ import annotations

import time
from contextlib import aclosing

from warmshelf.errors import ArenaFull, ArtifactNotFound
from warmshelfd.leasing import Leasing
from warmshelfd.shelf import Shelf
from warmshelfd.turns import Priority

ROOM_SECONDS = 5.0
"""How long such a load waits for room. What workers hold may stay for days, and the daemon is to become ready."""


async def preload(shelf: Shelf, leasing: Leasing, artifact_id: str) -> None:
    """Make an artifact resident; errors as LeaseService.LoadArtifact.

    Raises:
        ArenaFull: there was no room for a while.
    """
    since: float | None = None
    async with aclosing(leasing.progress(artifact_id, None, Priority.PRELOAD)) as steps:
        async for _ in steps:
            room = _why_no_room(shelf, artifact_id)
            since = (since or time.monotonic()) if room else None
            if room is not None and since is not None and time.monotonic() - since >= ROOM_SECONDS:
                raise room


def _why_no_room(shelf: Shelf, artifact_id: str) -> ArenaFull | None:
    try:
        load = shelf.flights.find(shelf.aliases.resolve(artifact_id))
    except ArtifactNotFound:
        return None
    return load.room if load is not None else None
