"""What a check found: how bad it is, in words, with numbers, and what to do about it.

Knows no check.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum


class Level(Enum):
    """How bad a finding is, from best to worst."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


_ORDER = list(Level)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        check: its name, the same on every node.
        level: OK: as it should be. NOTE: good to know. WARNING: it works, but not as well as it could.
            PROBLEM: something will fail or fails.
        text: what is so.
        advice: what to do, or "" if nothing has to be done.
        numbers: what was measured or read, by name with the unit last.
    """

    check: str
    level: Level
    text: str
    advice: str = ""
    numbers: Mapping[str, int | float | str] = field(default_factory=dict)


def worst(findings: Iterable[Finding]) -> Level:
    """Return the worst level among findings; OK without any."""
    return max((finding.level for finding in findings), key=_ORDER.index, default=Level.OK)
