"""The thread that keeps a node in step with a registry in Redis.

It reads everything when it connects and after any gap, follows the stream of changes from
there, and makes changes that it is given. Nobody waits for it: what it finds is told by
callbacks, on its own thread, and a server that is away, hangs or refuses costs this thread
half a second at a time and everybody else nothing.
"""

from __future__ import annotations

import logging
import os
import random
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from warmshelf.errors import InvalidConfig
from warmshelf.types import Alias
from warmshelfd.redis_wire import RedisAwayError, RedisRefusedError, RedisWire
from warmshelfd.registry.redis_link import OPERATION_SECONDS, Link, exchange
from warmshelfd.registry.redis_store import Decision, RedisStore
from warmshelfd.registry.shared import VALUE_BYTES_MAX, Change, Shared, Verdict

HEARTBEAT_SECONDS = 3.0
"""How often a quiet store's head is looked at: two commands each time, so well below one a second."""

_WAIT_FIRST_SECONDS, _WAIT_MAX_SECONDS = 0.1, 3.0
"""Between two tries to connect; each is between half of that and one and a half, so that many nodes spread."""

_TOLD_COUNT = 50
"""What was found is told in parts of so many: about a millisecond for who hears of it."""

_FAULTS = (RedisAwayError, RedisRefusedError, InvalidConfig, OSError)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ears:
    """Whom to tell, on the thread of the one that tells.

    Attributes:
        found: what the store holds of some IDs.
        older: what the store holds under lower numbers than were known, so that it went back in time; and whether its
            head was behind too, so that it has not gone on beyond all that was known.
        missing: IDs that were known and are not in the store.
        up: whether the store is in reach and all of it was read.
        failed: a try failed, by a word for the metric.
        known: returns the revisions known, by ID; asked for before everything is read.
        newest: returns the largest revision ever known, also of IDs that mean nothing any more.
    """

    found: Callable[[Sequence[Shared]], None]
    older: Callable[[Sequence[Shared], bool], None]
    missing: Callable[[Sequence[str]], None]
    up: Callable[[bool], None]
    failed: Callable[[str], None]
    known: Callable[[], Mapping[str, int]]
    newest: Callable[[], int]


@dataclass(frozen=True)
class _Job:
    work: Callable[[RedisWire], Any]
    done: Future[Any]


class RedisSync:
    """The thread. ``publish`` and ``stop`` may be called by any other."""

    def __init__(self, link: Link, ears: Ears, on_bad: Callable[[], None]) -> None:
        self._link = link
        self._ears = ears
        self._store = RedisStore(on_bad, link.space)
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._stopping = False  # set once, by ``stop``
        self._said = False  # this outage is in the log; the thread's
        self._own: set[int] = set()  # numbers of our own changes that the stream has still to bring; the thread's
        self._thread = threading.Thread(target=self._run, name="registry-redis", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def publish(self, changes: Sequence[Change]) -> Future[list[Decision]]:
        """Make changes soon; the result is an error if the store could not be asked."""
        return self._submit(lambda wire: self._write(wire, changes))

    def swap_alias(self, name: str, before: Alias | None, after: Alias | None) -> Future[int]:
        """Write an alias soon, or remove it, if the store has it as it was before, None for none.

        The result is its revision, 0 if the store had it otherwise.
        """
        return self._submit(lambda wire: self._store.swap_alias(wire, name, before, after))

    def _submit(self, work: Callable[[RedisWire], Any]) -> Future[Any]:
        job = _Job(work, Future())
        self._jobs.put(job)
        self._wake()
        return job.done

    def stop(self) -> None:
        """End; waits until it has, which takes no longer than one exchange. Only after ``start``."""
        self._stopping = True
        self._wake()
        self._thread.join()
        self._fail_jobs(RedisAwayError("is not asked any more"))
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it is awake
            os.write(self._wake_write, b"!")

    # --- on the thread ------------------------------------------------------

    def _run(self) -> None:
        wait = _WAIT_FIRST_SECONDS
        while not self._stopping:
            began = time.monotonic()
            try:
                self._connected()
            except _FAULTS as error:
                self._lost(error)
            except Exception:  # noqa: BLE001 - a bug must not end the thread: nodes would drift apart unseen
                _log.exception("the registry's thread")
                self._ears.up(False)
                self._ears.failed("internal")
            if time.monotonic() - began > _WAIT_MAX_SECONDS:
                wait = _WAIT_FIRST_SECONDS
            self._pause(wait * random.uniform(0.5, 1.5))  # noqa: S311 - spreads, guards nothing
            wait = min(wait * 2, _WAIT_MAX_SECONDS)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            self._fail_jobs(RedisAwayError("cannot be reached"))
            self._woken(left)

    def _woken(self, seconds: float, *more: RedisWire) -> list[RedisWire]:
        """Wait until there is something to do; return which of the connections have something."""
        poll = select.poll()  # not select(): a daemon has more than 1,024 files open
        for descriptor in (self._wake_read, *(wire.fileno() for wire in more)):
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(max(seconds, 0) * 1000)}
        if self._wake_read in ready:
            with suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
        return [wire for wire in more if wire.fileno() in ready]

    def _connected(self) -> None:
        reads = self._link.connect()
        try:
            writes = self._link.connect()
            try:
                self._serve(reads, writes)
            finally:
                writes.close()
        finally:
            reads.close()

    def _serve(self, reads: RedisWire, writes: RedisWire) -> None:
        applied = self._read_all(writes)
        while not self._stopping:
            reply = self._wait_for_changes(reads, writes, applied)
            if self._stopping:
                return
            following = self._follow(writes, applied, reply)
            if following is None:
                following = self._read_all(writes)
            applied = following

    def _read_all(self, wire: RedisWire) -> int:
        """Read everything; return the number of the latest change that is surely in what was read."""
        known = dict(self._ears.known())
        is_behind = self._store.begin(wire, self._ears.newest())
        self._own.clear()
        head = self._store.head(wire)
        removed: list[Shared] = []
        for ids, there in self._store.all(wire, known):
            older = [shared for shared in there if shared.revision < known.get(shared.artifact_id, 0)]
            if older:
                self._ears.older(older, is_behind)
            found = [shared for shared in there if shared not in older] if older else there
            for artifact_id in ids:
                known.pop(artifact_id, None)
            removed += [shared for shared in there if shared.is_removed]
            for start in range(0, len(found), _TOLD_COUNT):
                self._ears.found(found[start : start + _TOLD_COUNT])
        if known:
            self._ears.missing(list(known))
        if self._said:
            self._said = False
            _log.info("the registry %s is back", self._link.place)
        self._ears.up(True)
        self._store.forget_removals(wire, removed)
        return head

    def _wait_for_changes(self, reads: RedisWire, writes: RedisWire, applied: int) -> list[tuple[int, str]]:
        """Wait for changes, or a heartbeat's time; make changes meanwhile."""
        reads.allow(OPERATION_SECONDS)
        reads.send([self._store.ask_changes(applied, HEARTBEAT_SECONDS)])
        until = time.monotonic() + HEARTBEAT_SECONDS + OPERATION_SECONDS
        while not self._stopping:
            self._make_changes(writes)
            if self._woken(until - time.monotonic(), reads):
                reads.allow(OPERATION_SECONDS)
                return self._store.changes(reads.reply(VALUE_BYTES_MAX))
            if time.monotonic() >= until:
                raise RedisAwayError("does not answer")
        return []

    def _follow(self, wire: RedisWire, applied: int, changes: list[tuple[int, str]]) -> int | None:
        """Take changes; return the number of the latest, or None if some before it are lost."""
        if not changes:  # quiet: is it?
            head = self._store.head(wire)
            if head == applied:
                return applied
            (reply,) = exchange(wire, [self._store.ask_changes(applied, None)], VALUE_BYTES_MAX)
            changes = self._store.changes(reply)
            if not changes:
                return None
        for number, _ in changes:
            if number != applied + 1:
                return None
            applied = number
        ids = {artifact_id for number, artifact_id in changes if artifact_id and number not in self._own}
        self._own -= {number for number, _ in changes}
        if ids and (found := [shared for shared in self._store.get(wire, sorted(ids)) if shared is not None]):
            self._ears.found(found)
        return applied

    # --- changes ------------------------------------------------------------

    def _make_changes(self, wire: RedisWire) -> None:
        """Make the changes that are queued. A server that refuses to write may still be read from."""
        with suppress(Empty):
            while True:
                job = self._jobs.get_nowait()
                if not job.done.set_running_or_notify_cancel():  # nobody waits any more
                    continue
                try:
                    result = job.work(wire)
                except RedisRefusedError as error:
                    self._ears.failed(error.code.lower())
                    job.done.set_exception(error)
                    if error.code in _LOST_SERVER:
                        raise
                    exchange(wire, [[b"UNWATCH"]], 64)
                except BaseException as error:
                    job.done.set_exception(error)
                    raise
                else:
                    job.done.set_result(result)

    def _write(self, wire: RedisWire, changes: Sequence[Change]) -> list[Decision]:
        decisions = self._store.write(wire, changes)
        self._own |= {one.now.revision for one in decisions if one.now and one.verdict is Verdict.WRITE}
        return decisions

    def _fail_jobs(self, error: Exception) -> None:
        with suppress(Empty):
            while True:
                done = self._jobs.get_nowait().done
                if done.set_running_or_notify_cancel():
                    done.set_exception(error)

    def _lost(self, error: Exception) -> None:
        """Say so, once for each outage."""
        self._ears.up(False)
        self._ears.failed(error.code.lower() if isinstance(error, RedisRefusedError) else "away")
        self._fail_jobs(error)
        if not self._said and not self._stopping:
            self._said = True
            text = f"refuses ({error.code})" if isinstance(error, RedisRefusedError) else str(error)
            _log.warning("the registry %s %s; this node goes on with what it knows", self._link.place, text)


_LOST_SERVER = frozenset({"READONLY", "MOVED", "ASK", "CLUSTERDOWN", "MASTERDOWN", "NOAUTH", "LOADING"})
"""Refusals after which another server may have to be found: it is no master any more, or not ours."""
