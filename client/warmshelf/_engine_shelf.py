"""The shelf of an engine's processes: one for each, connected at its first use, and waited for.

Knows no engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from warmshelf._incoming import CALL_TIMEOUT_SECONDS
from warmshelf.client import Shelf, connect
from warmshelf.errors import DaemonUnreachable

WAIT_SECONDS = CALL_TIMEOUT_SECONDS
"""How long a starting engine waits for a daemon: a sidecar starts beside it, not before it."""

T = TypeVar("T")

_PAUSE_SECONDS = 0.2
"""Between two looks at a daemon that is not there yet; each look waits by itself."""


def shelf_at(address: str = "", arena: str = "", timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> Shelf:
    """Return the shelf of this process and of what it forks, not connected yet."""
    return _shelf(address, arena, float(timeout_seconds))


@cache  # few: one for each address that somebody wrote down
def _shelf(address: str, arena: str, timeout_seconds: float) -> Shelf:
    return connect(address or None, arena=arena or None, timeout=timeout_seconds)


def patiently(shelf: Shelf, wait_seconds: float, call: Callable[[], T]) -> T:
    """Return what the call returns, also if the daemon is only started meanwhile.

    Raises:
        DaemonUnreachable: none answered in time.
    """
    try:
        return call()
    except DaemonUnreachable:
        _wait_for_daemon(shelf, wait_seconds)
        return call()


def _wait_for_daemon(shelf: Shelf, wait_seconds: float) -> None:
    until = time.monotonic() + wait_seconds
    while True:
        try:
            shelf.capabilities()
        except DaemonUnreachable:
            if time.monotonic() + _PAUSE_SECONDS >= until:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return
