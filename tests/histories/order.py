"""Looks for an order of a history's calls that explains every answer and breaks no before and after.

As Wing and Gong did, with what Lowe added: a set of calls done and a state that was a dead end once is one
for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from histories.rules import (
    ALIAS,
    CANCELLED,
    NOT_FOUND,
    Acquire,
    Answer,
    Call,
    Move,
    Register,
    Remove,
    Resolve,
    State,
    ends,
    meant,
)


@dataclass(frozen=True)
class Done:
    """A call of a history.

    Attributes:
        begun: when it was made, in steps of the history's own clock.
        ended: when its answer was there, or, of an open one, until when it may have taken effect.
        answer: None: nobody knows whether it took effect, as the daemon died.
    """

    call: Call
    begun: int
    ended: int
    answer: Answer | None


History = Sequence[Done]


def order_of(history: History, state: State = State()) -> list[Done] | None:  # noqa: B008 - frozen
    """Return an order that explains a history that began in a state, or None if there is none.

    Open calls that took no effect are left out of it. Who acquires the alias sees what it means, and then acquires
    that: two things, between which others may come.
    """
    for plain in _resolved(history):
        if (found := _order_of(plain, state)) is not None:
            return found
    return None


def _resolved(history: History) -> Iterator[History]:
    """Return histories without the alias, one for each way in which those who acquired it may have seen it."""
    at = next((at for at, one in enumerate(history) if one.call == Acquire(ALIAS)), None)
    if at is None:
        yield history
        return
    one = history[at]
    rest = [*history[:at], *history[at + 1 :]]
    if one.answer in (None, NOT_FOUND):
        yield from _resolved([*rest, replace(one, call=Resolve(""), answer=one.answer and Answer())])
    for name in {move.call.name for move in history if isinstance(move.call, Move)}:
        seen = replace(one, call=Resolve(name), answer=one.answer and Answer())
        yield from _resolved([*rest, seen, replace(one, call=Acquire(name))])


def _order_of(history: History, state: State) -> list[Done] | None:
    dead: set[tuple[frozenset[int], State]] = set()
    order: list[Done] = []

    def go_on(left: frozenset[int], state: State) -> bool:
        if all(history[at].answer is None for at in left):
            return True
        if (left, state) in dead:
            return False
        for at in _next(history, left):
            for after in _after(history[at], state):
                order.append(history[at])
                if go_on(left - {at}, after):
                    return True
                order.pop()
        dead.add((left, state))
        return False

    return order if go_on(frozenset(range(len(history))), state) else None


def _next(history: History, left: frozenset[int]) -> Iterator[int]:
    """Return the calls that may be the next: those that began before any of the others had ended."""
    first_end = min(history[at].ended for at in left)
    return (at for at in sorted(left) if history[at].begun < first_end)


def _after(done: Done, state: State) -> Iterator[State]:
    if done.answer is None:
        yield state
        yield from (after for _, after in ends(state, done.call))
        return
    for answer, after in ends(state, done.call):
        if answer == done.answer:
            yield after.kept_of(meant(done.call)) if _keeps(done) else after


def _keeps(done: Done) -> bool:
    """Say whether what a call has done or was told must outlive a kill: not what was only looked at."""
    assert done.answer is not None
    return isinstance(done.call, Register | Remove | Move | Acquire) and not done.answer.reason


def unexcused(history: History) -> list[Done]:
    """Return the acquires that were told of a cancelled load though no call beside them can have cancelled one."""
    enders = [one for one in history if isinstance(one.call, Register | Remove)]
    return [
        one
        for one in history
        if one.answer == CANCELLED and not any(ender.begun < one.ended and one.begun < ender.ended for ender in enders)
    ]


def render(history: History) -> str:
    """Return a history for people, in the order in which its calls began."""
    return "\n".join(f"{one.begun:4} to {one.ended:4}: {one.call} -> {one.answer}" for one in history)
