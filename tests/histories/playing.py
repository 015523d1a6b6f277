"""Plays histories, judges each, and counts what was seen."""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from histories.of_core import CoreHistories
from histories.of_daemon import DaemonHistories
from histories.order import Done, order_of, render, unexcused
from histories.scripts import Script, script
from kit.cores import Cores

KILLS = 0.1
"""The share of histories with a kill in them."""

CHUNK = 100
"""So many histories are played on one place, by one process, from one seed: one more than that of those before."""


class Unexplained(Exception):  # noqa: N818 - it says what was found
    """No order explains a history."""


class Tally:
    """What was seen in histories that were all explained."""

    def __init__(self, of: str) -> None:
        self.of = of
        self.histories = self.kills = self.open_calls = self.abreast = 0
        self.answers: Counter[str] = Counter()

    def judge(self, played: Script, history: list[Done]) -> None:
        """Look for an order of a history.

        Raises:
            Unexplained: there is none.
        """
        if unexcused(history) or order_of(history) is None:
            raise Unexplained(render(history))
        self.histories += 1
        self.kills += played.kill_after >= 0
        self.open_calls += sum(done.answer is None for done in history)
        self.abreast += sum(_beside(one, history) for one in history)
        for done in history:
            if done.answer is not None:
                self.answers[f"{type(done.call).__name__.lower()} {done.answer.reason}".strip()] += 1

    def add(self, other: Tally) -> None:
        """Count what another has seen."""
        self.histories += other.histories
        self.kills += other.kills
        self.open_calls += other.open_calls
        self.abreast += other.abreast
        self.answers += other.answers

    def facts(self) -> dict[str, Any]:
        """Return it as evidence."""
        return {
            "histories": self.histories,
            "with_a_kill": self.kills,
            "calls": self.answers.total() + self.open_calls,
            "calls_beside_another": self.abreast,
            "calls_that_a_kill_left_open": self.open_calls,
            "answers": dict(sorted(self.answers.items())),
        }


def _beside(one: Done, history: list[Done]) -> bool:
    return any(other is not one and other.begun < one.ended and one.begun < other.ended for other in history)


def of_core(count: int, seed: int) -> Tally:
    """Play so many histories of a core, one after another."""
    tally, cores = Tally("core"), Cores()
    chance = random.Random(seed)
    try:
        subject = CoreHistories(cores)
        for _ in range(count):
            played = script(chance, kills=KILLS)
            tally.judge(played, subject.run(played))
        subject.close()
    finally:
        cores.close()
    return tally


def of_cores(count: int, seed: int, abreast: int, deadline: float) -> Tally:
    """Play so many histories of cores, some cores beside each other; fewer, if time is over by the monotonic clock."""
    whole = Tally("core")
    counts = [CHUNK] * (count // CHUNK) + [count % CHUNK] * bool(count % CHUNK)
    with ProcessPoolExecutor(abreast, mp_context=get_context("spawn")) as pool:
        for tally in pool.map(of_core, counts, range(seed, seed + len(counts))):
            whole.add(tally)
            print(f"{whole.histories} histories of a core", flush=True)
            if time.monotonic() > deadline:
                pool.shutdown(cancel_futures=True)
                break
    return whole


def of_daemons(count: int, seed: int) -> Tally:
    """Play so many histories of a real daemon whose registry is in a real Redis that dies now and then."""
    tally = Tally("daemon")
    chance = random.Random(seed)
    with DaemonHistories.opened() as subject:
        for _ in range(count):
            played = script(chance, kills=KILLS)
            tally.judge(played, subject.run(played, redis_is_away=chance.random() < KILLS))
    print(f"{tally.histories} histories of a daemon", flush=True)
    return tally
