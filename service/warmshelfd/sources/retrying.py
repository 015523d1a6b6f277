"""Tries again what failed for the moment: a bounded number of times, within a bounded time, with jitter.

Knows no protocol. A few lines of our own, since the libraries for it sleep to the end
although the source was stopped, and keep the last failure in a ring of references, and
with it the segment that was read into.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from warmshelf.errors import LoadCancelled, WarmshelfError
from warmshelfd.sources.limits import RetryLimits

__all__ = ["RetryLimits", "TryAgain", "check_stopped", "retried"]

T = TypeVar("T")


class TryAgain(Exception):  # noqa: N818 - says what to do
    """What failed may go better in a moment."""

    def __init__(self, error: WarmshelfError, after_seconds: float = 0.0) -> None:
        """``error`` is what callers see in the end; ``after_seconds`` the shortest wait that the server asks for."""
        super().__init__(str(error))
        self.error = error
        self.after_seconds = after_seconds


def retried(function: Callable[[], T], limits: RetryLimits, stopped: threading.Event) -> T:
    """Return what a function returns, called again for as long as it raises TryAgain and the limits allow.

    What it has done before it failed it may keep, and go on from there.

    Raises:
        LoadCancelled: ``stopped`` was set.
        WarmshelfError: the last TryAgain's own.
    """
    end = time.monotonic() + limits.total_seconds
    tries = 0
    while True:
        tries += 1
        check_stopped(stopped)
        try:
            return function()
        except TryAgain as failed:
            wait = failed.after_seconds + _jitter(limits, tries)  # many nodes are told the same time
            is_over = tries >= limits.attempts_max or time.monotonic() + wait > end
            if is_over or failed.after_seconds > limits.wait_max_seconds:
                check_stopped(stopped)
                raise failed.error from failed.__cause__
        stopped.wait(wait)


def check_stopped(stopped: threading.Event) -> None:
    """Raise LoadCancelled if the event is set."""
    if stopped.is_set():
        raise LoadCancelled("reading the source was stopped")


def _jitter(limits: RetryLimits, tries: int) -> float:
    """Return how long to wait after so many tries: anything up to a bound that doubles."""
    return random.uniform(0, min(limits.wait_max_seconds, limits.wait_first_seconds * 2 ** (tries - 1)))  # noqa: S311
