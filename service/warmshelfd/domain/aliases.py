"""What aliases mean, and how one moves. Pure."""

from __future__ import annotations

from datetime import datetime

from warmshelf.errors import AliasMoved, ArtifactNotFound
from warmshelf.types import Alias, AliasMove

HISTORY_COUNT_MAX = 32
"""Moves of an alias that are remembered: a month of daily rollouts."""


def moved(before: Alias | None, name: str, artifact_id: str, expected_id: str, now: datetime) -> Alias:
    """Return the alias as it is after a move.

    Raises:
        AliasMoved: it does not mean what is expected, "" for no alias at all.
    """
    check_meant(before, name, expected_id)
    history = before.history if before else ()
    return Alias(name, (*history, AliasMove(artifact_id, now))[-HISTORY_COUNT_MAX:])


def check_meant(alias: Alias | None, name: str, expected_id: str) -> None:
    """Return if an alias means what is expected, "" for no alias at all.

    Raises:
        AliasMoved: it does not.
    """
    actual = alias.artifact_id if alias else ""
    if actual != expected_id:
        raise AliasMoved(
            f"alias {name!r} means {actual or 'nothing'}, not {expected_id or 'nothing'}",
            name=name,
            expected=expected_id,
            actual=actual,
        )


def before_last_move(alias: Alias) -> str:
    """Return what the alias meant before it meant what it does now.

    Raises:
        ArtifactNotFound: it never meant anything else, as far as is remembered.
    """
    for move in reversed(alias.history):
        if move.artifact_id != alias.artifact_id:
            return move.artifact_id
    raise ArtifactNotFound(f"alias {alias.name!r} never meant anything else", name=alias.name)
