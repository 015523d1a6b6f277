"""Registrations in one SQLite file on the node.

A thread of its own does all that touches the file. Callers hand it work in order
and wait without blocking the event loop; what queues up while one commit reaches
the disk goes into the next one together. It knows nothing of an artifact but its
ID and its record.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from warmshelf.errors import Internal, RegistryUnavailable, WarmshelfError
from warmshelf.types import Alias
from warmshelfd import failpoints
from warmshelfd.registry import aliases, uses
from warmshelfd.registry.base import Registration, Registry
from warmshelfd.registry.fields import BadRecord
from warmshelfd.registry.records import registration_from_json, registration_to_json
from warmshelfd.registry.sqlite_file import RegistryFile

LOOK_SECONDS = 5.0
"""How often the file is looked at while nothing is written."""

_log = logging.getLogger(__name__)

T = TypeVar("T")
_Work = Callable[[sqlite3.Connection], Any]
Row = tuple[str, str]
"""A registration as it is kept: its ID and its record."""


@dataclass(frozen=True, slots=True)
class _Job:
    """Work for the thread, and whom to tell, on which event loop: who waits, or else who hears only of a failure."""

    work: _Work
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any] | None = None
    failed: Callable[[WarmshelfError], None] | None = None


class SqliteRegistry(Registry):
    """A registry in a file, which nobody else can open until ``close`` or the end of the process.

    Opening blocks: it is for the start of the daemon.

    Raises:
        InvalidConfig: the file cannot be opened, is damaged, no registry, or of a newer release.
        DaemonInUse: another process has it open.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)
        # What the thread has still to do, in order; None ends it, and nothing comes after.
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._closed = False  # whether that None is queued; belongs to the event loop's thread
        opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(opened,), name="registry", daemon=True)
        self._thread.start()
        opened.result()

    def __repr__(self) -> str:
        return f"<SqliteRegistry {self._path}{' closed' if self._closed else ''}>"

    async def load_all(self) -> list[Registration]:
        """As the interface says; the records are read on the thread too, there may be many."""
        registrations: list[Registration] = await self._do(_load_all)
        return registrations

    async def put(self, registration: Registration) -> None:
        """As the interface says."""
        row = to_row(registration)
        await self._do(lambda connection: put_row(connection, row))

    async def delete(self, artifact_id: str) -> None:
        """As the interface says."""
        key = (artifact_id,)
        await self._do(lambda connection: connection.execute("DELETE FROM registrations WHERE artifact_id = ?", key))

    async def close(self) -> None:
        """As the interface says."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    async def load_aliases(self) -> list[Alias]:
        """As the interface says."""
        return await self.run(aliases.load)

    async def remove_alias(self, before: Alias) -> None:
        """As the interface says."""
        await self.run(lambda connection: aliases.drop(connection, before.name))

    async def swap_alias(self, before: Alias | None, after: Alias) -> Alias:  # noqa: ARG002 - nobody else moves it
        """As the interface says."""
        await self.run(lambda connection: aliases.keep(connection, {after.name: after}))
        return after

    async def load_uses(self) -> dict[str, datetime]:
        """As the interface says."""
        return await self.run(uses.load)

    async def keep_uses(self, used: Mapping[str, datetime], gone: Collection[str]) -> None:
        """As the interface says."""
        await self.run(lambda connection: uses.keep(connection, used, gone))

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Let the thread do something with the file, in order with all else; whoever builds on this file uses it."""
        result: T = await self._do(work)
        return result

    async def _do(self, work: _Work) -> Any:
        """Let the thread do it, and wait until it is durable. Who stops waiting does not stop the work."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._queue(_Job(work, loop, done))
        return await done

    def begin(self, work: _Work, failed: Callable[[WarmshelfError], None]) -> None:
        """Let the thread do it, in order with all else; nobody waits, ``failed`` is told if it cannot be done."""
        self._queue(_Job(work, asyncio.get_running_loop(), failed=failed))

    def _queue(self, job: _Job) -> None:
        if self._closed:
            raise Internal(f"registry {self._path} is closed")
        self._jobs.put(job)

    # --- on the thread ------------------------------------------------------

    def _run(self, opened: Future[None]) -> None:
        try:
            file = RegistryFile(self._path)
        except BaseException as error:  # noqa: BLE001 - it is raised where the registry is opened
            opened.set_exception(error)
            return
        opened.set_result(None)
        last = False
        while not last:
            queued = self._next_jobs()
            last = None in queued
            self._commit(file, [job for job in queued if job])
        file.close()

    def _next_jobs(self) -> list[_Job | None]:
        """Wait for a job, and return it with all that have queued up behind it; none if it is time to look."""
        jobs: list[_Job | None] = []
        with suppress(Empty):
            jobs.append(self._jobs.get(timeout=LOOK_SECONDS))
            while True:
                jobs.append(self._jobs.get_nowait())
        return jobs

    def _commit(self, file: RegistryFile, jobs: Sequence[_Job]) -> None:
        """Look at the file, do the jobs in one transaction, and tell everybody how it went."""
        try:
            file.check()
            results = _in_one_transaction(file.connection, jobs)
        except RegistryUnavailable as error:
            _tell(jobs, error=error)
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it, whatever it is
            _log.error("registry %s: %s", self._path, error)  # its path is no business of callers
            _tell(jobs, error=RegistryUnavailable(f"the registry: {error}"))
        else:
            _tell(jobs, results)


class CopiedRegistry(Registry):
    """A registry with a copy in a file of this node. What holds for this node alone is in the copy alone."""

    def __init__(self, copy: SqliteRegistry) -> None:
        self._copy = copy

    async def load_uses(self) -> dict[str, datetime]:
        """As the interface says."""
        return await self._copy.load_uses()

    async def keep_uses(self, used: Mapping[str, datetime], gone: Collection[str]) -> None:
        """As the interface says."""
        await self._copy.keep_uses(used, gone)


def to_row(registration: Registration, *, is_proven: bool = False) -> Row:
    """Return what is kept of a registration; ``is_proven``: it was a record before, and can be read as one.

    Raises:
        Internal: it has what no record can.
    """
    try:
        return registration.artifact_id, registration_to_json(registration, is_proven=is_proven)
    except BadRecord as error:
        raise Internal(f"the registry cannot keep this registration: {error}") from error


def put_row(connection: sqlite3.Connection, row: Row) -> None:
    """Keep a registration."""
    connection.execute("REPLACE INTO registrations VALUES (?, ?)", row)


def _in_one_transaction(connection: sqlite3.Connection, jobs: Sequence[_Job]) -> list[Any]:
    if not jobs:
        return []
    try:
        connection.execute("BEGIN")
        results = [job.work(connection) for job in jobs]
        failpoints.hit("commit.begun")
        connection.execute("COMMIT")
        failpoints.hit("commit.done")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.rollback()
        raise
    return results


def _tell(jobs: Sequence[_Job], results: Sequence[Any] = (), error: WarmshelfError | None = None) -> None:
    """Tell all who wait on one event loop at once: to wake it takes longer than a job."""
    asked = [(job, results[number] if results else None) for number, job in enumerate(jobs) if error or job.done]
    for loop in {job.loop for job, _ in asked}:
        with suppress(RuntimeError):  # the loop was closed: nobody waits
            loop.call_soon_threadsafe(_settle, [end for end in asked if end[0].loop is loop], error)


def _settle(ends: Sequence[tuple[_Job, Any]], error: WarmshelfError | None) -> None:
    for job, result in ends:
        if error is not None and job.failed is not None:
            job.failed(error)
        if job.done is None or job.done.cancelled():
            continue
        if error is None:
            job.done.set_result(result)
        else:
            job.done.set_exception(error)


def _load_all(connection: sqlite3.Connection) -> list[Registration]:
    rows = connection.execute("SELECT artifact_id, record FROM registrations ORDER BY artifact_id")
    return [registration for row in rows if (registration := _read(*row))]


def _read(artifact_id: bytes, record: bytes) -> Registration | None:
    try:
        registration = registration_from_json(record.decode("ascii"))
        if registration.artifact_id.encode() != artifact_id:
            raise BadRecord(f"is the record of {registration.artifact_id!r}")
    except ValueError as error:
        _log.warning("the record of %r is left out (%s)", artifact_id.decode("ascii", "backslashreplace"), error)
        return None
    return registration
