"""A crowd before the run: more callers at once than will ever come again.

A daemon makes a thread where all others of a pool are busy, and its allocator keeps what a peak took. Under an even
load that comes to an end after days; after a crowd it has.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import warmshelf
from kit.processes import Daemon
from warmshelf.errors import WarmshelfError

CALLER_COUNT = 32
"""More than any pool of a daemon has threads."""

SECONDS_MAX = 20.0
CALL_SECONDS = 30.0
EVICTED_SHARE = 0.1


def crowd(daemon: Daemon, ids: Sequence[str], seconds: float, chance: random.Random) -> None:
    """Have many acquire and evict artifacts at once, more of them than there is room for."""
    until = time.monotonic() + min(seconds, SECONDS_MAX)
    with daemon.connect() as shelf, ThreadPoolExecutor(CALLER_COUNT) as callers:
        seeds = [chance.getrandbits(32) for _ in range(CALLER_COUNT)]
        list(callers.map(lambda seed: _call(shelf, ids, until, random.Random(seed)), seeds))


def _call(shelf: warmshelf.Shelf, ids: Sequence[str], until: float, chance: random.Random) -> None:
    while time.monotonic() < until:
        artifact_id = chance.choice(ids)
        with suppress(WarmshelfError):  # somebody has what is to be evicted
            if chance.random() < EVICTED_SHARE:
                shelf.evict(artifact_id)
            else:
                shelf.acquire(artifact_id, timeout=CALL_SECONDS).release()
