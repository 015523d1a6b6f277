"""Tries again what failed for the moment: a bounded number of times, within a bounded time, with jitter.

Knows no protocol. A wait ends at once when its source is stopped, which is why this
stands on tenacity itself: what is built upon it sleeps to the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import tenacity

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

    def attempt() -> T:
        check_stopped(stopped)
        return function()

    try:
        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: _worth_it(error, limits)),
            wait=_wait(limits),
            stop=tenacity.stop_after_attempt(limits.attempts_max) | tenacity.stop_before_delay(limits.total_seconds),
            sleep=tenacity.sleep_using_event(stopped),
            reraise=True,
        )(attempt)
    except TryAgain as failed:
        check_stopped(stopped)
        raise failed.error from failed.__cause__


def check_stopped(stopped: threading.Event) -> None:
    """Raise LoadCancelled if the event is set."""
    if stopped.is_set():
        raise LoadCancelled("reading the source was stopped")


def _worth_it(error: BaseException, limits: RetryLimits) -> bool:
    return isinstance(error, TryAgain) and error.after_seconds <= limits.wait_max_seconds


def _wait(limits: RetryLimits) -> Callable[[tenacity.RetryCallState], float]:
    jittered = tenacity.wait_random_exponential(multiplier=limits.wait_first_seconds, max=limits.wait_max_seconds)

    def wait(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.after_seconds if isinstance(error, TryAgain) else 0.0
        return asked + jittered(state)  # many nodes are told the same time

    return wait
