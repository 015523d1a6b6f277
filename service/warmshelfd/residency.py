"""Which segments are in memory, who holds them, and how room is made for more.

Acts out what ``domain.placement`` decides. Everything here runs on the event
loop; unlinking, mapping and probing go to threads. Knows no source and no gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Executor
from typing import TypeAlias, TypeVar

from warmshelf.errors import ArenaFull, LargerThanArena, SegmentCorrupt
from warmshelf.layout import Layout
from warmshelf.types import ArtifactKind
from warmshelfd import failpoints
from warmshelfd.domain.catalog import Catalog, Entry
from warmshelfd.domain.leases import LeaseTable
from warmshelfd.domain.placement import ArenaView, Fits, Need, Resident, plan
from warmshelfd.domain.state import Event
from warmshelfd.memory.arena import Arena, Reservation
from warmshelfd.memory.segment import Segment
from warmshelfd.metric_table import EvictReason
from warmshelfd.metrics import Metrics
from warmshelfd.running import run_stoppable, stop, wait_at_most
from warmshelfd.shelved import Shelved, Waiters
from warmshelfd.turns import Priority, Turns

T = TypeVar("T")
Waiting: TypeAlias = "Callable[[ArenaFull | None], None]"

_CHECK_THREADS = 2
"""Two threads check CRCs at memory speed; more would take cores from serving."""

_LOOK_AGAIN_SECONDS = 0.25
"""Who waits for room looks again this often: nobody tells us when a mapping ends."""

_SWEEP_SECONDS = 1.0
"""What nobody maps any more is given back within this time, also while nobody needs room."""


class Residency:
    """The segments in memory."""

    def __init__(
        self,
        arena: Arena,
        catalog: Catalog,
        leases: LeaseTable,
        threads: Executor,
        floor_bytes: int,
        metrics: Metrics,
    ) -> None:
        self.arena = arena
        self._metrics = metrics
        self._catalog = catalog
        self._leases = leases
        self._threads = threads
        self.floor_bytes = floor_bytes  # what bases must leave to adapters; changes with the budget
        # Event loop only. Bytes without a name stay here until nobody holds them.
        self._shelved: dict[str, Shelved] = {}
        # First come, first served among equals: one queue for adapters, one for bases.
        self._turns = {kind: Turns() for kind in ArtifactKind}
        self._changed = asyncio.Event()
        self._unlinking: set[asyncio.Task[None]] = set()
        # What makes room where others spend of the same budget, instead of ``_try_reserve``.
        self.make_room: Callable[[int, ArtifactKind, Waiting], Awaitable[Reservation | None]] = self._try_reserve

    # --- what is here -------------------------------------------------------

    def add(self, segment: Segment, entry: Entry, waiters: Waiters) -> None:
        """Take in a sealed segment as the bytes of an artifact."""
        self._shelved[segment.segment_id] = Shelved(segment, entry.kind, {entry.artifact_id: entry}, waiters)

    def share(self, segment_id: str, entry: Entry) -> None:
        """Let a segment be the bytes of one more artifact, whose content is the same."""
        self.get(segment_id).entries[entry.artifact_id] = entry

    def owners(self, segment_id: str) -> list[Entry]:
        """Return the artifacts whose bytes a segment is now; none if it is gone."""
        shelved = self._shelved.get(segment_id)
        return list(shelved.entries.values()) if shelved else []

    def is_of(self, segment_id: str, entry: Entry) -> bool:
        """Say whether a segment is in memory and an artifact's bytes, for whoever has waited since it was."""
        return any(owner is entry for owner in self.owners(segment_id))

    def find_layout(self, segment_id: str) -> Layout | None:
        """Return where the tensors of a segment lie, if it is in memory."""
        shelved = self._shelved.get(segment_id)
        return shelved.segment.layout if shelved else None

    def find_content(self, digest: str, kind: ArtifactKind) -> str:
        """Return the segment that holds the content with this digest, or ""."""
        for segment_id, shelved in self._shelved.items():
            if shelved.kind is kind and digest and any(e.digest == digest for e in shelved.entries.values()):
                return segment_id
        return ""

    def get(self, segment_id: str) -> Shelved:
        """Return a segment in memory; whoever asks holds a lease on it.

        Raises:
            SegmentCorrupt: it is gone, which a lease should have prevented.
        """
        shelved = self._shelved.get(segment_id)
        if shelved is None:
            raise SegmentCorrupt("the segment is no longer in memory")
        return shelved

    def changed(self) -> asyncio.Event:
        """Return an event that is set at the next change of anything in here."""
        return self._changed

    def notify(self) -> None:
        """Wake everybody who waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    # --- making room --------------------------------------------------------

    async def reserve(
        self,
        size: int,
        kind: ArtifactKind,
        priority: Callable[[], Priority],
        waiting: Waiting,
    ) -> Reservation:
        """Return a reservation, evicting and waiting for as long as it takes.

        Whose turn is next is decided by priority, and among equals by who came first. Who waits
        for room has the turn: equals that would fit wait behind it, but who goes first by priority does not.
        ``waiting`` is told why there is no room, with the numbers, and None when there is.

        Raises:
            LargerThanArena: it can never fit; nobody was evicted.
        """
        budget = self.arena.budget_bytes
        if size > budget:  # before queueing: no wait can help
            raise LargerThanArena(
                f"{size} bytes can never fit into an arena of {budget} bytes", needed_bytes=size, budget_bytes=budget
            )
        if self._turns[kind].taken:
            waiting(self.full(size, ", and others wait before it"))
        async with self._turns[kind].turn(priority) as give_way:
            changed = self._changed
            reservation = await self.make_room(size, kind, waiting)
            if reservation is None:
                self._metrics.room_missed(kind)
            while reservation is None:
                await _wait_briefly(changed)
                await give_way()
                changed = self._changed
                reservation = await self.make_room(size, kind, waiting)
            waiting(None)
            return reservation

    async def _try_reserve(self, size: int, kind: ArtifactKind, waiting: Waiting) -> Reservation | None:
        self.probe_again()
        evicted = False
        while not evicted:
            decision = plan(Need(size, kind), self.view(), self.residents())
            if not isinstance(decision, Fits):
                waiting(self.full(size))
                return None
            evicted = await self.evict_all(decision, lambda: self.arena.usage().free_bytes >= size)
        try:
            return self.arena.reserve(size)
        except ArenaFull as error:
            waiting(error)
            return None

    async def evict_all(self, decision: Fits, is_enough: Callable[[], bool], reason: EvictReason = "placement") -> bool:
        """Evict the victims one after another, but none in vain; say False if one turns out to be mapped or gone.

        What is free is asked of the file system again before each: nobody is evicted for nothing.
        """
        victims = [self._shelved.get(victim.segment_id) for victim in decision.victims]
        for shelved in victims[1:]:
            if shelved is None or not await self._is_idle(shelved):
                return False
        for shelved in victims:
            if is_enough():
                return True
            if shelved is None or not await self._is_idle(shelved):  # again: looking at the others took its time
                return False
            await self._evict(shelved, reason)
        return True

    async def evict_idle(self, segment_id: str, reason: EvictReason) -> bool:
        """Let one segment go, if it is neither held nor mapped; say whether it was."""
        shelved = self._shelved.get(segment_id)
        if shelved is None or not await self._is_idle(shelved):
            return False
        await self._evict(shelved, reason)
        return True

    async def _evict(self, shelved: Shelved, reason: EvictReason) -> None:
        for artifact_id in list(shelved.entries):
            self._catalog.apply(artifact_id, Event.EVICTED)
            self.forget_name(shelved.segment.segment_id, artifact_id, reason)
        await self.let_go(shelved.segment.segment_id)

    def probe_again(self) -> None:
        """Forget what was mapped the last time."""
        for shelved in self._shelved.values():
            shelved.mapped = False

    async def _is_idle(self, shelved: Shelved) -> bool:
        """Say whether a segment that has a name is neither held nor mapped."""
        if not shelved.entries:
            return False
        shelved.mapped = await self.in_thread(self.arena.in_use, shelved.segment)
        return bool(shelved.entries) and not self._held(shelved)  # it may have been leased while the probe ran

    def view(self) -> ArenaView:
        """Return the arena as a plan sees it."""
        usage = self.arena.usage()
        return ArenaView(usage.budget_bytes, usage.free_bytes, usage.unnamed_bytes, self.floor_bytes)

    def residents(self) -> list[Resident]:
        """Return what has a name, as a plan sees it."""
        return [
            Resident(
                segment_id,
                min(s.entries),
                s.kind,
                s.segment.size_bytes,
                max(e.last_use_order for e in s.entries.values()),
                self._held(s),
            )
            for segment_id, s in self._shelved.items()
            if s.entries
        ]

    def _held(self, shelved: Shelved) -> bool:
        return (
            shelved.streams > 0
            or shelved.waiters.count > 0
            or shelved.mapped
            or (shelved.checking is not None and not shelved.checking.done())
            or self._leases.holders(shelved.segment.segment_id) > 0
            or any(entry.keep_resident for entry in shelved.entries.values())
        )

    @property
    def segments(self) -> Collection[Shelved]:
        """Every segment in memory."""
        return self._shelved.values()

    def held_bytes(self) -> int:
        """Return how many bytes cannot be evicted now."""
        return sum(s.segment.size_bytes for s in self._shelved.values() if self._held(s))

    def full(self, size: int, more: str = "") -> ArenaFull:
        """Return the error that says why there is no room."""
        usage, held_bytes = self.arena.usage(), self.held_bytes()
        return ArenaFull(
            f"no room for {size} bytes: {usage.free_bytes} of {usage.budget_bytes} are free, {held_bytes} are held, "
            f"{usage.unnamed_bytes} are still mapped by somebody{more}",
            needed_bytes=size,
            free_bytes=usage.free_bytes,
            budget_bytes=usage.budget_bytes,
            held_bytes=held_bytes,
            unnamed_bytes=usage.unnamed_bytes,
            reserved_bytes=usage.reserved_bytes,
        )

    # --- letting go ---------------------------------------------------------

    def forget_name(self, segment_id: str, artifact_id: str, reason: EvictReason) -> None:
        """Take an artifact's name from bytes; ``settle`` or ``let_go`` lets them go.

        At once with the change of the artifact: nothing may evict it for bytes that are not its own any more.
        """
        shelved = self._shelved.get(segment_id)
        if shelved is not None and shelved.entries.pop(artifact_id, None) is not None:
            self._metrics.evicted(shelved.kind, reason)

    async def let_go(self, segment_id: str) -> None:
        """Let bytes without a name go at once, or with their last holder."""
        task = self.settle(segment_id)
        if task is not None:
            await asyncio.shield(task)

    def settle(self, segment_id: str) -> asyncio.Task[None] | None:
        """After a lease or stream ended: let bytes without name and holder go."""
        shelved = self._shelved.get(segment_id)
        if shelved is None:
            return None
        shelved.mapped = False
        holders = self._leases.holders(segment_id) + shelved.streams
        if shelved.entries or holders:
            return None
        del self._shelved[segment_id]
        return self._begin_unlinking(shelved)

    async def discard(self, segment: Segment) -> None:
        """Unlink a segment that came too late to be anybody's."""
        await asyncio.shield(self._begin_unlinking(Shelved(segment, ArtifactKind.UNKNOWN, {}, Waiters())))

    def _begin_unlinking(self, shelved: Shelved) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._unlink(shelved))
        self._unlinking.add(task)
        task.add_done_callback(self._unlinking.discard)
        return task

    async def _unlink(self, shelved: Shelved) -> None:
        await stop(shelved.checking)
        await stop(shelved.hashing)
        failpoints.hit("evict.chosen")
        await self.in_thread(self.arena.unlink, shelved.segment)
        failpoints.hit("evict.unlinked")
        self.notify()

    async def sweep(self) -> None:
        """Give back, for as long as the daemon runs, what lost its name first and then its last mapping."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            await self.in_thread(self.arena.usage)

    # --- reading ------------------------------------------------------------

    def begin_stream(self, segment_id: str) -> Segment:
        """Return a segment to read from; its bytes stay until ``end_stream``."""
        shelved = self.get(segment_id)
        shelved.streams += 1
        return shelved.segment

    def end_stream(self, segment_id: str) -> None:
        """End what ``begin_stream`` began."""
        self.get(segment_id).streams -= 1
        self.settle(segment_id)

    # --- checking adopted bytes ---------------------------------------------

    async def ensure_checked(self, segment_id: str) -> None:
        """Return when every block of the segment has been checked since it was adopted.

        Raises:
            SegmentCorrupt: a block is not what was sealed.
        """
        shelved = self.get(segment_id)
        if shelved.segment.checked:
            return
        if shelved.checking is None:
            shelved.checking = asyncio.get_running_loop().create_task(self._check(shelved))
        await asyncio.wait([shelved.checking])
        if not shelved.checking.cancelled():  # else the bytes have gone: the caller looks again
            shelved.checking.result()

    async def _check(self, shelved: Shelved) -> None:
        await run_stoppable(self._threads, lambda stopped: shelved.segment.check_blocks(_CHECK_THREADS, stopped))
        failpoints.hit("adopt.checked")

    async def close(self) -> None:
        """Wait for what is under way; segments keep their names for the next start."""
        for shelved in self._shelved.values():
            await stop(shelved.checking)
            await stop(shelved.hashing)
        if self._unlinking:
            await asyncio.wait(self._unlinking)

    def in_thread(self, function: Callable[..., T], *args: object) -> Awaitable[T]:
        """Run something blocking in a thread of this module."""
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *args)


async def _wait_briefly(changed: asyncio.Event) -> None:
    with contextlib.suppress(asyncio.TimeoutError):
        await wait_at_most(changed.wait(), _LOOK_AGAIN_SECONDS)
