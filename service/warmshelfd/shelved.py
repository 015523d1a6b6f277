"""One segment in memory: whose bytes it is, and who has to do with it. Knows nothing of how it came or goes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from warmshelf.types import ArtifactKind
from warmshelfd.domain.catalog import Entry
from warmshelfd.memory.segment import Segment


@dataclass
class Waiters:
    """How many callers want an artifact's bytes and have no lease on them yet."""

    count: int = 0


@dataclass
class Shelved:
    """One segment in memory. Only the event loop touches it.

    ``entries`` are the artifacts whose bytes these are, by ID: several if their content
    is the same, none once the bytes have no name.
    ``streams`` counts reads under way; ``mapped`` is what the last probe found.
    ``checking`` is the check of its blocks, which others wait for; ``hashing`` is
    work on its bytes that may be stopped at any time. ``waiters`` asked for the load
    that brought it.
    """

    segment: Segment
    kind: ArtifactKind
    entries: dict[str, Entry]
    waiters: Waiters
    streams: int = 0
    mapped: bool = False
    checking: asyncio.Task[None] | None = None
    hashing: asyncio.Task[None] | None = None
