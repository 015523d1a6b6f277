"""What a node knows of the shared store, in its copy's file: one row for each ID that the store has.

A registration without such a row, or another than the row says, is still to be published; a
removal to be published has a row that says so. Runs on the copy's thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from warmshelfd.registry.base import Registration
from warmshelfd.registry.records import registration_from_json
from warmshelfd.registry.sqlite import Row, put_row, to_row

TABLE = (
    "CREATE TABLE IF NOT EXISTS synced "
    "(artifact_id TEXT NOT NULL PRIMARY KEY, revision INTEGER NOT NULL, essence TEXT NOT NULL, "
    "digest TEXT NOT NULL, conflict TEXT NOT NULL)"
)


REMOVED = "removed "
"""Begins the essence of an ID that this node removed and the store still has."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the store has of an ID.

    Attributes:
        revision: under which number.
        essence: what it has to be everywhere, as a digest; "" where it is removed or was never there.
        digest: the pinned one, if this node's own bytes were no other.
        conflict: why what this node made of it was refused.
    """

    revision: int
    essence: str
    digest: str = ""
    conflict: str = ""

    @property
    def is_removed(self) -> bool:
        """Whether this node removed the ID, which the store does not know yet."""
        return self.essence.startswith(REMOVED)

    def pinned(self, digest: str) -> Known:
        """Return it with this digest."""
        return self if digest == self.digest else replace(self, digest=digest)

    @property
    def essence_seen(self) -> str:
        """The essence that the store was last known to have."""
        return self.essence.removeprefix(REMOVED)


def load_known(connection: sqlite3.Connection) -> dict[str, Known]:
    """Return all rows by ID."""
    connection.execute(TABLE)
    rows = connection.execute("SELECT artifact_id, revision, essence, digest, conflict FROM synced")
    known = {}
    for artifact_id, revision, *texts in rows:
        with suppress(ValueError, AttributeError):
            known[artifact_id.decode("ascii")] = Known(int(revision), *(text.decode() for text in texts))
    return known


def keep_known(connection: sqlite3.Connection, known: Mapping[str, Known], gone: Sequence[str] = ()) -> None:
    """Keep rows, and drop those of IDs of which nothing is known any more."""
    try:
        _keep_known(connection, known, gone)
    except sqlite3.OperationalError:  # the file was made anew meanwhile
        connection.execute(TABLE)
        _keep_known(connection, known, gone)


def _keep_known(connection: sqlite3.Connection, known: Mapping[str, Known], gone: Sequence[str]) -> None:
    for artifact_id, one in known.items():
        row = artifact_id, one.revision, one.essence, one.digest, one.conflict
        connection.execute("REPLACE INTO synced VALUES (?, ?, ?, ?, ?)", row)
    for artifact_id in gone:
        connection.execute("DELETE FROM synced WHERE artifact_id = ?", (artifact_id,))


def put_known(connection: sqlite3.Connection, row: Row, known: Known) -> None:
    """Keep a registration that is as the store has it, and that it is so."""
    put_row(connection, row)
    keep_known(connection, {row[0]: known})


def put_heard(registration: Registration, known: Known) -> Callable[[sqlite3.Connection], None]:
    """Return what keeps a registration that was read from the store, and makes its record not before then."""
    return lambda connection: put_known(connection, to_row(registration, is_proven=True), known)


def remove(connection: sqlite3.Connection, artifact_id: str, removed: Known) -> None:
    """Drop a registration, and keep that it is to be published."""
    connection.execute("DELETE FROM registrations WHERE artifact_id = ?", (artifact_id,))
    keep_known(connection, {artifact_id: removed})


def read_some(connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, Registration]:
    """Return the registrations of some IDs that can be read."""
    found = {}
    for artifact_id in ids:
        row = connection.execute("SELECT record FROM registrations WHERE artifact_id = ?", (artifact_id,)).fetchone()
        if row is not None:
            with suppress(ValueError):
                found[artifact_id] = registration_from_json(row[0].decode("ascii"))
    return found
