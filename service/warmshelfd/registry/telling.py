"""How an event loop and other threads tell each other things, and who waits for an answer. Knows no registration."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from warmshelf.errors import Internal

_STEP_COUNT = 10
"""So much is done before the event loop turns: about a millisecond."""

T = TypeVar("T")


def tell_on(loop: Callable[[], asyncio.AbstractEventLoop | None], function: Callable[..., None]) -> Callable[..., None]:
    """Return what has an event loop call a function, from any thread."""

    def tell(*arguments: Any) -> None:
        if (running := loop()) is None:
            raise Internal("the registry was not started")
        with suppress(RuntimeError):  # the loop was closed: nobody listens
            running.call_soon_threadsafe(function, *arguments)

    return tell


def answer(asking: asyncio.Future[str] | None, text: str) -> bool:
    """Tell who waits; say whether there was somebody."""
    is_waiting = asking is not None and not asking.done()
    if asking is not None and is_waiting:
        asking.set_result(text)
    return is_waiting


async def in_steps(
    function: Callable[[T], Coroutine[Any, Any, None]], items: Sequence[T], is_free: Callable[[T], bool]
) -> None:
    """Do something with all, side by side; the event loop turns in between.

    Where it waits for nobody (``is_free``) there is no task for it, which would cost more than all else.
    """
    tasks: list[asyncio.Future[None]] = []
    try:
        for number, item in enumerate(items, 1):
            if is_free(item):
                await function(item)
            else:
                tasks.append(asyncio.ensure_future(function(item)))
            if number % _STEP_COUNT == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        raise


class Numbers:
    """Numbers by name, and the largest there ever was. May be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}  # guarded by the lock, as is:
        self._newest = 0

    def get(self, name: str) -> int:
        """Return a name's number; 0 if it has none."""
        with self._lock:
            return self._numbers.get(name, 0)

    def set(self, name: str, number: int) -> None:
        """Set one."""
        with self._lock:
            self._numbers[name] = number
            self._newest = max(self._newest, number)

    def update(self, numbers: Mapping[str, int]) -> None:
        """Set some."""
        with self._lock:
            self._numbers.update(numbers)
            self._newest = max((self._newest, *numbers.values()))

    def note(self, number: int) -> None:
        """Take a number that no name has any more for one there was."""
        with self._lock:
            self._newest = max(self._newest, number)

    def newest(self) -> int:
        """Return the largest number there ever was; 0 if there was none."""
        with self._lock:
            return self._newest

    def drop(self, name: str) -> None:
        """Forget a name."""
        with self._lock:
            self._numbers.pop(name, None)

    def all(self) -> Mapping[str, int]:
        """Return a copy of all."""
        with self._lock:
            return dict(self._numbers)
