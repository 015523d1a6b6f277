"""The file of an SQLite registry: opened for us alone, and kept at its path.

SQLite goes on writing to a file that has lost its name, and all of it would be gone at
the next start. So the file is looked at: one that was deleted is made anew with
all that it held, and another that was put in its place is not ours to overwrite. It
knows nothing of what the records are.

All of it blocks and belongs to one thread.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import suppress

from warmshelf.errors import DaemonInUse, InvalidConfig, RegistryUnavailable, WarmshelfError
from warmshelfd.holders import describe, file_holder

SCHEMA = 1
"""The file's ``user_version``. A file of a newer schema is refused and not touched."""

_log = logging.getLogger(__name__)

_Row = tuple[bytes, bytes]


class RegistryFile:
    """The file, which nobody else can open until ``close`` or the end of the process.

    Raises:
        InvalidConfig: the file cannot be opened, is damaged, no registry, or of a newer release.
        DaemonInUse: another process has it open.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = _open(path)
        self._inodes = _inodes(path)  # of the file and of its log, as they are open; 0 where there is none
        self._lost: list[_Row] = []  # while there is no connection: what is to be in the file made anew
        self._is_replaced = False

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, once ``check`` has found the file in its place.

        Raises:
            RegistryUnavailable: there is none now.
        """
        if self._connection is None:
            raise RegistryUnavailable("the registry's file is gone and cannot be made anew now")
        return self._connection

    def check(self) -> None:
        """See to it that what is written will be found at the path.

        Raises:
            RegistryUnavailable: another file is there now, or none can be made.
        """
        file, log = _inodes(self._path)
        if file not in (0, self._inodes[0]) and self._connection is not None:
            self._refuse()
        self._is_replaced = False
        if self._connection is None or not file or (self._inodes[1] and log != self._inodes[1]):
            self._make_anew()
        self._inodes = _inodes(self._path)

    def close(self) -> None:
        """Let the file go. Idempotent."""
        if self._connection is not None:
            self._connection.close()

    def _refuse(self) -> None:
        if not self._is_replaced:
            self._is_replaced = True
            _log.error("registry %s was replaced by another file: nothing is recorded until a restart", self._path)
        raise RegistryUnavailable(
            "the registry's file was replaced while it was in use: stop the daemon, put the right file there, start it"
        )

    def _make_anew(self) -> None:
        """Write all that is known to a file at the path; what has lost its name is read once more for it."""
        if self._connection is not None:
            self._lost = self._connection.execute("SELECT artifact_id, record FROM registrations").fetchall()
            self._connection.close()
            self._connection = None
        try:
            connection = _open(self._path)
            connection.execute("BEGIN")
            connection.executemany("REPLACE INTO registrations VALUES (CAST(? AS TEXT), CAST(? AS TEXT))", self._lost)
            connection.execute("COMMIT")
        except (sqlite3.Error, WarmshelfError) as error:
            _log.error("registry %s is gone and cannot be made anew: %s", self._path, error)
            raise RegistryUnavailable("the registry's file is gone and cannot be made anew now") from error
        _log.error("registry %s was deleted: made anew with its %d records", self._path, len(self._lost))
        self._connection, self._lost = connection, []


def _inodes(path: str) -> tuple[int, int]:
    """Return which files are there now: the registry's, and its log. 0 where there is none."""
    return _inode(path), _inode(f"{path}-wal")


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _open(path: str) -> sqlite3.Connection:
    try:
        _make_file(path)
        connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    except (OSError, sqlite3.Error) as error:
        raise InvalidConfig(f"registry {path} cannot be opened: {error}", path=path) from error
    try:
        _prepare(connection, path)
    except sqlite3.Error as error:
        connection.close()
        if "locked" in str(error):
            pid = file_holder(path) or file_holder(f"{path}-shm")
            raise DaemonInUse(f"registry {path} is in use by {describe(pid)}", path=path, pid_number=pid) from error
        raise InvalidConfig(f"registry {path} is not usable: {error}; {_ADVICE}", path=path) from error
    except WarmshelfError:
        connection.close()
        raise
    return connection


_ADVICE = "move it away to begin with an empty one"


def _make_file(path: str) -> None:
    """Make what is missing of the file and its directories, for its owner only."""
    directory = os.path.dirname(path)
    missing = []
    while not os.path.isdir(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    for directory in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)
    with suppress(FileExistsError):  # not opened then: closing a second descriptor would drop SQLite's locks
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    fault = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if fault != "ok":
        raise InvalidConfig(f"registry {path} is damaged: {fault}; {_ADVICE}", path=path)
    schema = _schema(connection, path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    if schema == 0:
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE registrations (artifact_id TEXT NOT NULL PRIMARY KEY, record TEXT NOT NULL)")
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
        connection.execute("COMMIT")
    connection.text_factory = bytes  # a record that is not even text must not hide the others


def _schema(connection: sqlite3.Connection, path: str) -> int:
    """Return the file's schema; 0 if it is new."""
    schema = int(connection.execute("PRAGMA user_version").fetchone()[0])
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if schema > SCHEMA:
        raise InvalidConfig(
            f"registry {path} was written by a newer release: schema {schema}, this one knows up to {SCHEMA}",
            path=path,
            schema_number=schema,
            schema_number_max=SCHEMA,
        )
    if (schema == 0) != (tables == 0):
        raise InvalidConfig(f"{path} is an SQLite file, but no registry; {_ADVICE}", path=path)
    return schema
