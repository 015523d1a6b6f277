"""The use case of another budget: larger at once, smaller once what must leave has left.

Runs on the event loop; what blocks goes to threads. Knows no gRPC, nor where the
budget at start comes from.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from warmshelf.errors import ArenaFull, Draining, InvalidRequest
from warmshelfd.domain.placement import ArenaView, Fits, plan_shrink
from warmshelfd.running import wait_at_most
from warmshelfd.shelf import Shelf

_log = logging.getLogger(__name__)

_LOOK_AGAIN_SECONDS = 0.25
"""Nobody tells us when a mapping ends; a load that waits for room looks as often."""

_ANSWER_SECONDS_MAX = 0.25
"""Callers are answered this much before their deadline, so that the answer still reaches them."""


class Resizing:
    """Changes the budget of a running daemon, one call after another."""

    def __init__(self, shelf: Shelf, floor_of: Callable[[int], int]) -> None:
        """``floor_of`` is what bases must leave to adapters with a budget."""
        self._shelf = shelf
        self._residency = shelf.residency
        self._arena = shelf.residency.arena
        self._floor_of = floor_of
        # Where others spend of the same budget: why it cannot be so large, making it smaller, and telling them.
        self.why_not: Callable[[int], str] = lambda _: ""
        self.try_shrink: Callable[[int, int], Awaitable[bool]] = self._try_shrink
        self.on_set: Callable[[], None] = lambda: None
        self._turn = asyncio.Lock()  # budgets that meet are set in the order in which they came

    async def set_budget(self, budget_bytes: int, timeout: float | None) -> None:
        """Have another budget; see CapabilitiesService.SetBudget for the errors."""
        if self._shelf.draining:
            raise Draining("the daemon is stopping")
        if budget_bytes <= 0:
            raise InvalidRequest(f"a budget of {budget_bytes} bytes holds nothing", budget_bytes=budget_bytes)
        if why := self.why_not(budget_bytes):
            raise InvalidRequest(why, budget_bytes=budget_bytes)
        until = float("inf") if timeout is None else time.monotonic() + timeout - min(_ANSWER_SECONDS_MAX, timeout / 10)
        async with self._turn:
            before = self._arena.whole_budget_bytes
            if budget_bytes > before:
                await self._residency.in_thread(self._arena.grow, budget_bytes)
            elif budget_bytes < before:
                await self._shrink(budget_bytes, until)
            self._residency.floor_bytes = self._floor_of(self._arena.budget_bytes)
            self.on_set()
            self._shelf.metrics.budget_set(budget_bytes)
            self._residency.notify()  # whoever waits for room may find some
            _log.info("the budget is %d bytes now, it was %d", budget_bytes, before)

    async def _shrink(self, budget_bytes: int, until: float) -> None:
        size = self._arena.whole_budget_bytes - budget_bytes
        while not await self.try_shrink(size, budget_bytes):
            if time.monotonic() >= until or self._shelf.draining:
                raise self._full(budget_bytes)
            with contextlib.suppress(asyncio.TimeoutError):
                await wait_at_most(
                    self._residency.changed().wait(), min(_LOOK_AGAIN_SECONDS, max(until - time.monotonic(), 0))
                )

    async def _try_shrink(self, size: int, budget_bytes: int) -> bool:
        """Evict what the plan names, and let the room leave the budget; False if there is too little to evict.

        Meanwhile nobody else may have that room.
        """
        self._residency.probe_again()
        while True:
            free = self._arena.unspent_bytes()
            view = ArenaView(self._arena.budget_bytes, free, 0, self._floor_of(budget_bytes))
            decision = plan_shrink(size, view, self._residency.residents())
            if not isinstance(decision, Fits):
                return False
            claim = self._arena.claim(size)
            try:
                if await self._residency.evict_all(decision, lambda: self._arena.unspent_bytes() >= 0):
                    return claim.leave()
            finally:
                claim.release()

    def _full(self, budget_bytes: int) -> ArenaFull:
        usage, held = self._arena.usage(), self._residency.held_bytes()
        budget_now = self._arena.whole_budget_bytes
        return ArenaFull(
            f"the budget stays at {budget_now} bytes: for one of {budget_bytes}, {held} bytes are held, "
            f"{usage.reserved_bytes} are promised to loads, {usage.unnamed_bytes} are still mapped by somebody",
            needed_bytes=budget_bytes,
            budget_bytes=budget_now,
            held_bytes=held,
            reserved_bytes=usage.reserved_bytes,
            unnamed_bytes=usage.unnamed_bytes,
        )
