"""Tries again what failed for the moment: a bounded number of times, within a bounded time, with jitter.

Knows no protocol. A wait ends at once when its source is stopped, which is why this
stands on tenacity itself: what is built upon it sleeps to the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import tenacity

from warmshelf.errors import LoadCancelled, WarmshelfError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """How often and for how long."""

    attempts_max: int = 8
    """Most tries; with waits that double they span some 10 s, in which a server restarts."""
    total_seconds: float = 60.0
    """No try begins later than this after the first: callers would rather know."""
    wait_first_seconds: float = 0.1
    """The first wait is at most this; each further one at most twice as long as the one before."""
    wait_max_seconds: float = 10.0
    """Longest wait. A server that asks for a longer one is not asked again."""


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
