"""Some histories of callers at once. ``make histories`` plays thousands."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from histories.of_daemon import DaemonHistories, opened_by
from histories.order import Done, order_of, render, unexcused
from histories.playing import of_core
from histories.rules import NOT_FOUND, Acquire, Answer, Get, Kill, Move, Register, Remove
from histories.scripts import script

SEED = 20261130


def test_some_histories_with_kills_are_linearizable() -> None:
    """C12."""
    tally = of_core(60, SEED)
    assert tally.histories == 60
    assert tally.abreast > 200
    assert tally.kills


@pytest.fixture(scope="module")
def subject() -> Iterator[DaemonHistories]:
    with DaemonHistories.opened() as it:
        yield it


@pytest.mark.nightly
def test_some_histories_of_a_real_daemon_are_linearizable(subject: DaemonHistories) -> None:
    """C12."""
    chance = random.Random(SEED)
    for _ in range(6):
        history = subject.run(script(chance, kills=0.0), redis_is_away=False)
        assert order_of(history) is not None, render(history)
        assert not unexcused(history)


P, Q, R = Answer("", "p"), Answer("", "q"), Answer("", "r")
WRONG = {
    "a registration that is lost": [
        Done(Register("a", "p"), 1, 2, P),
        Done(Get("a"), 3, 4, NOT_FOUND),
    ],
    "a registration that is lost by a kill": [
        Done(Register("a", "p"), 1, 2, P),
        Done(Kill(), 3, 4, Answer()),
        Done(Get("a"), 5, 6, NOT_FOUND),
    ],
    "a removal that comes undone": [
        Done(Register("a", "p"), 1, 2, P),
        Done(Remove("a"), 3, 4, Answer()),
        Done(Get("a"), 5, 6, P),
    ],
    "the bytes of before a replacement": [
        Done(Register("a", "p"), 1, 2, P),
        Done(Register("a", "q", replace=True), 3, 4, Q),
        Done(Acquire("a"), 5, 6, Answer("", "p", 1)),
    ],
    "two contents of one generation": [
        Done(Register("a", "p"), 1, 2, P),
        Done(Acquire("a"), 3, 4, Answer("", "p", 1)),
        Done(Register("a", "q", replace=True), 5, 6, Q),
        Done(Acquire("a"), 7, 8, Answer("", "q", 1)),
    ],
    "an answer of another call": [
        Done(Register("a", "p"), 1, 4, Q),
        Done(Register("b", "q"), 2, 3, P),
    ],
    "an alias that two have moved": [
        Done(Register("a", "p"), 1, 2, P),
        Done(Register("b", "q"), 3, 4, Q),
        Done(Move("a", ""), 5, 8, Answer()),
        Done(Move("b", ""), 6, 7, Answer()),
    ],
    "what one saw and the next did not": [
        Done(Register("a", "p"), 1, 9, P),
        Done(Get("a"), 2, 3, P),
        Done(Get("a"), 4, 5, NOT_FOUND),
    ],
}


@pytest.mark.parametrize("history", [pytest.param(history, id=name) for name, history in WRONG.items()])
def test_a_history_that_no_order_explains_is_told(history: list[Done]) -> None:
    assert order_of(history) is None


def test_calls_beside_each_other_may_be_in_any_order_and_open_ones_of_no_effect() -> None:
    """Else nothing would ever be explained."""
    beside = [Done(Register("a", "p"), 1, 4, P), Done(Get("a"), 2, 3, NOT_FOUND)]
    assert order_of(beside) == beside[::-1]
    for found in (P, NOT_FOUND):
        died = [Done(Register("a", "p"), 1, 2, None), Done(Kill(), 3, 4, Answer()), Done(Get("a"), 5, 6, found)]
        assert order_of(died) is not None
    lost = [
        Done(Register("a", "p"), 1, 4, None),
        Done(Get("a"), 2, 3, P),  # seen before it was kept
        Done(Kill(), 5, 6, Answer()),
        Done(Get("a"), 7, 8, NOT_FOUND),
    ]
    assert order_of(lost) is not None


def test_an_alias_is_seen_first_and_what_it_means_is_acquired_then() -> None:
    before = [Done(Register("a", "p"), 1, 2, P), Done(Move("a", ""), 3, 4, Answer())]
    acquired = Done(Acquire("alias"), 5, 10, Answer("", "p", 1))
    between = [Done(Register("b", "q"), 6, 7, Q), Done(Move("b", "a"), 8, 9, Answer())]
    assert order_of([*before, acquired, *between]) is not None
    assert order_of([*before, *between, replace(acquired, begun=11, ended=12)]) is None


def test_a_cancelled_load_needs_somebody_who_can_have_cancelled_it() -> None:
    cancelled = Done(Acquire("a"), 3, 6, Answer("LOAD_CANCELLED"))
    assert unexcused([Done(Register("a", "p"), 1, 2, P), cancelled]) == [cancelled]
    assert not unexcused([cancelled, Done(Remove("a"), 4, 5, Answer())])


def test_a_call_that_a_kill_met_may_have_been_carried_out_before_it_and_again_after_it() -> None:
    replacing = [Done(Register("a", "q", replace=True), 5, 14, Q), Done(Register("a", "r", replace=True), 6, 13, R)]
    history = [Done(Register("a", "p"), 1, 2, P), Done(Acquire("a"), 3, 4, Answer("", "p", 1))]
    after = [Done(Kill(), 10, 12, Answer()), Done(Get("a"), 15, 16, Answer("", "q", 4))]
    once = [replace(one, answer=None) for one in replacing]
    assert order_of([*history, *once, *after]) is None
    twice = [each for one in replacing for each in opened_by((10, 12), one)]
    assert order_of([*history, *twice, *after]) is not None
    five = [*after[:1], replace(after[1], answer=Answer("", "q", 6))]
    assert order_of([*history, *twice, *five]) is None


def test_a_call_that_no_kill_met_is_as_it_was_answered() -> None:
    for done in (Done(Get("a"), 1, 9, P), Done(Get("a"), 13, 14, P)):
        assert opened_by((10, 12), done) == [done]
