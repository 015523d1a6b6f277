"""Waiting for room without waiting in vain: a load whose source may have changed finds that out meanwhile.

Opens no source and knows nothing of room. For the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from warmshelf.errors import ArenaFull, SourceChanged, WarmshelfError
from warmshelfd.registry.base import Registration

T = TypeVar("T")

Waiting = Callable[[ArenaFull | None], None]
"""Told why there is no room, and None once there is."""


async def reserve_unless(
    reserve: Callable[[Waiting], Awaitable[T]],
    note: Waiting,
    settle: Callable[[], Awaitable[None]] | None,
    give_back: Callable[[T], None],
) -> T:
    """Return what ``reserve`` gives; once it waits, ``settle`` may show that nobody needs it, by raising.

    Of two reads of a source the second is only made where there is time: while there is no room.
    ``give_back`` gets what came too late, for a caller that was cancelled.

    Raises:
        WarmshelfError: what ``settle`` raised.
    """
    if settle is None:
        return await reserve(note)
    doubts: list[asyncio.Task[None]] = []

    def waiting(room: ArenaFull | None) -> None:
        note(room)
        if room is not None and not doubts:
            doubts.append(asyncio.ensure_future(_settled(settle)))
            doubts[0].add_done_callback(lambda doubt: _failure(doubt) and reserving.cancel())

    reserving = asyncio.ensure_future(reserve(waiting))
    try:
        return await reserving
    except asyncio.CancelledError:
        if reserving.done() and not reserving.cancelled() and reserving.exception() is None:
            give_back(reserving.result())
        failure = _failure(doubts[0]) if doubts else None
        if failure is not None:
            raise failure from None
        raise
    finally:
        for doubt in doubts:
            doubt.cancel()
            await asyncio.wait([doubt])


async def _settled(settle: Callable[[], Awaitable[None]]) -> None:
    await settle()


def _failure(doubt: asyncio.Task[None]) -> WarmshelfError | None:
    """Return what a task raised that has ended, if it is an error of ours."""
    if not doubt.done() or doubt.cancelled():
        return None
    error = doubt.exception()
    return error if isinstance(error, WarmshelfError) else None


def is_doubtful(known: Registration, fingerprint: str) -> bool:
    """Say whether a source looks as if it held other bytes than those that an artifact is pinned to."""
    return bool(known.digest and known.fingerprint) and not known.follow and known.fingerprint != fingerprint


def check_pinned(known: Registration, digest: str) -> None:
    """Raise SourceChanged if a digest is another than the one that an artifact is pinned to; "" is none."""
    if digest and known.digest and digest != known.digest and not known.follow:
        raise SourceChanged(
            f"the source of {known.artifact_id!r} holds other bytes than those it was pinned to",
            artifact_id=known.artifact_id,
            expected=known.digest,
            actual=digest,
        )
