"""How an event loop is told by other threads, and who waits on it for an answer. Knows no registration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from warmshelf.errors import Internal


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
