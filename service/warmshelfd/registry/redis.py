"""A registry that nodes share: a full copy in a file of this node, and the store in Redis that keeps the copies alike.

All that the node itself asks for is answered from the copy. What changes here is queued by
being different from what the store is known to have, so the queue survives the process; a
task hands it to the thread that talks to Redis. What changes elsewhere is told to a listener.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from warmshelf.errors import RegistryUnavailable, SpecMismatch, WarmshelfError
from warmshelf.types import Sync, SyncState
from warmshelfd.registry.aliases import MARK
from warmshelfd.registry.base import Heard, Listener, Registration
from warmshelfd.registry.book import Book
from warmshelfd.registry.redis_aliases import HasSharedAliases, SharedAliases
from warmshelfd.registry.redis_link import Link
from warmshelfd.registry.redis_store import Decision
from warmshelfd.registry.redis_sync import Ears, RedisSync
from warmshelfd.registry.shared import (
    Change,
    Shared,
    Verdict,
    conflict_text,
    essence,
    has_essence_of,
    is_alike,
    is_shared,
    older_text,
)
from warmshelfd.registry.sqlite import CopiedRegistry, SqliteRegistry, to_row
from warmshelfd.registry.synced import REMOVED, Known, put_heard, put_known, read_some, remove
from warmshelfd.registry.telling import answer, in_steps, tell_on

ANSWER_SECONDS = 0.5
"""How long a new registration waits for the other nodes' word; without one it is queued."""

_PUBLISH_COUNT = 200
"""Changes of one exchange: it stays well below what an exchange may take."""

_HEAR_COUNT = 500
"""What other nodes changed is taken up in parts of so many, and kept with one commit."""

_AGAIN_SECONDS = 1.0
"""Before a change that the store refused to write is tried again."""

_WENT_BACK = "the registry went back in time: %d of its records are older than this node knew, such as %r; %s"
_HOLDS = {True: "those of this node are written again", False: "they hold, for it has gone on since"}
_NEW, _LOST = Known(0, ""), "lost"  # the latter is an essence that no registration has
_log = logging.getLogger(__name__)


class RedisRegistry(CopiedRegistry, HasSharedAliases):
    """The copy, and what is known of the store. All state but ``_revisions`` belongs to the event loop."""

    def __init__(self, copy: SqliteRegistry, link: Link, count: Callable[[str], None]) -> None:
        """``count`` is told one word for everything that goes wrong; it may be called by any thread."""
        super().__init__(copy)
        self._count = count
        self._listener: Listener | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._book = Book(copy)
        self._revisions = self._book.revisions  # for the thread too
        self._sync = RedisSync(link, self._ears(), lambda: count("bad_record"))
        self._aliases = SharedAliases(copy, self._sync, self._revisions)
        self._known = self._book.known  # what the store is known to have, by ID
        self._dirty: dict[str, None] = {}  # what is to be published, in order
        self._publishing: set[str] = set()  # of that, what is on its way
        self._reading: asyncio.Future[dict[str, Registration]] | None = None  # what is on its way, from the copy
        self._given: dict[str, str] = {}  # essences of new IDs that the store may have been given, nobody knows yet
        self._behind: dict[str, Known] = {}  # what was known before what was heard, which is not taken up yet
        self._missed: dict[str, Shared] = {}  # what others made of IDs while those were this node's to publish
        self._taking_up: dict[str, Registration] = {}  # what others have of some IDs, while the node takes it up
        self._kept_as: dict[str, Known] = {}  # what was kept of that with the registration, since all was kept
        self._asking: dict[str, asyncio.Future[str]] = {}  # new registrations that wait: "" or why they are refused
        self._changed = asyncio.Event()  # there is something to publish, or the store came into reach
        self._up = False
        self._heard: asyncio.Queue[Heard] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    # --- the registry -------------------------------------------------------

    async def load_all(self) -> list[Registration]:
        """As the interface says: what this node's copy has."""
        registrations = await self._copy.load_all()
        await self._book.load()
        there = {registration.artifact_id for registration in registrations}
        for registration in registrations:
            self._mark(registration.artifact_id, registration)
        for artifact_id in self._known.keys() - there:
            if self._known[artifact_id].is_removed:  # not published before the process ended
                self._dirty[artifact_id] = None
            else:  # its record is lost: it is read again
                del self._known[artifact_id]
                self._revisions.drop(artifact_id)
        return registrations

    async def put(self, registration: Registration) -> None:
        """As the interface says; other nodes are told later."""
        artifact_id = registration.artifact_id
        known, told = self._known.get(artifact_id), self._taking_up.get(artifact_id)
        if told is not None and has_essence_of(registration, told):  # if something newer was heard, that is ahead
            self._behind[artifact_id] = Known(1, essence(told))
        told = told if told is not None and is_alike(registration, told) else None  # else it was made here meanwhile
        if known is not None and told is not None:
            self._known[artifact_id] = known = known.pinned(told.digest)
        self._mark(artifact_id, registration)
        if known is None or artifact_id in self._dirty:
            await self._copy.put(registration)  # before anybody reads what to publish
        elif told is None or registration.generation:
            # Both at once: should the process end in between, it would publish what others have changed.
            row = to_row(registration, is_proven=told is not None)
            await self._copy.run(lambda connection: put_known(connection, row, known))
        else:  # the store has it too and no bytes hang on it here: nobody has to wait
            self._kept_as[artifact_id] = known
            self._copy.begin(put_heard(registration, known), partial(self._left_out, artifact_id))

    async def put_new(self, registration: Registration) -> None:
        """As the interface says; if the store is in reach, it is asked first of all whether others know the ID."""
        artifact_id = registration.artifact_id
        self._behind.pop(artifact_id, None)
        if (known := self._known.get(artifact_id)) is not None and not known.is_removed:
            del self._known[artifact_id]  # heard of and not taken up yet: this node changes nothing that it knew
        if not self._up or not is_shared(registration):
            return await self.put(registration)
        waiting = self._asking[artifact_id] = asyncio.get_running_loop().create_future()
        try:
            await self.put(registration)
            with suppress(asyncio.TimeoutError):
                if conflict := await asyncio.wait_for(waiting, ANSWER_SECONDS):
                    await self._copy.delete(artifact_id)
                    text = f"{artifact_id!r} is registered in the fleet: {conflict}"
                    raise SpecMismatch(text, artifact_id=artifact_id)
        finally:
            del self._asking[artifact_id]

    async def delete(self, artifact_id: str) -> None:
        """As the interface says; other nodes are told later."""
        if artifact_id in self._publishing and self._reading is not None:
            await asyncio.wait([self._reading])  # until it is known whether the store is given it; that is no exchange
        known = self._known.get(artifact_id)
        if known is None and (given := self._given.pop(artifact_id, "")):
            known = Known(0, given)
        if known is not None:  # the store has it, or may have by now
            removed = replace(known, essence=REMOVED + known.essence_seen)
            self._book.set(artifact_id, removed)
            self._dirty[artifact_id] = None
            self._changed.set()
            # Called in this breath, so that it is done before anybody reads what to publish.
            await self._copy.run(lambda connection: remove(connection, artifact_id, removed))
            return
        self._dirty.pop(artifact_id, None)
        self._hear_missed([artifact_id])
        await self._copy.delete(artifact_id)

    def start(self, listener: Listener) -> None:
        """As the interface says."""
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._tasks = [self._loop.create_task(self._publish()), self._loop.create_task(self._take_up(listener))]
        self._sync.start()

    def sync_of(self, artifact_id: str) -> Sync | None:
        """As the interface says."""
        if self._is_ours(artifact_id):
            return Sync(SyncState.QUEUED)
        if (known := self._known.get(artifact_id)) is None:
            return Sync(SyncState.LOCAL)
        return Sync(SyncState.CONFLICT, known.conflict) if known.conflict else Sync(SyncState.PUBLISHED)

    @property
    def is_up(self) -> bool:
        """As the interface says: all of it was read, and nothing failed since."""
        return self._up

    async def close(self) -> None:
        """As the interface says; what is queued stays so for the next start."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
            await asyncio.to_thread(self._sync.stop)
            self._tasks.clear()
        await self._copy.close()

    # --- what changed here --------------------------------------------------

    def _mark(self, artifact_id: str, mine: Registration) -> None:
        """Queue an ID if the store is not known to have it as it is here."""
        known = self._known.get(artifact_id, _NEW)
        is_pinned_anew = bool(mine.digest) and not mine.follow and mine.digest != known.digest
        is_other = is_shared(mine) and (essence(mine) != known.essence or is_pinned_anew)
        if is_other or artifact_id in self._publishing:
            self._dirty[artifact_id] = None
            self._changed.set()
        else:
            self._dirty.pop(artifact_id, None)
            self._behind.pop(artifact_id, None)
            self._hear_missed([artifact_id])
        self._note(artifact_id)

    def _note(self, artifact_id: str) -> None:
        if self._listener is not None:
            self._listener.note_sync(artifact_id)

    async def _publish(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._up and self._dirty:
                ids = list(self._dirty)[:_PUBLISH_COUNT]
                for artifact_id in ids:
                    del self._dirty[artifact_id]
                self._publishing.update(ids)
                try:
                    await self._publish_some(ids)
                except Exception as error:  # noqa: BLE001 - whatever it is, the changes stay queued
                    _log.debug("changes stay queued: %s", error)
                    self._dirty = dict.fromkeys(ids) | self._dirty
                    self._publishing.difference_update(ids)
                    await asyncio.sleep(_AGAIN_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311
                finally:
                    self._publishing.difference_update(ids)

    async def _publish_some(self, ids: Sequence[str]) -> None:
        self._reading = reading = asyncio.ensure_future(self._copy.run(lambda connection: read_some(connection, ids)))
        there = await reading
        changes = []
        for artifact_id in ids:
            mine, known = there.get(artifact_id), self._known.get(artifact_id, _NEW)
            if mine is not None:  # made by who had not taken up yet what was heard meanwhile
                known = self._behind.get(artifact_id, known)
            if is_shared(mine) if mine is not None else known.is_removed:
                changes.append(Change(artifact_id, known.revision, known.essence_seen, known.digest, mine))
                if not known.revision:
                    self._given[artifact_id] = essence(mine)
        decisions = await asyncio.wrap_future(self._sync.publish(changes)) if changes else []
        self._publishing.difference_update(ids)
        for decision in decisions:
            self._given.pop(decision.change.artifact_id, None)
            self._decided(decision)
        self._hear_missed(ids)
        written = [decision.change.artifact_id for decision in decisions if decision.verdict is Verdict.WRITE]
        await self._book.keep(written)  # what others have is kept once it is taken up
        for now in (decision.now for decision in decisions if decision.verdict is Verdict.WRITE):
            if now is not None and self._holds(now.artifact_id, now.revision):
                self._book.forget_removed(now.artifact_id)
        for artifact_id in ids:
            self._note(artifact_id)

    def _decided(self, decision: Decision) -> None:
        artifact_id, now = decision.change.artifact_id, decision.now
        asking = self._asking.get(artifact_id)
        if decision.verdict is Verdict.WRITE and now is not None:
            mine, before = decision.change.registration, self._known.get(artifact_id, _NEW)
            self._behind.pop(artifact_id, None)
            digest = (mine.digest if mine else "") or before.digest
            self._book.know(now, digest=digest, is_dirty=artifact_id in self._dirty)
            answer(asking, "")
        elif now is not None and artifact_id not in self._dirty:  # else it has changed here since, which is judged next
            conflict = "" if decision.verdict is Verdict.FOLLOW else conflict_text(decision.change, now)
            if conflict:
                self._count("conflict")
            self._hear(now, "" if answer(asking, conflict) else conflict)

    # --- what changed elsewhere ---------------------------------------------

    def _hear(self, shared: Shared, conflict: str = "") -> None:
        self._behind.setdefault(shared.artifact_id, self._known.get(shared.artifact_id, _NEW))
        holds = partial(self._holds, shared.artifact_id, shared.revision)
        self._heard.put_nowait(Heard(shared.artifact_id, shared.registration, conflict, holds))
        known = self._known.get(shared.artifact_id, _NEW)
        self._book.know(shared, conflict, known.digest, is_dirty=shared.artifact_id in self._dirty)

    def _holds(self, artifact_id: str, revision: int) -> bool:
        """Say whether what was heard is still to be taken up: nothing was made here since, and nothing newer heard."""
        return not self._is_ours(artifact_id) and self._revisions.get(artifact_id) == revision

    def _is_ours(self, artifact_id: str) -> bool:
        """Say whether this node has made something of an ID that the store has still to decide."""
        return artifact_id in self._dirty or artifact_id in self._publishing

    def _found(self, found: Sequence[Shared]) -> None:
        for shared in found:
            if shared.artifact_id.startswith(MARK):
                self._aliases.found(shared, self._listener)
                continue
            known = self._known.get(shared.artifact_id, _NEW)
            if self._is_ours(shared.artifact_id):
                self._missed[shared.artifact_id] = shared  # decided when ours is published, unless it came after that
            elif shared.is_removed and not known.revision:
                self._revisions.note(shared.revision)  # this node has nothing of it
            elif shared.revision != known.revision:
                self._hear(shared)

    def _older(self, older: Sequence[Shared], is_behind: bool) -> None:
        """The store went back in time. What was known later is written again, unless the store has gone on since."""
        gone_back = [one for one in older if one.revision < self._revisions.get(one.artifact_id)]
        for shared in older:
            known, theirs = self._known.get(shared.artifact_id), shared.registration
            if known is None or known.revision <= shared.revision or self._is_ours(shared.artifact_id):
                self._found([shared])
            elif is_behind and not known.conflict and shared.artifact_id not in self._behind:  # else it is not had here
                self._book.know(shared, digest=theirs.digest if theirs else "", is_dirty=True)
                self._dirty[shared.artifact_id] = None
                self._note(shared.artifact_id)
            else:
                conflict = "" if known.essence_seen == essence(theirs) else older_text(known.revision, shared)
                if conflict:
                    self._count("conflict")
                self._hear(shared, conflict)
        self._changed.set()
        if gone_back:
            self._count("went_back")
            _log.warning(_WENT_BACK, len(gone_back), gone_back[0].artifact_id, _HOLDS[is_behind])

    def _hear_missed(self, ids: Sequence[str]) -> None:
        """Hear what others made of IDs that are not this node's to publish any more, unless that is known since."""
        missed = [self._missed.pop(artifact_id) for artifact_id in ids if artifact_id in self._missed]
        self._found([one for one in missed if one.revision > self._revisions.get(one.artifact_id)])

    def _missing(self, ids: Sequence[str]) -> None:
        """Publish again what the store has lost."""
        for artifact_id in ids:
            if artifact_id.startswith(MARK):
                self._aliases.missing(artifact_id.removeprefix(MARK))
            if artifact_id in self._known:
                self._book.set(artifact_id, replace(self._known[artifact_id], essence=_LOST))
                self._dirty[artifact_id] = None
                self._note(artifact_id)
        self._changed.set()

    def _came_up(self, up: bool) -> None:
        self._up = up
        self._changed.set()

    async def _take_up(self, listener: Listener) -> None:
        while True:
            some = [await self._heard.get()]
            while len(some) < _HEAR_COUNT and not self._heard.empty():
                some.append(self._heard.get_nowait())
            last = {heard.artifact_id: heard for heard in some}
            one_by_one = partial(self._take_up_one, listener)
            await in_steps(one_by_one, list(last.values()), lambda heard: listener.is_free(heard.artifact_id))
            await self._keep_taken_up(last)

    async def _keep_taken_up(self, done: Mapping[str, Heard]) -> None:
        try:
            kept_as, self._kept_as = self._kept_as, {}
            await self._book.keep([one for one in done if kept_as.get(one) is not self._known.get(one, _NEW)])
        except RegistryUnavailable as error:  # it is read from the store again, after the next start
            _log.warning("what other nodes have is not kept here: %s", error)
        for heard in (one for one in done.values() if one.holds()):
            self._book.forget_removed(heard.artifact_id)

    async def _take_up_one(self, listener: Listener, heard: Heard) -> None:
        is_alike: bool | None = False
        if heard.registration is not None:
            self._taking_up[heard.artifact_id] = heard.registration
        try:
            is_alike = await listener.hear(heard)
        except WarmshelfError as error:
            self._left_out(heard.artifact_id, error)
            return
        except Exception:  # noqa: BLE001 - a bug with one record must not end the task
            _log.exception("what other nodes have of %s is left out", heard.artifact_id)
            self._count("internal")
            return
        finally:
            self._taking_up.pop(heard.artifact_id, None)
            if is_alike is not None and self._known.get(heard.artifact_id, _NEW).essence_seen == essence(
                heard.registration
            ):
                self._behind.pop(heard.artifact_id, None)  # nothing newer was heard
        known = self._known.get(heard.artifact_id)
        if is_alike and known is not None and heard.registration is not None:
            self._known[heard.artifact_id] = known.pinned(heard.registration.digest)
        self._note(heard.artifact_id)

    def _left_out(self, artifact_id: str, error: WarmshelfError) -> None:
        """What others have of an ID cannot be had here: whoever asks sees why, and the store is not changed for it."""
        _log.warning("what other nodes have of %s is left out: %s", artifact_id, error)
        self._count("refused")
        if (known := self._known.get(artifact_id)) is not None:
            self._book.set(artifact_id, replace(known, conflict=error.message))
        self._note(artifact_id)

    # --- from the thread ----------------------------------------------------

    def _ears(self) -> Ears:
        told = partial(tell_on, lambda: self._loop)
        found, older, missing, up = map(told, (self._found, self._older, self._missing, self._came_up))
        return Ears(found, older, missing, up, self._count, self._revisions.all, self._revisions.newest)
