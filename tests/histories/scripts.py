"""What callers are going to do: a few calls each, one after another, beside each other."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from histories.rules import ALIAS, Acquire, Call, Evict, Get, Move, Register, Remove

NAMES = ("a", "b")
SOURCES: Mapping[str, str] = MappingProxyType({"p": "small-1", "q": "small-2", "r": "adapter-1"})
"""Sources, and what each holds; no two hold the same."""

_DELAYS = (0.0, 0.0, 0.0005, 0.001, 0.002, 0.004)
_KILL_AFTER_MAX = 8


@dataclass(frozen=True)
class Script:
    """One history that is to be.

    Attributes:
        callers: the calls of each, with the seconds that it waits before each.
        kill_after: after how many answers the daemon is killed; -1: it is not.
    """

    callers: tuple[tuple[tuple[float, Call], ...], ...]
    kill_after: int = -1


def script(chance: random.Random, *, kills: float) -> Script:
    """Draw a script; this share of them has a kill in it."""
    callers = tuple(
        tuple((chance.choice(_DELAYS), _call(chance)) for _ in range(chance.randint(2, 4)))
        for _ in range(chance.randint(2, 5))
    )
    return Script(callers, chance.randrange(_KILL_AFTER_MAX) if chance.random() < kills else -1)


def _call(chance: random.Random) -> Call:
    name = chance.choice(NAMES)
    draw = chance.random()
    if draw < 0.3:
        return Register(name, chance.choice([*SOURCES]), replace=chance.random() < 0.5)
    if draw < 0.6:
        return Acquire(chance.choice([*NAMES, ALIAS]))
    if draw < 0.7:
        return Get(name)
    if draw < 0.8:
        return Evict(name)
    return Remove(name) if draw < 0.88 else Move(name, chance.choice(["", *NAMES]))


def last_looks() -> list[Call]:
    """Return the calls that end a history, one after another: what was promised must show in them."""
    return [*map(Get, NAMES), Acquire(ALIAS), *map(Acquire, NAMES)]
