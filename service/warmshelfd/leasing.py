"""The use cases of workers: sessions, acquire, release, load with progress.

A worker's claims hang on its session and end with it. All state lives on the
event loop. Knows no gRPC.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

from warmshelf.errors import (
    DigestMismatch,
    Draining,
    LeaseLost,
    LoadCancelled,
    NotResident,
    SegmentCorrupt,
    SessionLost,
    WarmshelfError,
)
from warmshelf.types import Alias, Artifact, ArtifactState, LeaseInfo, LoadPhase, Progress, check_id
from warmshelfd import failpoints
from warmshelfd.domain.adapters import refuse
from warmshelfd.domain.catalog import RESIDENT, Entry
from warmshelfd.domain.leases import LeaseRecord
from warmshelfd.hashing import Hashing
from warmshelfd.load import Load
from warmshelfd.matching import needs_check
from warmshelfd.memory.segment import Segment
from warmshelfd.records import to_artifact, to_lease
from warmshelfd.running import answer_by, within
from warmshelfd.shelf import Shelf
from warmshelfd.touching import ensure_untouched
from warmshelfd.turns import Priority

_log = logging.getLogger(__name__)

_LEASE_ID_LENGTH = 32

_GIVEN_UP_COUNT_MAX = 64
"""Calls of one session that can cross each other on the wire at once."""

_PROGRESS_SECONDS = 0.1
"""Progress is told at most this often."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """A newer generation of a leased artifact is READY, or the alias it was asked for by means another."""

    lease: LeaseInfo


@dataclass(frozen=True, slots=True)
class Stopping:
    """The daemon is about to stop."""


Notice = Superseded | Stopping


@dataclass(frozen=True, slots=True)
class AcquireOptions:
    """What a worker asks for; see AcquireLeaseRequest."""

    resident_only: bool = False
    expected_digest: str = ""
    rank_max: int = 0
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Granted:
    """A lease and the segment that it holds."""

    lease: LeaseInfo
    artifact: Artifact
    segment: Segment


class Leasing:
    """Sessions and the leases on them."""

    def __init__(self, shelf: Shelf, hashing: Hashing) -> None:
        self._shelf = shelf
        self._hashing = hashing
        # Event loop only: what is still to be told on each open session's stream.
        self._notices: dict[str, asyncio.Queue[Notice]] = {}
        # Event loop only: leases of each session that were released before they were granted, the latest.
        self._given_up: dict[str, deque[str]] = {}
        # Event loop only: waits for the loads that go on without their callers.
        self._detached: set[asyncio.Task[None]] = set()
        # Event loop only: the alias under which a lease was asked for, by lease ID.
        self._asked_by: dict[str, str] = {}
        shelf.aliases.on_move.append(self._alias_moved)
        # Registers an ID that nobody knows, if something declares it.
        self.register_unknown: Callable[[str], Awaitable[None]] = _declare_nothing

    # --- sessions -----------------------------------------------------------

    def open_session(self, holder: str) -> tuple[str, asyncio.Queue[Notice]]:
        """Open a session; return its secret ID and the notices to pass on."""
        if self._shelf.draining:
            raise Draining("the daemon is stopping")
        session_id = secrets.token_hex(16)
        self._shelf.leases.open_session(session_id, holder)
        queue = self._notices[session_id] = asyncio.Queue()
        self._given_up[session_id] = deque(maxlen=_GIVEN_UP_COUNT_MAX)
        failpoints.hit("claim.opened")
        return session_id, queue

    def close_session(self, session_id: str) -> None:
        """End a session and every lease on it. Idempotent."""
        self._given_up.pop(session_id, None)
        if self._notices.pop(session_id, None) is not None:
            for record in self._shelf.leases.close_session(session_id):
                self._ended(record)
            failpoints.hit("claim.closed")

    def announce_stop(self) -> None:
        """Refuse new work and tell every session that the daemon is about to stop."""
        self._shelf.draining = True
        for queue in self._notices.values():
            queue.put_nowait(Stopping())

    def announce_ready(self, entry: Entry) -> None:
        """Tell holders of an older generation that a newer one is READY; learn its digest."""
        for record in self._shelf.leases.of_artifact(entry.artifact_id):
            queue = self._notices.get(record.session_id)
            if record.generation < entry.generation and queue is not None:
                queue.put_nowait(Superseded(to_lease(record, secret=True)))  # on its holder's own session
        self._hashing.start(entry)

    # --- leases -------------------------------------------------------------

    async def acquire(
        self,
        session_id: str,
        artifact_id: str,
        options: AcquireOptions,
        timeout: float | None,
        lease_id: str = "",
    ) -> Granted:
        """Lease an artifact, loading it if need be; see LeaseService.AcquireLease for the errors."""
        shelf, asked = self._shelf, artifact_id
        artifact_id = shelf.aliases.resolve(asked)
        self._must_be_open(session_id)
        await self._known(artifact_id, answer_by(timeout))
        joined: list[Load] = []  # loads are wanted until the lease is granted, so nobody evicts in between
        try:
            entry = await self._ready(artifact_id, options, answer_by(timeout), joined)
            self._must_be_open(session_id)  # it may have ended while we waited
            now = shelf.clock()
            if lease_id in self._given_up[session_id]:
                raise LeaseLost("the worker released the lease before it was granted")
            if lease_id and (old := shelf.leases.release(session_id, lease_id)):  # its first answer was lost
                self._ended(old)
            record = shelf.leases.grant(
                lease_id or secrets.token_hex(16),
                session_id,
                artifact_id=artifact_id,
                generation=entry.generation,
                segment_id=entry.segment_id,
                now=now,
            )
        finally:
            for load in joined:
                shelf.flights.leave(load)
        failpoints.hit("claim.granted")
        if asked != artifact_id:
            self._asked_by[record.lease_id] = asked
        shelf.catalog.touch(entry, now)
        shelf.metrics.acquired(entry.kind, hit=not joined)
        segment = shelf.residency.get(entry.segment_id).segment
        return Granted(to_lease(record, secret=True), to_artifact(entry), segment)

    async def _known(self, artifact_id: str, until: float) -> None:
        if self._shelf.catalog.find(artifact_id) is None:
            check_id(artifact_id)
            await within(self.register_unknown(artifact_id), until, f"{artifact_id!r} is being registered")

    def _must_be_open(self, session_id: str) -> None:
        if session_id not in self._notices:
            raise SessionLost("the session is not open at this daemon; open a new one")

    async def _ready(self, artifact_id: str, options: AcquireOptions, until: float, joined: list[Load]) -> Entry:
        """Return the artifact once it is READY, checked, and what the caller expects."""
        shelf = self._shelf
        while True:
            entry = shelf.catalog.get(artifact_id)
            segment_id = entry.segment_id
            _must_suit(entry, options)
            if entry.state is ArtifactState.READY:
                good = await self._checked(entry, until) and await self._as_expected(entry, options, until)
                if good and entry.state is ArtifactState.READY and shelf.residency.is_of(segment_id, entry):
                    return entry
            elif options.resident_only:
                raise NotResident(f"{artifact_id!r} is {entry.state.value}", artifact_id=artifact_id)
            else:
                await self._come_closer(entry, until, joined)

    async def _come_closer(self, entry: Entry, until: float, joined: list[Load]) -> None:
        """Wait for one thing that an artifact needs before it can be READY, unless it is meanwhile."""
        shelf, artifact_id = self._shelf, entry.artifact_id
        if entry.state is ArtifactState.EVICTING:
            await within(shelf.residency.changed().wait(), until, f"{artifact_id!r} is being evicted")
            return
        if needs_check(entry):
            check = shelf.matching.check_base(entry)
            await within(check, until, f"{artifact_id!r} is being compared with its base")
            if shelf.catalog.find(artifact_id) is not entry or entry.state in RESIDENT:
                return
        joined.append(self._join(entry, Priority.DEMAND))
        await self._landed(joined[-1], until)

    async def _landed(self, load: Load, until: float) -> None:
        """Wait until a load is done, or its artifact has other bytes now; errors as ``Flights.wait``."""
        try:
            await self._shelf.flights.wait(load, until - time.monotonic())
        except LoadCancelled:
            if not load.is_replaced:
                raise

    def _join(self, entry: Entry, priority: Priority) -> Load:
        if self._shelf.draining:
            raise Draining("the daemon is stopping and begins no load")
        return self._shelf.flights.join(entry, priority)

    async def _checked(self, entry: Entry, until: float) -> bool:
        """Say whether the bytes are what was sealed; if not, they are withdrawn."""
        segment_id, residency = entry.segment_id, self._shelf.residency
        try:
            await ensure_untouched(residency, segment_id)
            if residency.get(segment_id).segment.checked:
                return True
            check = residency.ensure_checked(segment_id)
            await within(check, until, f"{entry.artifact_id!r} is being checked")
        except SegmentCorrupt as error:
            self._shelf.withdraw_bytes(segment_id, error)
            return False
        return True

    async def _as_expected(self, entry: Entry, options: AcquireOptions, until: float) -> bool:
        """Wait for the digest if one is expected, and compare."""
        expected, pinned = options.expected_digest, entry.spec.source.expected_digest
        if not expected or expected == pinned:
            return True
        if expected.startswith("sha256:"):  # which only the source tells
            why = f"the source of {entry.artifact_id!r} is being hashed"
            actual = await within(self._hashing.source_sha256(entry), until, why)
        elif entry.digest:
            actual = entry.digest
        else:
            await self._hashed(entry, until)
            return False  # look again
        if expected != actual:
            raise DigestMismatch(
                f"{entry.artifact_id!r} has digest {actual or 'unknown'}, expected {expected}",
                artifact_id=entry.artifact_id,
                expected=expected,
                actual=actual,
            )
        return True

    async def _hashed(self, entry: Entry, until: float) -> None:
        """Wait until the digest is known, or its failure; nothing is hashed if the bytes have left."""
        hashing = self._hashing.start(entry)
        if hashing is not None:
            await within(asyncio.wait([hashing]), until, f"{entry.artifact_id!r} is being hashed")
            if not hashing.cancelled() and hashing.exception() is not None:
                await hashing

    def release(self, session_id: str, lease_id: str) -> None:
        """End a lease. Releasing an unknown one is fine."""
        record = self._shelf.leases.release(session_id, lease_id)
        if record is not None:
            self._ended(record)
        elif session_id in self._given_up:
            self._given_up[session_id].append(lease_id)

    def _alias_moved(self, alias: Alias, before_id: str) -> None:
        """Tell who asked by this alias that it means something else now."""
        for record in self._shelf.leases.of_artifact(before_id):
            queue = self._notices.get(record.session_id)
            if (
                self._asked_by.get(record.lease_id) == alias.name
                and before_id != alias.artifact_id
                and queue is not None
            ):
                queue.put_nowait(Superseded(to_lease(record, secret=True)))

    def _ended(self, record: LeaseRecord) -> None:
        self._asked_by.pop(record.lease_id, None)
        entry = self._shelf.catalog.find(record.artifact_id)
        if entry is not None:
            self._shelf.catalog.touch(entry, self._shelf.clock())
        self._shelf.settle(record.artifact_id, record.segment_id)
        failpoints.hit("claim.ended")

    def leased(self, session_id: str, lease_id: str) -> LeaseRecord:
        """Return a live lease; LeaseLost if there is none such on this session."""
        try:
            return self._shelf.leases.get(session_id, lease_id)
        except SessionLost as error:
            raise LeaseLost(error.message) from error

    # --- load ---------------------------------------------------------------

    async def progress(
        self,
        artifact_id: str,
        timeout: float | None,
        priority: Priority = Priority.PREFETCH,
        *,
        detach: bool = False,
    ) -> AsyncGenerator[Progress, None]:
        """Make an artifact resident and say how far it is, until it is READY.

        Closing the iterator stops the load unless somebody else wants it. With ``detach`` it is
        told once how far it is; the load goes on until it is done or the time is up.
        """
        shelf, until = self._shelf, answer_by(timeout)
        artifact_id = shelf.aliases.resolve(artifact_id)
        await self._known(artifact_id, until)
        entry = shelf.catalog.get(artifact_id)
        if entry.state is ArtifactState.READY:
            await shelf.registering.notice_change(entry)
        while (entry := shelf.catalog.get(artifact_id)).state is ArtifactState.EVICTING:
            await within(shelf.residency.changed().wait(), until, f"{artifact_id!r} is being evicted")
        if entry.state is not ArtifactState.READY and detach:
            load = self._detach(entry, until, priority)
            yield Progress(load.phase, load.done_bytes, load.total_bytes, shelf.get(artifact_id))
            return
        if entry.state is not ArtifactState.READY:
            async for step in self._watch(self._join(entry, priority), until, priority):
                yield step
        artifact = shelf.get(artifact_id)
        yield Progress(LoadPhase.SEAL, artifact.size_bytes, artifact.size_bytes, artifact)

    async def _watch(self, load: Load, until: float, priority: Priority) -> AsyncGenerator[Progress, None]:
        """Watch a load that was joined, and those of what its artifact is replaced by meanwhile; leave each."""
        while True:
            try:
                while load.task is not None and not load.task.done() and time.monotonic() < until:
                    yield Progress(load.phase, load.done_bytes, load.total_bytes)
                    await asyncio.wait([load.task], timeout=min(_PROGRESS_SECONDS, max(until - time.monotonic(), 0)))
                await self._landed(load, 0)
            finally:
                self._shelf.flights.leave(load)
            if not load.is_replaced or (entry := self._shelf.catalog.get(load.artifact_id)).state in RESIDENT:
                return
            load = self._join(entry, priority)

    def _detach(self, entry: Entry, until: float, priority: Priority) -> Load:
        """Want a load in the place of a caller who has gone."""
        load = self._join(entry, priority)
        task = asyncio.get_running_loop().create_task(self._stay(load, until, priority))
        self._detached.add(task)
        task.add_done_callback(self._detached.discard)
        return load

    async def _stay(self, load: Load, until: float, priority: Priority) -> None:
        try:
            async for _ in self._watch(load, until, priority):
                pass
        except WarmshelfError as error:
            _log.warning("detached load of %s: %s", load.artifact_id, error)


# --- pure parts -------------------------------------------------------------


def is_lease_id(text: str) -> bool:
    """Say whether a worker may choose this ID for a lease."""
    return len(text) == _LEASE_ID_LENGTH and not text.strip("0123456789abcdef")


def _must_suit(entry: Entry, options: AcquireOptions) -> None:
    """Refuse an adapter that the worker could not serve, before a byte moves; errors as ``refuse``."""
    adapter = entry.inspection.adapter if entry.inspection else None
    if adapter is not None:
        refuse(adapter.features, adapter.rank_max, rank_max=options.rank_max, honoured=options.features)


async def _declare_nothing(_artifact_id: str) -> None:
    return None
