"""The status page: a picture of the daemon, taken on the event loop and of bounded length.

For machines it is JSON; for people ``statusview`` draws it. It shows IDs, holders, numbers
and why loads failed; no sources, for their URIs say where a company keeps its models. Knows
no HTTP server and no HTML.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from warmshelf.types import ArtifactKind, ArtifactState
from warmshelfd import __version__
from warmshelfd.domain.catalog import Entry
from warmshelfd.domain.leases import LeaseRecord
from warmshelfd.flights import Ended
from warmshelfd.load import Load
from warmshelfd.observing import stock
from warmshelfd.shelf import Shelf
from warmshelfd.statusrows import (
    FAILED_MAX,
    FINDINGS_MAX,
    GROUPS_MAX,
    HOLDER_BYTES_MAX,
    LEASES_MAX,
    LOADS_MAX,
    ROWS_MAX,
    TENANTS_MAX,
    EndedRow,
    FailedRow,
    FindingRow,
    GroupRow,
    LeaseRow,
    LoadRow,
    PieceRow,
    Row,
    Status,
    TenantRow,
    Wanted,
    cut,
    pieces_of,
    rows_that_fit,
)


@dataclass(frozen=True, slots=True)
class Place:
    """What is not the shelf's to know."""

    is_ready: bool
    uptime_seconds: float
    findings: Sequence[FindingRow] = ()
    tenants: Sequence[TenantRow] = ()


def look(shelf: Shelf, wanted: Wanted, place: Place) -> Status:
    """Return the status. On the event loop."""
    now, arena = stock(shelf), shelf.residency.arena
    page = shelf.catalog.page(wanted.after_id, ROWS_MAX, wanted.base_id)
    shown = page.entries[: rows_that_fit(entry.artifact_id for entry in page.entries)]
    is_cut = len(shown) < len(page.entries)
    return Status(
        version=__version__,
        is_ready=place.is_ready,
        is_draining=shelf.draining,
        uptime_seconds=int(place.uptime_seconds),
        pinning=arena.pinning,
        page_size_bytes=arena.page_size_bytes,
        budget_bytes=arena.budget_bytes,
        arena_bytes={
            "held": now.held_bytes,
            "idle": now.idle_bytes,
            "reserved": now.reserved_bytes,
            "unnamed": now.unnamed_bytes,
            "free": now.free_bytes,
        },
        unpinned_bytes=now.unpinned_bytes,
        pieces=pieces_of(
            [PieceRow(r.artifact_id, r.kind.value, r.size_bytes, r.held) for r in shelf.residency.residents()]
        ),
        artifacts={state.value: count for state, count in now.artifacts.items()},
        sessions=now.sessions,
        leases=now.leases,
        lease_rows=tuple(_lease(record, shelf.clock()) for record in shelf.leases.page(0, LEASES_MAX).leases),
        loads_running=now.loads_running,
        loads_waiting=now.loads_waiting,
        callers_waiting=now.callers_waiting,
        load_rows=_loads(shelf.flights.loads, time.monotonic()),
        ended=tuple(_ended(one, time.monotonic()) for one in reversed(shelf.flights.ended)),
        groups=_groups(shelf),
        failed=_failed(shelf),
        findings=tuple(place.findings[:FINDINGS_MAX]),
        tenants=tuple(place.tenants[:TENANTS_MAX]),
        tenant=wanted.tenant,
        base_id=wanted.base_id,
        rows=tuple(_row(shelf, entry) for entry in shown),
        next_after=shown[-1].artifact_id if is_cut else page.next_after_id,
    )


def _row(shelf: Shelf, entry: Entry) -> Row:
    return Row(
        artifact_id=entry.artifact_id,
        kind=entry.kind.value,
        state=entry.state.value,
        generation=entry.generation,
        size_bytes=entry.size_bytes,
        leases=len(shelf.leases.of_artifact(entry.artifact_id)),
        pinned=entry.pinned,
        kept=entry.keep_resident,
    )


def _lease(record: LeaseRecord, now: datetime) -> LeaseRow:
    age = max((now - record.acquire_time).total_seconds(), 0)
    return LeaseRow(record.artifact_id, record.generation, cut(record.holder, HOLDER_BYTES_MAX), int(age))


def _loads(loads: Collection[Load], now_seconds: float) -> tuple[LoadRow, ...]:
    """Return those that have begun first."""
    first = heapq.nsmallest(LOADS_MAX, loads, key=lambda load: load.begun[0][1])
    return tuple(
        LoadRow(
            load.artifact_id,
            load.phase.value,
            load.done_bytes,
            load.total_bytes,
            round(now_seconds - load.begun[0][1], 1),
            load.waiters.count,
            cut(load.room.message) if load.room else "",
        )
        for load in first
    )


def _ended(one: Ended, now_seconds: float) -> EndedRow:
    ends = [*(begin for _, begin in one.begun[1:]), one.end_seconds]
    phases = tuple((phase.value, end - begin) for (phase, begin), end in zip(one.begun, ends, strict=True))
    return EndedRow(one.artifact_id, one.outcome, one.reason, now_seconds - one.end_seconds, phases)


def _groups(shelf: Shelf) -> tuple[GroupRow, ...]:
    """Return the bases by how many adapters they have; adapters that name none are those of ""."""
    counts: dict[str, Counter[str]] = {}
    for entry in shelf.catalog:
        if entry.kind is ArtifactKind.ADAPTER or entry.spec.base_id:  # one that was not looked at yet has no kind
            counts.setdefault(entry.spec.base_id, Counter())[entry.state.value] += 1
        elif entry.kind is ArtifactKind.BASE:
            counts.setdefault(entry.artifact_id, Counter())
    most = heapq.nlargest(GROUPS_MAX, counts.items(), key=lambda item: item[1].total())
    return tuple(GroupRow(base_id, _state_of(shelf, base_id), dict(count)) for base_id, count in most)


def _state_of(shelf: Shelf, base_id: str) -> str:
    entry = shelf.catalog.find(base_id)
    return entry.state.value if entry is not None else ""


def _failed(shelf: Shelf) -> tuple[FailedRow, ...]:
    entries = shelf.catalog.in_state(ArtifactState.FAILED)
    return tuple(
        FailedRow(entry.artifact_id, entry.failure.reason, cut(entry.failure.message))
        for entry in heapq.nlargest(FAILED_MAX, entries, key=lambda entry: entry.last_use_order)
        if entry.failure is not None
    )
