"""Lets threads wait for coroutines of a library, and ends those waits at once when a source is stopped.

The coroutines of all sources run on one event loop, in a thread of its own: a request
that is no longer wanted is cancelled there and its connection with it, where a blocking
call would keep its thread until the server has answered. Knows no library.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from warmshelf.errors import LoadCancelled

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread that lives as long as the process; started when it is first used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _loop
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop, which runs."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="source-requests", daemon=True).start()
            return self._loop


class Waits:
    """What the threads of one source wait for."""

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread
        self._stopped = threading.Event()
        self._tasks: set[asyncio.Task[Any]] = set()  # under way; only touched on the loop

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine to its end and return what it returns; when this returns or raises, it has ended.

        Raises:
            LoadCancelled: the source was stopped.
        """
        answer: Future[T] = Future()
        self._thread.loop().call_soon_threadsafe(self._begin, make, answer)
        try:
            return answer.result()
        finally:
            del answer  # a failure refers to this frame: it would keep itself alive

    def stop(self) -> None:
        """End what is waited for, and whatever is begun later. Never waits."""
        self._stopped.set()
        self._thread.loop().call_soon_threadsafe(self._cancel)

    def _begin(self, make: Callable[[], Coroutine[Any, Any, T]], answer: Future[T]) -> None:
        if self._stopped.is_set():
            answer.set_exception(_stopped())
            return
        task = asyncio.ensure_future(make())
        self._tasks.add(task)
        task.add_done_callback(partial(self._end, answer))

    def _end(self, answer: Future[T], task: asyncio.Task[T]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            answer.set_exception(_stopped())
        elif error := task.exception():
            answer.set_exception(error)
        else:
            answer.set_result(task.result())

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()


def _stopped() -> LoadCancelled:
    return LoadCancelled("reading the source was stopped")
