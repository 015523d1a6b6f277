"""The core of a daemon in a process of its own: all but its servers, to be killed many times a second.

``main`` listens at a socket and forks a core for every connection, which then does
what it is told through that connection. All that it does runs on one event loop, as in
the daemon. ``kit.cores`` is the other end.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener
from typing import Any

from warmshelf.errors import SequenceCompacted, WarmshelfError
from warmshelf.types import Artifact, ArtifactSpec, ArtifactState, Capacity
from warmshelfd import failpoints
from warmshelfd.app import Daemon
from warmshelfd.config import parse
from warmshelfd.domain.catalog import RESIDENT
from warmshelfd.leasing import AcquireOptions
from warmshelfd.memory.arena import Arena
from warmshelfd.observing import Observing
from warmshelfd.records import to_registration
from warmshelfd.registering import RegisterOptions
from warmshelfd.registry.base import Registration

QUIET_SECONDS = 20.0
"""What is under way by itself ends within this, or hangs."""

_PAGE_SIZE = 2
"""Small, so that every listing has several pages."""

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Places:
    """Where a core finds its files; the next one finds them again."""

    arena: str
    registry: str
    sources: str
    budget_bytes: int

    def argv(self) -> list[str]:
        return [
            *("--listen", "unix:///nowhere/api.sock", "--pin", "off"),
            *("--arena", self.arena, "--budget", str(self.budget_bytes)),
            *("--registry", f"sqlite://{self.registry}", "--allow-source", f"file://{self.sources}"),
        ]


@dataclass(frozen=True)
class Granted:
    """A lease, and where its bytes are."""

    lease_id: str
    generation: int
    segment_id: str
    size_bytes: int
    digest: str


@dataclass(frozen=True)
class Picture:
    """What a watcher has been told: every artifact by its ID, and the number to go on after."""

    after: int
    artifacts: dict[str, Artifact]


@dataclass(frozen=True)
class Snapshot:
    """What a core shows when nothing is under way.

    ``segments`` are those of the resident artifacts; ``leases`` are artifact and
    generation of each; ``faults`` are what is wrong by the core's own account.
    """

    artifacts: dict[str, Artifact]
    segments: dict[str, str]
    leases: list[tuple[str, int]]
    capacity: Capacity
    pictures: dict[str, Picture]
    faults: list[str]


class Watcher:
    """Somebody who follows the changes, and begins anew if told to."""

    def __init__(self, observing: Observing, picture: Picture) -> None:
        self._observing = observing
        self.after = picture.after
        self.artifacts = dict(picture.artifacts)
        self.task = asyncio.get_running_loop().create_task(self._run())

    @property
    def picture(self) -> Picture:
        return Picture(self.after, dict(self.artifacts))

    async def _run(self) -> None:
        while True:
            try:
                await self._watch()
            except SequenceCompacted:
                self.after = 0
                self.artifacts.clear()

    async def _watch(self) -> None:
        async for seen in self._observing.watch(self.after):
            if seen.artifact is not None:
                self.artifacts[seen.artifact.artifact_id] = seen.artifact
            elif seen.removed_id:
                self.artifacts.pop(seen.removed_id, None)
            self.after = max(self.after, seen.sequence)


class _Log(logging.Handler):
    """Keeps what must never be logged: exceptions that nobody expected."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.bugs: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.bugs.append(f"{record.getMessage()}: {''.join(traceback.format_exception(record.exc_info[1]))}")


class Core:
    """The calls of one core. Each ``do_`` method is one, by its name."""

    def __init__(self, connection: Connection, places: Places, log: _Log) -> None:
        settings, _ = parse(places.argv(), {"WARMSHELF_CHANGE_COUNT_MAX": "40"})
        self._arena = Arena.open(settings.arena, settings.budget, settings.pin, settings.reserve_bytes)
        self._daemon = Daemon(settings, self._arena).tenancies.own
        self._shelf, self._leasing = self._daemon.shelf, self._daemon.leasing
        self._observing = self._daemon.observing
        self._connection = connection
        self._log = log
        self._watchers: dict[str, Watcher] = {}
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._main = asyncio.current_task()
        self._ended = asyncio.Event()

    async def serve(self) -> None:
        await self._shelf.start()
        checking = asyncio.create_task(self._daemon._check_adopted())
        asyncio.get_running_loop().add_reader(self._connection.fileno(), self._receive)
        self._connection.send(os.getpid())
        await self._ended.wait()
        for task in (checking, *(watcher.task for watcher in self._watchers.values())):
            task.cancel()
        await self._shelf.stop()
        self._arena.close()

    def _receive(self) -> None:
        try:
            number, name, arguments, delay_seconds = self._connection.recv()
        except EOFError:  # whoever gave orders is gone
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "cancel":
            if (task := self._calls.get(number)) is not None:
                task.cancel()
            return
        call = getattr(self, f"do_{name}")
        self._calls[number] = asyncio.get_running_loop().create_task(self._do(number, call, arguments, delay_seconds))

    async def _do(
        self, number: int, call: Callable[..., Coroutine[Any, Any, Any]], arguments: Any, delay_seconds: float
    ) -> None:
        try:
            await asyncio.sleep(delay_seconds)
            answer = "ok", await call(*arguments)
        except WarmshelfError as error:
            answer = "error", error
        except asyncio.CancelledError:
            answer = "cancelled", None
        except Exception:
            answer = "bug", traceback.format_exc()
        del self._calls[number]
        self._connection.send((number, *answer))

    # --- calls of the shelf ---------------------------------------------------

    async def do_register(self, artifact_id: str, spec: ArtifactSpec, options: RegisterOptions) -> Artifact:
        return await self._shelf.register(artifact_id, spec, options)

    async def do_evict(self, artifact_id: str, drain: bool) -> Artifact:
        return await self._shelf.evict(artifact_id, drain=drain)

    async def do_remove(self, artifact_id: str) -> None:
        await self._shelf.remove(artifact_id)

    async def do_verify(self, artifact_id: str) -> int:
        return await self._observing.verify(artifact_id)

    async def do_get(self, artifact_id: str) -> Artifact:
        return self._shelf.get(artifact_id)

    async def do_load(self, artifact_id: str, timeout_seconds: float, detach: bool) -> Artifact | None:
        last = None
        async for step in self._leasing.progress(artifact_id, timeout_seconds, detach=detach):
            last = step.artifact
        return last

    async def do_set_alias(self, name: str, artifact_id: str, expected_id: str) -> None:
        await self._shelf.aliases.set(name, artifact_id, expected_id)

    async def do_open_session(self) -> str:
        return self._leasing.open_session("a test")[0]

    async def do_close_session(self, session_id: str) -> None:
        self._leasing.close_session(session_id)

    async def do_acquire(
        self, session_id: str, artifact_id: str, options: AcquireOptions, timeout_seconds: float
    ) -> Granted:
        granted = await self._leasing.acquire(session_id, artifact_id, options, timeout_seconds)
        segment, lease = granted.segment, granted.lease
        return Granted(
            lease.lease_id, lease.generation, segment.segment_id, segment.size_bytes, granted.artifact.digest
        )

    async def do_release(self, session_id: str, lease_id: str) -> None:
        self._leasing.release(session_id, lease_id)

    # --- calls of the test ----------------------------------------------------

    async def do_arm(self, text: str) -> None:
        """Arm these failpoints and no others."""
        failpoints._ARMED.clear()
        failpoints._ARMED.update(failpoints._parse(text))

    async def do_watch(self, name: str, picture: Picture) -> None:
        self._watchers[name] = Watcher(self._observing, picture)

    async def do_unwatch(self, name: str) -> Picture:
        watcher = self._watchers.pop(name)
        watcher.task.cancel()
        return watcher.picture

    async def do_stop(self) -> None:
        self._ended.set()

    async def do_snapshot(self) -> Snapshot:
        """Wait until nothing is under way, then say what there is."""
        faults = await self._settle()
        faults += await self._check()
        return Snapshot(
            artifacts=self._list(),
            segments={entry.artifact_id: entry.segment_id for entry in self._shelf.catalog if entry.state in RESIDENT},
            leases=[(lease.artifact_id, lease.generation) for lease in self._leases()],
            capacity=self._observing.capacity(""),
            pictures={name: watcher.picture for name, watcher in self._watchers.items()},
            faults=faults,
        )

    def _list(self) -> dict[str, Artifact]:
        found, after, more = {}, "", True
        while more:
            page, after = self._shelf.page(after, _PAGE_SIZE, "")
            found.update({artifact.artifact_id: artifact for artifact in page})
            more = bool(after)
        return found

    def _leases(self) -> list[Any]:
        found, after, more = [], 0, True
        while more:
            page = self._shelf.leases.page(after, _PAGE_SIZE)
            found += page.leases
            after = page.next_after_number
            more = bool(after)
        return found

    async def _settle(self) -> list[str]:
        """Wait for all that runs by itself: unlinking, hashing, checking, loads that somebody stopped."""
        deadline = asyncio.get_running_loop().time() + QUIET_SECONDS
        ours = {self._main, *self._calls.values(), *(watcher.task for watcher in self._watchers.values())}
        while pending := asyncio.all_tasks() - ours:
            await asyncio.wait(pending, timeout=1)
            if asyncio.get_running_loop().time() > deadline:
                return [f"still under way after {QUIET_SECONDS} s: {pending}"]
        while any(watcher.after != self._observing._changes.last_sequence for watcher in self._watchers.values()):
            await asyncio.sleep(0)
            if asyncio.get_running_loop().time() > deadline:
                return [f"a watcher has not heard the last change after {QUIET_SECONDS} s"]
        return []

    async def _check(self) -> list[str]:
        """Look for what must not be when nothing is under way."""
        shelf, residency = self._shelf, self._shelf.residency
        faults = list(self._log.bugs)
        self._log.bugs.clear()
        for table in (shelf.catalog, shelf.leases):
            try:
                table.check()
            except WarmshelfError as error:
                faults.append(f"check of {table}: {error}")
        rows = {row.artifact_id: row for row in await shelf.registry.load_all()}
        entries = {entry.artifact_id: to_registration(entry) for entry in shelf.catalog}
        for artifact_id in sorted(rows.keys() | entries.keys()):
            row, entry = rows.get(artifact_id), entries.get(artifact_id)
            is_resident = shelf.catalog.find(artifact_id) in [*shelf.catalog.in_state(ArtifactState.READY)]
            if row != entry if is_resident else _asked(row) != _asked(entry):
                faults.append(f"registry has {row}, catalog {entry}")
        odd = {
            "loads": [*shelf.flights._loads, *shelf.flights._tasks],
            "registrations": list(shelf.registering._turns._names),
            "reads": [s.segment.segment_id for s in residency.segments if s.streams or s.waiters.count],
            "unlinking": list(residency._unlinking),
            "turns": [turns for turns in residency._turns.values() if turns.taken or turns._waiting],
        }
        return faults + [f"left over: {what} {found}" for what, found in odd.items() if found]


def _asked(row: Registration | None) -> object:
    """Return what callers asked for. The rest may be ahead of the catalog by what a load wrote before it failed."""
    return row and (row.spec, row.keep_resident, row.follow, row.register_time)


def _run_core(connection: Connection) -> None:
    """Be one core until told to end; the first message says where its files are."""
    log = _Log()
    logging.basicConfig(handlers=[log], force=True)

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: log.bugs.append(f"{context['message']}: {context.get('exception')!r}")
        )
        await Core(connection, places, log).serve()

    try:
        places = connection.recv()
        asyncio.run(run())
    except EOFError:
        return
    except Exception:
        connection.send(traceback.format_exc())


def main(socket_path: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # not to outlive the tests
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for cores: each end is seen by its descriptor
    with Listener(socket_path, "AF_UNIX", backlog=16) as listener:
        print("listening", flush=True)
        while True:
            connection = listener.accept()
            if os.fork() == 0:
                listener._listener._socket.close()  # type: ignore[attr-defined]
                _run_core(connection)
                os._exit(0)
            connection.close()
