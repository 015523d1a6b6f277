"""Blocking work in threads, and background tasks: how both are waited for and how they end.

Knows nothing of what the work is. For the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from typing import TypeVar

from warmshelf.errors import DeadlineExceeded

T = TypeVar("T")

_log = logging.getLogger(__name__)

_ANSWER_SECONDS_MAX = 0.25
"""Callers are answered this much before their deadline, so that the answer still reaches them."""


async def run_stoppable(
    threads: Executor, function: Callable[[Callable[[], bool]], T], on_stop: Callable[[], None] | None = None
) -> T:
    """Run something blocking in a thread; if cancelled, tell it to stop and wait until it has.

    ``function`` gets a predicate to ask often whether it is to stop; ``on_stop`` ends what it waits for.
    """
    stop = threading.Event()
    work = threads.submit(function, stop.is_set)
    future = asyncio.wrap_future(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stop.set()
        if on_stop is not None:
            on_stop()
        if not work.cancel():  # it had begun
            while not future.done():  # also if cancelled again meanwhile: whoever comes next would meet it
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
        if not future.cancelled() and future.done():
            future.exception()  # seen: what a stopped function says does not matter
        raise
    finally:
        del work, future  # a failure refers to this frame: it would keep itself alive, with all that the function held


async def run_to_the_end(threads: Executor, function: Callable[[], T]) -> T:
    """Run something blocking in a thread; a cancel meanwhile takes effect at the caller's next wait."""
    future = asyncio.get_running_loop().run_in_executor(threads, function)
    task, is_cancelled = asyncio.current_task(), False
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            is_cancelled = True
        except Exception:  # noqa: BLE001 - raised again below
            break
    if is_cancelled and task is not None:
        task.cancel()
    return future.result()


async def wait_at_most(awaitable: Awaitable[T], seconds: float | None) -> T:
    """Return what an awaitable gives, if that takes no longer.

    ``asyncio.wait_for`` before Python 3.12 loses a cancel that comes just when the
    awaitable is done: whoever waits then goes on, though nobody wants it to.

    Raises:
        asyncio.TimeoutError: it took longer; it was cancelled.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
    finally:
        task.cancel()
    if not done:
        raise asyncio.TimeoutError
    return task.result()


async def side_by_side(work: Callable[[T], Awaitable[None]], items: Iterable[T], at_once: int) -> None:
    """Do a piece of work for each item, in their order, so many at once; a failure or a cancel ends all of it."""
    waiting = iter(items)

    async def take_turns() -> None:
        for item in waiting:
            await work(item)

    tasks = [asyncio.create_task(take_turns()) for _ in range(at_once)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def log_failure(task: asyncio.Task[None]) -> None:
    """Log what ended a task that nobody waits for; a done callback."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("background work failed", exc_info=error)


async def stop(task: asyncio.Task[None] | None) -> None:
    """Cancel a task, if there is one that has not ended, and wait for its end."""
    if task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task])


def answer_by(timeout: float | None) -> float:
    """Return the monotonic time by which a caller must be answered."""
    if timeout is None:
        return float("inf")
    return time.monotonic() + timeout - min(_ANSWER_SECONDS_MAX, timeout / 10)


async def within(awaitable: Awaitable[T], until: float, why: str) -> T:
    """Await something until a caller must be answered.

    Raises:
        DeadlineExceeded: that time has come; says what was waited for.
    """
    left = None if until == float("inf") else max(until - time.monotonic(), 0)
    try:
        return await wait_at_most(awaitable, left)
    except asyncio.TimeoutError:
        raise DeadlineExceeded(f"time is up: {why}") from None
