"""The artifacts known, in memory.

It knows IDs, states and the order of use. It knows no registry, arena, lease or
clock: whoever changes an entry tells the registry, and brings the time.

All of it belongs to the event loop's thread; no lock guards it, and no method
waits.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from warmshelf.errors import ArtifactNotFound, CatalogFull, Internal
from warmshelf.types import ArtifactKind, ArtifactSpec, ArtifactState, Failure, Inspection, Sync
from warmshelfd.domain.adapter_shapes import AdapterShapes
from warmshelfd.domain.state import FIRST, GONE, Event, step

RESIDENT = frozenset({ArtifactState.READY, ArtifactState.EVICTING})
"""The states in which the artifact's segment is in the arena and readable."""


@dataclass(slots=True)
class Entry:
    """One artifact as the daemon knows it now.

    ``state`` and ``failure`` change through ``Catalog.apply`` only, ``last_use_*``
    through ``Catalog.touch``; the rest is set by the use cases.

    Attributes:
        artifact_id: its ID; never changes.
        spec: as registered, the URI in canonical form.
        register_time: when, in UTC.
        kind: as read from the source; UNKNOWN while inspection is deferred.
        state: where it is in its life.
        generation: counts its contents; 0 before the first load.
        inspection: what the headers told; None while deferred.
        adapter_shapes: what an adapter needs of its base; None for a base, and while deferred.
        fingerprint: how the source looked when its bytes were pinned; "" if never inspected.
        digest: of this generation; "" until known.
        size_bytes: of its segment's file; 0 if not known.
        segment_id: the segment that holds, or held, this generation; "" if never loaded.
        hashes_owed: the hashes in its segment's manifest are still to be compared with its bytes.
        files_digest: of the small files beside the config; "" until known.
        failure: why the last load failed; set exactly while FAILED.
        pinned: whether its bytes are page-locked.
        keep_resident: never evicted to make room for others.
        follow: other bytes at the source become a new generation.
        last_use_time: when a lease on it was last acquired or released.
        sync: how far other nodes know of it; None if no registry is shared.
        last_use_order: rises with every use of any artifact; 0 if never used. Least
            recently used is decided by this and not by a clock, which may step back.
    """

    artifact_id: str
    spec: ArtifactSpec
    register_time: datetime
    kind: ArtifactKind = ArtifactKind.UNKNOWN
    state: ArtifactState = FIRST
    generation: int = 0
    inspection: Inspection | None = None
    adapter_shapes: AdapterShapes | None = None
    fingerprint: str = ""
    digest: str = ""
    size_bytes: int = 0
    segment_id: str = ""
    hashes_owed: bool = False
    files_digest: str = ""
    failure: Failure | None = None
    pinned: bool = False
    keep_resident: bool = False
    follow: bool = False
    last_use_time: datetime | None = None
    sync: Sync | None = None
    last_use_order: int = 0

    @property
    def adapter_number(self) -> int:
        """The number engines know the adapter by; 0 if it has none (yet)."""
        if self.inspection is None or self.inspection.adapter is None:
            return 0
        return self.inspection.adapter.adapter_number


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a listing. ``next_after_id`` continues it and is empty on the last page."""

    entries: tuple[Entry, ...]
    next_after_id: str


class Catalog:
    """The artifacts known, by ID."""

    def __init__(self, *, artifact_count_max: int, on_change: Callable[[str], None] = lambda _: None) -> None:
        """``on_change`` is told the ID of whatever was added, changed or removed, after it was."""
        self._artifact_count_max = artifact_count_max
        self._on_change = on_change
        # Every entry by its ID, and the same IDs sorted, for pages. A list of 100,000
        # strings takes an insertion in some 10 us; no tree is worth that.
        self._entries: dict[str, Entry] = {}
        self._ids: list[str] = []
        # The same entries by state, so that no acquire looks at all that is registered.
        self._in_state: dict[ArtifactState, dict[str, Entry]] = {state: {} for state in ArtifactState}
        self._last_use_order = 0  # the highest handed out

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, artifact_id: str) -> bool:
        return artifact_id in self._entries

    def __iter__(self) -> Iterator[Entry]:
        """Return every entry by ID; nothing may be added or removed meanwhile."""
        return (self._entries[artifact_id] for artifact_id in self._ids)

    def __repr__(self) -> str:
        counts = [f"{len(entries)} {state.value}" for state, entries in self._in_state.items() if entries]
        return f"<Catalog {len(self)} of {self._artifact_count_max}: {', '.join(counts) or 'empty'}>"

    def find(self, artifact_id: str) -> Entry | None:
        """Return the entry, or None if the ID is unknown."""
        return self._entries.get(artifact_id)

    def get(self, artifact_id: str) -> Entry:
        """Return the entry.

        Raises:
            ArtifactNotFound: the ID is unknown.
        """
        entry = self._entries.get(artifact_id)
        if entry is None:
            raise ArtifactNotFound(f"no artifact {artifact_id!r} is known", artifact_id=artifact_id)
        return entry

    def in_state(self, state: ArtifactState) -> tuple[Entry, ...]:
        """Return the entries in this state, in no order."""
        return tuple(self._in_state[state].values())

    def count(self, state: ArtifactState) -> int:
        """Return how many entries are in this state."""
        return len(self._in_state[state])

    def add(self, entry: Entry) -> None:
        """Make an artifact known.

        Raises:
            CatalogFull: as many are known as may be.
            Internal: the ID is known already.
        """
        if entry.artifact_id in self._entries:
            raise Internal(f"artifact {entry.artifact_id!r} is in the catalog already", artifact_id=entry.artifact_id)
        self.check_room()
        self._entries[entry.artifact_id] = entry
        self._in_state[entry.state][entry.artifact_id] = entry
        insort(self._ids, entry.artifact_id)
        self._last_use_order = max(self._last_use_order, entry.last_use_order)
        self._on_change(entry.artifact_id)

    def check_room(self) -> None:
        """Return if one more artifact may be added.

        Raises:
            CatalogFull: as many are known as may be.
        """
        if len(self) >= self._artifact_count_max:
            raise CatalogFull(
                f"{len(self)} artifacts are registered, at most {self._artifact_count_max} may be",
                artifact_count=len(self),
                artifact_count_max=self._artifact_count_max,
            )

    def apply(self, artifact_id: str, event: Event, failure: Failure | None = None) -> Entry:
        """Let an event happen and return the entry; one that is removed is returned as it last was.

        ``failure`` says why, where the event leads to FAILED.

        Raises:
            ArtifactNotFound: the ID is unknown.
            IllegalTransition: the event cannot happen now; nothing has changed.
        """
        entry = self.get(artifact_id)
        after = step(entry.state, event)
        del self._in_state[entry.state][artifact_id]
        if after is GONE:
            del self._entries[artifact_id]
            del self._ids[bisect_left(self._ids, artifact_id)]
            self._on_change(artifact_id)
            return entry
        self._in_state[after][artifact_id] = entry
        entry.state = after
        entry.failure = failure
        entry.pinned = entry.pinned and after in RESIDENT
        self._on_change(artifact_id)
        return entry

    def changed(self, entry: Entry) -> None:
        """Note that something else of an entry than its state was changed."""
        self._on_change(entry.artifact_id)

    def touch(self, entry: Entry, now: datetime) -> None:
        """Note that the artifact was used: it is now the last to be evicted."""
        self._last_use_order += 1
        entry.last_use_order = self._last_use_order
        entry.last_use_time = now

    def order_by_time(self, artifact_ids: Collection[str]) -> None:
        """Put artifacts, and all that was used since the first of them, in the order of the times of their use.

        For what was loaded in another order than it was used in, long ago.
        """
        times = {id_: entry.last_use_time for id_ in artifact_ids if (entry := self._entries.get(id_)) is not None}
        first = min((when for when in times.values() if when is not None), default=None)
        later = [e for e in self if first is not None and e.last_use_time is not None and e.last_use_time >= first]
        for entry in sorted(later, key=lambda entry: (entry.last_use_time, entry.last_use_order)):
            self.touch(entry, entry.last_use_time or entry.register_time)

    def page(self, after_id: str, page_size: int, base_id: str = "") -> Page:
        """Return the next entries by ID after ``after_id``, which need not be known.

        ``base_id`` leaves only the adapters registered for that base.
        """
        rest = range(bisect_right(self._ids, after_id), len(self._ids))
        following = (self._entries[self._ids[index]] for index in rest)
        wanted = (entry for entry in following if not base_id or entry.spec.base_id == base_id)
        entries = tuple(islice(wanted, page_size))
        more = next(wanted, None) is not None
        return Page(entries, entries[-1].artifact_id if more and entries else "")

    def check(self) -> None:
        """Check every invariant.

        Raises:
            Internal: one is broken; says which.
        """
        if self._ids != sorted(self._entries):
            raise Internal("the sorted IDs are not those of the catalog")
        states = {artifact_id: state for state, entries in self._in_state.items() for artifact_id in entries}
        if sum(map(len, self._in_state.values())) != len(states) or states.keys() != self._entries.keys():
            raise Internal("the entries by state are not those of the catalog")
        for artifact_id, entry in self._entries.items():
            why = _fault(artifact_id, entry, states[artifact_id])
            if why:
                raise Internal(f"artifact {artifact_id!r} {why}", artifact_id=artifact_id)
        _check_unique("adapter number", [entry.adapter_number for entry in self])
        _check_unique("order of use", [entry.last_use_order for entry in self])


def spec_conflict(old: ArtifactSpec, new: ArtifactSpec) -> str:
    """Name the fields in which a new registration differs from the known one; "" if it may pass as equal.

    A kind that is not said is no contradiction: it is read from the source both times.
    """
    differs = {
        "source.uri": old.source.uri != new.source.uri,
        "source.revision": old.source.revision != new.source.revision,
        "source.expected_digest": old.source.expected_digest != new.source.expected_digest,
        "kind": ArtifactKind.UNKNOWN not in (old.kind, new.kind) and old.kind is not new.kind,
        "base_id": old.base_id != new.base_id,
    }
    return ", ".join(name for name, differ in differs.items() if differ)


def _fault(artifact_id: str, entry: Entry, state: ArtifactState) -> str:
    broken = {
        f"stands under the ID {entry.artifact_id!r}": entry.artifact_id != artifact_id,
        f"is {entry.state.name} but listed as {state.name}": entry.state is not state,
        "has a failure exactly when it should not": (entry.failure is not None) != (state is ArtifactState.FAILED),
        f"is {state.name} without a segment": state in RESIDENT and not (entry.segment_id and entry.generation),
        f"is pinned though {state.name}": entry.pinned and state not in RESIDENT,
        "was used at no time": (entry.last_use_order > 0) != (entry.last_use_time is not None),
    }
    return next((why for why, is_broken in broken.items() if is_broken), "")


def _check_unique(name: str, numbers: list[int]) -> None:
    given = [number for number in numbers if number]
    if len(given) != len(set(given)):
        raise Internal(f"two artifacts have the same {name}")
