"""An alias as JSON text, and back. Reading it trusts nothing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta

from warmshelf.errors import InvalidId
from warmshelf.types import Alias, AliasMove, check_id
from warmshelfd.domain.aliases import HISTORY_COUNT_MAX
from warmshelfd.registry.fields import BadRecord

MARK = "@"
"""Begins the name of an alias where IDs stand too; no ID does."""

TABLE = "CREATE TABLE IF NOT EXISTS aliases (name TEXT NOT NULL PRIMARY KEY, record TEXT NOT NULL)"


def alias_to_json(alias: Alias) -> str:
    """Return the alias as one line of ASCII."""
    moves = [[move.artifact_id, move.move_time.isoformat()] for move in alias.history]
    return json.dumps({"alias": alias.name, "moves": moves}, separators=(",", ":"))


def alias_from_json(text: str) -> Alias:
    """Return the alias that the text is.

    Raises:
        BadRecord: it is none.
    """
    try:
        match json.loads(text):
            case {"alias": str(name), "moves": [_, *_] as moves} if len(moves) <= HISTORY_COUNT_MAX:
                return Alias(check_id(name), tuple(map(_move, moves)))
    except (json.JSONDecodeError, RecursionError, InvalidId):
        pass
    raise BadRecord("is no alias")


def _move(move: object) -> AliasMove:
    match move:
        case [str(artifact_id), str(time)]:
            try:
                when = datetime.fromisoformat(time)
            except ValueError:
                raise BadRecord("has a time that is none") from None
            if when.utcoffset() == timedelta(0):
                return AliasMove(check_id(artifact_id), when)
    raise BadRecord("is no move of an alias")


# --- in the file ---------------------------------------------------------------


def load(connection: sqlite3.Connection) -> list[Alias]:
    """Return all aliases that can be read, by name."""
    connection.execute(TABLE)
    found = []
    for (record,) in connection.execute("SELECT record FROM aliases ORDER BY name"):
        with suppress(ValueError):
            found.append(alias_from_json(record.decode("ascii")))
    return found


def drop(connection: sqlite3.Connection, name: str) -> None:
    """Forget an alias."""
    connection.execute(TABLE)
    connection.execute("DELETE FROM aliases WHERE name = ?", (name,))


def keep(connection: sqlite3.Connection, aliases: Mapping[str, Alias]) -> None:
    """Keep aliases."""
    connection.execute(TABLE)
    rows = [(name, alias_to_json(alias)) for name, alias in aliases.items()]
    connection.executemany("REPLACE INTO aliases VALUES (?, ?)", rows)
