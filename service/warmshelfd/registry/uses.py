"""When what is in memory was last used, as a registry's file of one node keeps it. Reading it trusts nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime, timedelta

TABLE = "CREATE TABLE IF NOT EXISTS uses (artifact_id TEXT NOT NULL PRIMARY KEY, use_time TEXT NOT NULL)"
"""Beside the registrations: a release that does not know it goes on without."""


def load(connection: sqlite3.Connection) -> dict[str, datetime]:
    """Return the times, in UTC, by ID; what is none is left out."""
    connection.execute(TABLE)
    found = {}
    for artifact_id, use_time in connection.execute("SELECT artifact_id, use_time FROM uses"):
        with suppress(ValueError):
            when = datetime.fromisoformat(use_time.decode("ascii"))
            if when.utcoffset() == timedelta(0):
                found[artifact_id.decode()] = when
    return found


def keep(connection: sqlite3.Connection, used: Mapping[str, datetime], gone: Collection[str]) -> None:
    """Keep times, and forget those of what is not in memory any more."""
    connection.execute(TABLE)
    connection.executemany("DELETE FROM uses WHERE artifact_id = ?", [(artifact_id,) for artifact_id in gone])
    rows = [(artifact_id, when.isoformat()) for artifact_id, when in used.items()]
    connection.executemany("REPLACE INTO uses VALUES (?, ?)", rows)
