"""Trying again: how often, how long, and how it ends."""

from __future__ import annotations

import threading
import time

import pytest

from warmshelf.errors import LoadCancelled, SourceNotFound, SourceUnavailable
from warmshelfd.sources.retrying import RetryLimits, TryAgain, retried

QUICK = RetryLimits(attempts_max=4, total_seconds=5, wait_first_seconds=0.001, wait_max_seconds=0.2)


class Flaky:
    """Fails a number of times before it succeeds."""

    def __init__(self, failures: int, after_seconds: float = 0.0) -> None:
        self.failures = failures
        self.after_seconds = after_seconds
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise TryAgain(SourceUnavailable(f"failure {self.calls}"), self.after_seconds)
        return "done"


def test_what_fails_for_the_moment_is_tried_again() -> None:
    flaky = Flaky(3)
    assert retried(flaky, QUICK, threading.Event()) == "done"
    assert flaky.calls == 4


def test_the_last_failure_is_told_when_the_tries_are_used_up() -> None:
    flaky = Flaky(9)
    with pytest.raises(SourceUnavailable, match="failure 4"):
        retried(flaky, QUICK, threading.Event())
    assert flaky.calls == 4


def test_no_try_begins_after_the_time_is_up() -> None:
    flaky = Flaky(9, after_seconds=0.1)
    limits = RetryLimits(attempts_max=9, total_seconds=0.35, wait_first_seconds=0.001, wait_max_seconds=0.2)
    with pytest.raises(SourceUnavailable):
        retried(flaky, limits, threading.Event())
    assert 2 <= flaky.calls <= 4


def test_a_server_is_not_asked_again_before_the_time_it_names() -> None:
    flaky, start = Flaky(1, after_seconds=0.15), time.monotonic()
    assert retried(flaky, QUICK, threading.Event()) == "done"
    assert time.monotonic() - start >= 0.15


def test_a_server_that_asks_for_a_longer_wait_than_allowed_is_not_asked_again() -> None:
    flaky = Flaky(1, after_seconds=3600)
    with pytest.raises(SourceUnavailable):
        retried(flaky, QUICK, threading.Event())
    assert flaky.calls == 1


def test_what_is_final_is_not_tried_again() -> None:
    calls = []

    def final() -> None:
        calls.append(1)
        raise SourceNotFound("gone")

    with pytest.raises(SourceNotFound):
        retried(final, QUICK, threading.Event())
    assert len(calls) == 1


def test_a_stop_ends_the_wait_at_once() -> None:
    stopped = threading.Event()
    patient = RetryLimits(wait_max_seconds=60, total_seconds=600)
    timer = threading.Timer(0.05, stopped.set)
    timer.start()
    start = time.monotonic()
    with pytest.raises(LoadCancelled):
        retried(Flaky(9, after_seconds=50), patient, stopped)
    timer.join()
    assert time.monotonic() - start < 10
