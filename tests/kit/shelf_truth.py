"""Everything that must be true of a core whenever nothing is under way, and what its callers hold of it.

Judges by what the kernel shows of the arena and by ``kit.shelf_model``. Acting as
every worker at once, this process maps segments itself: for the core it is another one.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kit import shelf_model as model
from kit.core_process import Picture, Places, Snapshot
from kit.cores import Core
from kit.shelf_model import Call, Maybe, Room, World
from kit.shelf_order import Told, ahead, ends, fits
from kit.source_files import CONTENTS, Content, SourceFiles
from warmshelf.image import SegmentImage
from warmshelf.mapping import map_segment
from warmshelf.types import Artifact, ArtifactKind

_SEGMENT = re.compile(r"[0-9a-f]{32}")


@dataclass
class Held:
    """What a worker has: a lease that is live while it has a session, and a mapping, or one of them."""

    artifact_id: str
    session_id: str
    lease_id: str
    generation: int
    segment_id: str
    size_bytes: int
    image: SegmentImage | None
    content: str
    expected: dict[str, bytes] = field(repr=False)

    def check(self) -> None:
        if self.image is not None:
            found = {name: bytes(self.image.tensor(name)) for name in self.image.specs}
            assert found == self.expected, f"other bytes than leased: {self}"

    def scribble(self) -> None:
        """Write into the own mapping, as a worker that scales weights in place does."""
        assert self.image is not None
        name = next(name for name, data in self.expected.items() if data)
        self.image.tensor(name)[:4] = b"mine"
        self.expected = {**self.expected, name: b"mine" + self.expected[name][4:]}


def map_content(arena: str, segment_id: str, size_bytes: int) -> tuple[SegmentImage, Content]:
    """Map a segment; say whose bytes they are, all of them, with their dtypes and shapes."""
    image = map_segment(arena, segment_id, size_bytes)
    found = {name: bytes(image.tensor(name)) for name in image.specs}
    content = next((c for c in CONTENTS.values() if c.bytes_by_name == found), None)
    assert content is not None, f"segment {segment_id} has bytes that were never written as a whole"
    specs = {spec.name: (spec.dtype, spec.shape) for spec in image.layout.tensors}
    assert specs == {name: tensor[:2] for name, tensor in content.tensors.items()}
    return image, content


class Truth:
    """A core, what the model holds possible, and what must agree with it."""

    core: Core
    seen: Snapshot

    def __init__(self, places: Places, files: SourceFiles) -> None:
        self.places = places
        self.files = files
        self.states: dict[str, frozenset[Maybe]] = {}
        self.ahead: dict[str, frozenset[Maybe]] = {}  # what the registry may hold instead
        self.held: list[Held] = []
        self.sizes: dict[str, int] = {}  # of segments, by content; learned
        self.named: set[str] = set()  # segments that had a name in the arena since the core was started
        self.in_arena: dict[str, int] = {}  # segments and what they took when we looked the last time
        self.pictures: dict[str, Picture] = {}  # of watchers that are away or died with a core
        self.last: Sequence[tuple[Call, Told]] = ()  # for messages
        self.sound = True  # nothing wrong has been found
        self.tight = False  # the budget was made smaller than what was mapped

    # --- looking ----------------------------------------------------------------

    def look(
        self,
        calls: Sequence[tuple[Call, Told]] = (),
        worlds: Sequence[World] = (),
        *,
        alone: bool = True,
        drained: bool = False,
        died: bool = False,
    ) -> None:
        """Wait until nothing is under way, narrow down what the model holds possible, and check everything."""
        self.sound, self.last = False, calls or self.last
        self.held = [held for held in self.held if held.lease_id or held.image is not None]
        before, self.seen = self.seen, self.core.call("snapshot")
        assert self.seen.faults == [], "\n".join(self.seen.faults)
        worlds = worlds or [self.world()]
        evicted = set() if died else self._evicted(before, calls)
        for artifact_id in {*self.states, *self.seen.artifacts}:
            own = [pair for pair in calls if pair[0].artifact_id == artifact_id]
            may_drift = not alone or artifact_id in evicted or drained
            start = self.states.get(artifact_id, frozenset([None]))
            self._look_ahead(artifact_id, start, own, worlds)
            self._narrow(artifact_id, start, ends(start, own, worlds, alone=not may_drift), own)
        self._check_evicted(before, evicted)
        if alone and calls:
            self._check_in_vain(before, evicted, *calls[0])
        self._check_arena()
        self._check_tables()
        for held in self.held:
            held.check()
        self.sound = True

    def _look_ahead(
        self, artifact_id: str, start: frozenset[Maybe], calls: Sequence[tuple[Call, Told]], worlds: Sequence[World]
    ) -> None:
        failed = [call for call, told in calls if told.reason]
        may_be = {one for known in start for call in failed for world in worlds for one in ahead(known, call, world)}
        self.ahead[artifact_id] = self.ahead.get(artifact_id, frozenset()) | may_be

    def _narrow(
        self, artifact_id: str, start: frozenset[Maybe], after: frozenset[Maybe], calls: Sequence[tuple[Call, Told]]
    ) -> None:
        artifact = self.seen.artifacts.get(artifact_id)
        self.states[artifact_id] = frozenset(known for known in after if fits(known, artifact))
        assert self.states[artifact_id], (
            f"no order of the calls explains {artifact_id}:\nwas {set(start)}\ncalls {calls}\n"
            f"could be {set(after)}\nis {artifact}\nlast {self.last}"
        )
        if artifact_id in self.seen.segments:
            self.ahead.pop(artifact_id, None)

    # --- eviction ---------------------------------------------------------------

    def _evicted(self, before: Snapshot, calls: Sequence[tuple[Call, Told]]) -> set[str]:
        """Return what lost its bytes though no call was about it, in a step in which something may have been loaded."""
        if not any(isinstance(call, (model.Acquire, model.Load)) for call, _ in calls):
            return set()
        named = {call.artifact_id for call, _ in calls}
        left = {artifact_id for artifact_id in before.segments if artifact_id not in self.seen.segments}
        states = {artifact_id: artifact.state.value for artifact_id, artifact in self.seen.artifacts.items()}
        return {artifact_id for artifact_id in left - named if states.get(artifact_id) == "registered"}

    def _check_evicted(self, before: Snapshot, evicted: Iterable[str]) -> None:
        held = self._held_segments()
        for artifact_id in evicted:
            assert before.segments[artifact_id] not in held, f"{artifact_id} was evicted though leased or mapped"
            assert not before.artifacts[artifact_id].keep_resident, f"{artifact_id} was evicted though kept"

    def _check_in_vain(self, before: Snapshot, evicted: Iterable[str], call: Call, told: Told) -> None:
        """Nobody leaves for a load that finds no room, and nobody who need not."""
        gone = {before.segments[artifact_id] for artifact_id in evicted}
        sizes = [size for name, size in self.in_arena.items() if name in gone]
        if told.reason in model.FULL:
            assert not evicted, f"{evicted} left in vain for {call}"
        elif sizes and call.artifact_id in self.seen.segments.keys() - before.segments.keys():
            needed = self._files()[self.seen.segments[call.artifact_id]]
            free = before.capacity.free_bytes + sum(sizes) - min(sizes)
            assert free < needed, f"one of {sorted(gone)} need not have left: {sizes}, {before.capacity}, {needed}"

    # --- the arena --------------------------------------------------------------

    def _files(self) -> dict[str, int]:
        """Return what each file in the arena takes, as the kernel counts it."""
        with os.scandir(self.places.arena) as entries:
            return {e.name: e.stat().st_blocks * 512 for e in entries if e.name != "arena.lock"}

    def _held_segments(self) -> set[str]:
        return {held.segment_id for held in self.held if held.lease_id or held.image is not None}

    def unnamed(self) -> dict[str, int]:
        """Return the segments that lost their name while this core ran and that somebody still maps."""
        files = self._files()
        mapped = {held.segment_id: held.size_bytes for held in self.held if held.image is not None}
        return {name: size for name, size in mapped.items() if name in self.named and name not in files}

    def _check_arena(self) -> None:
        files, capacity = self._files(), self.seen.capacity
        self.in_arena = files
        self.named |= files.keys()
        leased = {held.segment_id for held in self.held if held.lease_id}
        assert files.keys() == {*self.seen.segments.values(), *leased}, "files in the arena"
        assert all(_SEGMENT.fullmatch(name) for name in files), files
        unnamed = sum(self.unnamed().values())
        books = (capacity.resident_bytes, capacity.unnamed_bytes, capacity.reserved_bytes)
        assert books == (sum(files.values()), unnamed, 0), f"books {books}, files {files}, unnamed {unnamed}"
        left = self.places.budget_bytes - sum(books)
        assert left >= 0 or self.tight, f"{books} of {self.places.budget_bytes}"
        assert capacity.free_bytes == max(left, 0), capacity
        for artifact_id, segment_id in self.seen.segments.items():
            self._check_resident(self.seen.artifacts[artifact_id], files[segment_id])

    def _check_resident(self, artifact: Artifact, size_bytes: int) -> None:
        assert artifact.size_bytes == size_bytes, artifact
        assert artifact.digest, f"resident, and its digest is not known: {artifact}"
        content = next(c.name for c in CONTENTS.values() if c.digest == artifact.digest)
        assert self.sizes.setdefault(content, size_bytes) == size_bytes

    # --- tables -----------------------------------------------------------------

    def _check_tables(self) -> None:
        live = Counter((held.artifact_id, held.generation) for held in self.held if held.lease_id)
        assert Counter(self.seen.leases) == live, (self.seen.leases, live)
        for artifact_id, states in self.states.items():
            if None in states:
                assert self.core.ask("get", artifact_id).reason == "ARTIFACT_NOT_FOUND"
        listed = _without_use(self.seen.artifacts)
        for name, picture in self.seen.pictures.items():
            assert _without_use(picture.artifacts) == listed, f"what watcher {name} knows"

    # --- what the model needs to know -------------------------------------------

    def world(self, calls: Sequence[Call] = (), *, alone: bool = True, changing: str = "") -> World:
        """Return what calls depend on now."""
        current = [held for held in self.held if self.seen.segments.get(held.artifact_id) == held.segment_id]
        leased = frozenset(held.artifact_id for held in current if held.lease_id)
        room: dict[str, Room] = {call.artifact_id: self.room(call) for call in calls} if alone else {}
        return World(dict(self.files.now), self.places.budget_bytes, room, leased if alone else None, changing)

    def room(self, call: Call) -> Room:
        """Say whether a load finds room once all that may be evicted has been."""
        known = next(iter(self.states.get(call.artifact_id, [None])), None)
        content = self.files.look(known.file).content if known else None
        if known is None or content is None:
            return "may"
        least, most = (CONTENTS[content].size_bytes + extra for extra in model.OVERHEAD_BYTES)
        least, most = self.sizes.get(content, least), self.sizes.get(content, most)
        taken = self.places.budget_bytes - sum(self.unnamed().values())
        free, spare = taken - self._stuck_bytes(call.artifact_id), 0
        if not CONTENTS[content].is_adapter:  # adapters have a floor that bases cannot take
            spare = self._adapter_bytes(call.artifact_id)
        if free - spare >= most:
            return "must"
        twins = [self.seen.artifacts[i] for i in self.seen.segments if i != call.artifact_id]
        is_shared = any(twin.digest == CONTENTS[content].digest for twin in twins)
        return "may" if is_shared or free >= least else "cannot"

    def _stuck(self, loading_id: str) -> set[str]:
        """Return the segments that cannot be evicted for a load."""
        kept = {s for i, s in self.seen.segments.items() if self.seen.artifacts[i].keep_resident and i != loading_id}
        return self._held_segments() | kept

    def _stuck_bytes(self, loading_id: str) -> int:
        stuck = self._stuck(loading_id)
        return sum(size for name, size in self._files().items() if name in stuck)

    def _adapter_bytes(self, loading_id: str) -> int:
        """Return what adapters take that could leave."""
        artifacts = self.seen.artifacts
        adapters = {s for i, s in self.seen.segments.items() if artifacts[i].kind is ArtifactKind.ADAPTER}
        return sum(size for name, size in self._files().items() if name in adapters - self._stuck(loading_id))


def _without_use(artifacts: dict[str, Artifact]) -> dict[str, Artifact]:
    """When an artifact was used last is no change that watchers are told of."""
    return {artifact_id: replace(artifact, last_use_time=None) for artifact_id, artifact in artifacts.items()}
