"""The use cases of operators: watch what changes, verify resident bytes, ask what would fit.

Runs on the event loop; what blocks goes to threads. Knows no gRPC.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial

from warmshelf.errors import DigestMismatch, NotResident, SegmentCorrupt
from warmshelf.types import Alias, Artifact, ArtifactState, Capacity
from warmshelfd.digesting import Cancelled, content_digest
from warmshelfd.domain.changes import Changes
from warmshelfd.inspecting import config_of
from warmshelfd.memory.segment import Segment
from warmshelfd.records import to_artifact
from warmshelfd.running import run_stoppable
from warmshelfd.shelf import Shelf
from warmshelfd.stock import Stock

_CHECK_THREADS = 2
_ALIAS = "@"  # before the name of an alias among the IDs that changed; no ID begins so


@dataclass(frozen=True, slots=True)
class Seen:
    """One message of a watch: an artifact or an alias as it is now, one that is gone, or the end of the snapshot.

    ``sequence`` is what to go on after; 0 within the snapshot, which cannot be resumed.
    """

    sequence: int
    artifact: Artifact | None = None
    removed_id: str = ""
    alias: Alias | None = None
    removed_alias: str = ""


class Observing:
    """What operators look at."""

    def __init__(self, shelf: Shelf, changes: Changes) -> None:
        self._shelf = shelf
        self._changes = changes
        shelf.aliases.on_move.append(lambda alias, _: self.note(_ALIAS + alias.name))
        shelf.aliases.on_remove.append(lambda name: self.note(_ALIAS + name))
        self._moved = asyncio.Event()  # event loop only: set at the next change, then replaced

    def note(self, artifact_id: str) -> None:
        """Count a change and wake the watchers."""
        self._changes.note(artifact_id)
        self._moved.set()
        self._moved = asyncio.Event()

    async def watch(self, after: int) -> AsyncGenerator[Seen, None]:
        """Tell changes after a sequence number as they happen; from 0, a snapshot first.

        An artifact is told as it is when it is told, which may be later than the change.

        Raises:
            SequenceCompacted: changes in between are forgotten.
        """
        if after == 0:
            after = self._changes.last_sequence
            for entry in list(self._shelf.catalog):
                yield Seen(0, to_artifact(entry))
            for alias in self._shelf.aliases.all():
                yield Seen(0, alias=alias)
            yield Seen(after)
        while True:
            moved = self._moved
            for sequence, artifact_id in self._changes.after(after):
                yield self._seen(sequence, artifact_id)
                after = sequence
            if moved is self._moved:
                await moved.wait()

    def _seen(self, sequence: int, artifact_id: str) -> Seen:
        if artifact_id.startswith(_ALIAS):
            name = artifact_id.removeprefix(_ALIAS)
            alias = self._shelf.aliases.find(name)
            return Seen(sequence, alias=alias, removed_alias="" if alias else name)
        entry = self._shelf.catalog.find(artifact_id)
        return Seen(sequence, removed_id=artifact_id) if entry is None else Seen(sequence, to_artifact(entry))

    async def verify(self, artifact_id: str) -> int:
        """Check every resident byte of an artifact; return how many. Bytes found wrong are withdrawn.

        Raises:
            NotResident: there are none.
            SegmentCorrupt: a block has another CRC than it was sealed with.
            DigestMismatch: all blocks are as sealed, but the content is not what the ID is pinned to.
        """
        entry = self._shelf.catalog.get(artifact_id)
        if entry.state not in (ArtifactState.READY, ArtifactState.EVICTING):
            raise NotResident(f"{artifact_id!r} is {entry.state.value}", artifact_id=artifact_id)
        segment_id = entry.segment_id
        segment = self._shelf.residency.begin_stream(segment_id)
        try:
            threads = self._shelf.hash_threads
            return await run_stoppable(threads, partial(_verify, segment, to_artifact(entry)))
        except (SegmentCorrupt, DigestMismatch) as error:
            self._shelf.withdraw_bytes(segment_id, error)
            raise
        finally:
            self._shelf.residency.end_stream(segment_id)

    def capacity(self, like_id: str) -> Capacity:
        """Return what the arena holds, and how many more like an artifact fit."""
        size = self._shelf.catalog.get(like_id).size_bytes if like_id else 0
        usage = self._shelf.residency.arena.usage()
        held = self._shelf.residency.held_bytes()
        evictable = usage.resident_bytes - held
        return Capacity(
            budget_bytes=usage.budget_bytes,
            resident_bytes=usage.resident_bytes,
            held_bytes=held,
            unnamed_bytes=usage.unnamed_bytes,
            reserved_bytes=usage.reserved_bytes,
            free_bytes=usage.free_bytes,
            fit_free_count=usage.free_bytes // size if size else 0,
            fit_evicting_count=(usage.free_bytes + evictable) // size if size else 0,
        )


def stock(shelf: Shelf) -> Stock:
    """Return what the daemon holds now."""
    usage, held = shelf.residency.arena.usage(), shelf.residency.held_bytes()
    segments, loads = shelf.residency.segments, shelf.flights.loads
    waiting = sum(load.room is not None for load in loads)
    return Stock(
        artifacts={state: shelf.catalog.count(state) for state in ArtifactState},
        segments=Counter(shelved.kind for shelved in segments),
        held_bytes=held,
        idle_bytes=max(usage.resident_bytes - held, 0),  # a segment leaves the arena's books a moment later than ours
        reserved_bytes=usage.reserved_bytes,
        unnamed_bytes=usage.unnamed_bytes,
        free_bytes=usage.free_bytes,
        unpinned_bytes=sum(shelved.segment.size_bytes for shelved in segments if not shelved.segment.pinned),
        sessions=shelf.leases.session_count,
        leases=len(shelf.leases),
        loads_running=len(loads) - waiting,
        loads_waiting=waiting,
        callers_waiting=sum(load.waiters.count for load in loads),
        fleet_up=shelf.registry.is_up,
    )


def _verify(segment: Segment, artifact: Artifact, cancelled: Cancelled) -> int:
    segment.check_blocks(_CHECK_THREADS, cancelled)
    if artifact.digest:
        small = {file.name: file.data for file in segment.manifest.small_files}
        config = config_of(artifact.kind, small)
        actual = content_digest(segment.layout.tensors, segment.read, config, cancelled)
        if actual != artifact.digest:
            raise DigestMismatch(
                f"{artifact.artifact_id!r} has digest {actual}, it is pinned to {artifact.digest}",
                expected=artifact.digest,
                actual=actual,
            )
    return segment.header.data.size
