"""Whose turn it is: by priority, and among equals first come, first served. Event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import IntEnum
from typing import TypeAlias


class Priority(IntEnum):
    """How much a load is wanted; a smaller number goes first."""

    DEMAND = 0
    """A worker waits for a lease."""
    PREFETCH = 1
    """Somebody asked to load."""
    PRELOAD = 2
    """The daemon's own wish."""


GiveWay: TypeAlias = Callable[[], Awaitable[None]]


class Turns:
    """A queue of which one at a time has its turn."""

    def __init__(self) -> None:
        self.taken = False
        # Who waits, in the order in which they came. A priority may rise while its owner waits.
        self._waiting: list[tuple[Callable[[], Priority], asyncio.Future[None]]] = []

    def __repr__(self) -> str:
        return f"<Turns {'taken' if self.taken else 'free'}, {len(self._waiting)} waiting>"

    @asynccontextmanager
    async def turn(self, priority: Callable[[], Priority]) -> AsyncIterator[GiveWay]:
        """Wait for one's turn, and have it for as long as the context lasts.

        Gives a function to call where one has the turn and can do nothing with it: if somebody
        waits who goes first by priority, it lets him, and returns when one has the turn again.
        """
        if self.taken:
            await self._wait(priority, len(self._waiting))
        self.taken = has_turn = True

        async def give_way() -> None:
            nonlocal has_turn
            if any(other() < priority() for other, future in self._waiting if not future.done()):
                has_turn = False
                self._pass_on()
                await self._wait(priority, 0)  # before its equals, all of whom came later
                has_turn = True

        try:
            yield give_way
        finally:
            if has_turn:
                self._pass_on()

    async def _wait(self, priority: Callable[[], Priority], index: int) -> None:
        place = (priority, asyncio.get_running_loop().create_future())
        self._waiting.insert(index, place)
        try:
            await place[1]
        except asyncio.CancelledError:
            if place in self._waiting:
                self._waiting.remove(place)
            elif not place[1].cancelled():  # it was given the turn and cannot take it
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give the turn to the next, who has it from this moment on."""
        self._waiting = [place for place in self._waiting if not place[1].done()]  # the others were cancelled
        self.taken = bool(self._waiting)
        if self._waiting:
            place = min(self._waiting, key=lambda place: place[0]())  # the first of the smallest
            self._waiting.remove(place)
            place[1].set_result(None)


class NamedTurns:
    """For each name, one at a time has its turn, in the order in which they came."""

    def __init__(self) -> None:
        # By name: whose turn it is, and how many have it or wait for it. Only names in use are there.
        self._names: dict[str, tuple[asyncio.Lock, int]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def turn(self, name: str) -> AbstractAsyncContextManager[None]:
        """Wait for one's turn, and have it for as long as the context lasts."""
        return _NamedTurn(self._names, name)


class _NamedTurn(AbstractAsyncContextManager[None]):
    """One turn. A class: an asynchronous generator takes several times as long, and a full resync has thousands."""

    def __init__(self, names: dict[str, tuple[asyncio.Lock, int]], name: str) -> None:
        self._names = names
        self._name = name

    async def __aenter__(self) -> None:
        lock, count = self._names.get(self._name) or (asyncio.Lock(), 0)
        self._names[self._name] = (lock, count + 1)
        try:
            await lock.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._names[self._name][0].release()
        self._leave()

    def _leave(self) -> None:
        lock, count = self._names.pop(self._name)
        if count > 1:
            self._names[self._name] = (lock, count - 1)
