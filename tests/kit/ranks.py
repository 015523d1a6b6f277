"""Whether one of two things takes longer: a test by ranks that a busy machine cannot mislead.

Both are done in pairs, one right after the other, and a coin decides which goes first. If it makes no difference which
of the two is done, the coin might as well have given each its time: so the sign of every pair's difference is that of
a coin, whatever the machine did meanwhile and however alike neighbours in time are. How far a sum of such differences
gets from zero has a bound (Hoeffding's) that supposes nothing else about them. Knows nothing of what is timed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CHANCE_MAX = 1e-6
"""Of an alarm although there is no difference."""
EVEN = (0.45, 0.55)
"""A difference below this is no way to learn anything."""


@dataclass(frozen=True)
class Verdict:
    """How two things compare.

    Attributes:
        first_slower: how probable it is that the first takes longer than the second, of any two times.
        chance: at most so probable is a difference like this, or a larger one, where there is none.
    """

    first_slower: float
    chance: float

    @property
    def differs(self) -> bool:
        """Say whether somebody could tell them apart by their time."""
        return self.chance < CHANCE_MAX and not EVEN[0] <= self.first_slower <= EVEN[1]


def compare(pairs: Sequence[tuple[float, float]]) -> Verdict:
    """Compare the first of all pairs with the second of all pairs."""
    ranks = _ranks([time for pair in pairs for time in pair])
    differences = [first - second for first, second in zip(ranks[::2], ranks[1::2], strict=True)]
    total, squares = sum(differences), sum(one * one for one in differences)
    chance = min(1.0, 2 * math.exp(-total * total / (2 * squares))) if squares else 1.0
    return Verdict(0.5 + total / (2 * len(pairs) ** 2), chance)


def _ranks(times: Sequence[float]) -> list[float]:
    """Return the rank of each; equal ones have the mean of theirs."""
    order = sorted(range(len(times)), key=times.__getitem__)
    ranks = [0.0] * len(times)
    begin = 0
    while begin < len(order):
        end = begin
        while end < len(order) and times[order[end]] == times[order[begin]]:
            end += 1
        for index in order[begin:end]:
            ranks[index] = (begin + end - 1) / 2
        begin = end
    return ranks
