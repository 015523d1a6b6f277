"""One core under test, what its callers hold of it, and everything that must be true whenever nothing is under way.

Judges by what the kernel shows of the arena and by ``kit.shelf_model``. Acting as
every worker at once, this process maps segments itself: for the core it is another one.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kit import shelf_model as model
from kit.core_process import Granted, Picture, Places, Snapshot
from kit.cores import Answer, Core, Cores
from kit.shelf_model import Call, Maybe, Room, Told, World
from kit.source_files import CONTENTS, SourceFiles
from warmshelf.image import SegmentImage
from warmshelf.mapping import map_segment
from warmshelf.types import Artifact, ArtifactSpec, Source
from warmshelfd.leasing import AcquireOptions
from warmshelfd.shelf import RegisterOptions

BUDGET_BYTES = 256 << 10
_OVERHEAD_BYTES = (4 << 10, 20 << 10)
"""What a segment takes beside its tensors, at least and at most: header, layout, CRCs, manifest, rounding."""

_PATIENT_SECONDS, _HASTY_SECONDS = 20.0, 0.1
_SEGMENT = re.compile(r"[0-9a-f]{32}")
_NOTHING = Picture(0, {})
OPEN = frozenset({"CANCELLED", "DIED", "INTERNAL"})
"""Answers that do not say whether the call took effect; the last one is allowed where a failpoint raises it."""


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
            found = {name: bytes(self.image.tensor(name)) for name in self.image.names}
            assert found == self.expected, f"other bytes than leased: {self}"

    def scribble(self) -> None:
        """Write into the own mapping, as a worker that scales weights in place does."""
        assert self.image is not None
        self.image.tensor("first")[:4] = b"mine"
        self.expected = {**self.expected, "first": b"mine" + self.expected["first"][4:]}


class Bench:
    """A core, its files and its callers."""

    def __init__(self, cores: Cores) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="warmshelf-test-", dir="/dev/shm"))
        (self.root / "sources").mkdir()
        self.files = SourceFiles(self.root / "sources")
        self.places = Places(
            str(self.root / "arena"), str(self.root / "registry.sqlite"), str(self.files.directory), BUDGET_BYTES
        )
        self.states: dict[str, frozenset[Maybe]] = {}
        self.ahead: dict[str, frozenset[Maybe]] = {}  # what the registry may hold instead
        self.held: list[Held] = []
        self.sessions: list[str] = []
        self.sizes: dict[str, int] = {}  # of segments, by content; learned
        self.named: set[str] = set()  # segments that had a name in the arena since the core was started
        self.pictures: dict[str, Picture] = {"steady": _NOTHING}  # of watchers that are away or died with a core
        self.last: list[tuple[Call, Told]] = []  # for messages
        self.sound = True  # nothing wrong has been found
        self._cores = cores
        self.core = self._start()
        self.seen: Snapshot = self.core.call("snapshot")

    def close(self) -> None:
        """At the end everything can be given back."""
        for held in self.held:
            held.image = None
        for session_id in self.sessions:
            self.core.call("close_session", session_id)
        self.held.clear()
        self.look([], drained=True)
        for artifact_id in [*self.seen.artifacts]:
            self.run([model.Remove(artifact_id)])
        assert self.seen.capacity.free_bytes == BUDGET_BYTES
        self.core.stop()

    def discard(self) -> None:
        """End the core and remove its files."""
        if self.core.is_alive:
            self.core.kill()
        shutil.rmtree(self.root)

    # --- calls ----------------------------------------------------------------

    def run(
        self,
        calls: Sequence[Call],
        delays: Iterable[float] = (),
        *,
        kill_after: float | None = None,
        faulty: bool = False,
    ) -> list[Told]:
        """Make calls, all at once or each after its delay; explain the answers and look at everything."""
        delays = [*delays, *[0.0] * len(calls)]
        alone = len(calls) == 1 and kill_after is None and not faulty
        numbers = [self.begin(call, delay, alone=alone) for call, delay in zip(calls, delays, strict=False)]
        return self.finish(calls, numbers, kill_after=kill_after, alone=alone, faulty=faulty)

    def finish(
        self,
        calls: Sequence[Call],
        numbers: Sequence[int],
        *,
        kill_after: float | None = None,
        alone: bool = False,
        faulty: bool = False,
    ) -> list[Told]:
        """Wait for calls under way, as ``run`` does."""
        if kill_after is not None:
            time.sleep(kill_after)
            self.core.kill()
        world = self._world(calls, alone=alone)
        answers = [self.core.end(number) for number in numbers]
        told = [self._told(call, answer, faulty=faulty) for call, answer in zip(calls, answers, strict=True)]
        self.last = list(zip(calls, told, strict=True))
        died = any(answer.reason == "DIED" for answer in answers) or kill_after is not None
        if died:
            self.restart(busy=True, calls=list(zip(calls, told, strict=True)), world=world)
        else:
            self.look(list(zip(calls, told, strict=True)), alone=alone, world=world)
        return told

    def begin(self, call: Call, delay: float = 0.0, *, alone: bool = False) -> int:
        """Begin a call."""
        name, *arguments = self._arguments(call, self._patience(call, alone=alone))
        return self.core.begin(name, *arguments, delay_seconds=delay)

    def _arguments(self, call: Call, timeout: float) -> tuple[object, ...]:
        match call:
            case model.Register(artifact_id, file, expected, replace_, keep, follow, defer):
                spec = ArtifactSpec(Source(f"file://{self.files.path(file)}", "", expected))
                return "register", artifact_id, spec, RegisterOptions(replace_, defer, keep, follow)
            case model.Acquire(artifact_id, resident_only, expected):
                options = AcquireOptions(resident_only, expected)
                return "acquire", self.session(), artifact_id, options, timeout
            case model.Load(artifact_id):
                return "load", artifact_id, timeout
            case model.Evict(artifact_id, drain):
                return "evict", artifact_id, drain
        return type(call).__name__.lower(), call.artifact_id

    def _patience(self, call: Call, *, alone: bool) -> float:
        """Wait long for what must come, and not for what cannot."""
        if not alone:
            return 1.0
        state = self.seen.artifacts.get(call.artifact_id)
        waits = state is not None and state.state.value == "evicting"
        return _HASTY_SECONDS if waits or self._room(call) == "cannot" else _PATIENT_SECONDS

    def _told(self, call: Call, answer: Answer, *, faulty: bool) -> Told:
        if answer.reason in OPEN - (set() if faulty else {"INTERNAL"}):
            return Told(answer.reason, is_open=True)
        if answer.reason or not isinstance(call, model.Acquire):
            return Told(answer.reason)
        held = self._hold(call, answer.value)
        return Told("", held.generation, held.content)

    def _hold(self, call: model.Acquire, granted: Granted) -> Held:
        image = map_segment(self.places.arena, granted.segment_id, granted.size_bytes)
        bytes_by_name = {name: bytes(image.tensor(name)) for name in image.names}
        content = next((c for c in CONTENTS.values() if c.bytes_by_name == bytes_by_name), None)
        assert content is not None, f"{call} got bytes that were never written as a whole"
        found = {spec.name: (spec.dtype, spec.shape) for spec in image.layout.tensors}
        assert found == {name: tensor[:2] for name, tensor in content.tensors.items()}
        held = Held(
            call.artifact_id,
            self.session(),
            granted.lease_id,
            granted.generation,
            granted.segment_id,
            granted.size_bytes,
            image,
            content.name,
            content.bytes_by_name,
        )
        self.held.append(held)
        self.named.add(granted.segment_id)
        return held

    # --- workers --------------------------------------------------------------

    def session(self) -> str:
        """Return the newest session, which takes new leases."""
        if not self.sessions:
            self.open_session()
        return self.sessions[-1]

    def open_session(self) -> None:
        self.sessions.append(self.core.call("open_session"))

    def release(self, held: Held) -> None:
        self.core.call("release", held.session_id, held.lease_id)
        self._ended([held])

    def unmap(self, held: Held) -> None:
        held.image = None
        self.look([])

    def close_session(self, session_id: str) -> None:
        self.core.call("close_session", session_id)
        self.sessions.remove(session_id)
        self._ended([held for held in self.held if held.session_id == session_id])

    def _ended(self, ended: Iterable[Held]) -> None:
        for held in ended:
            held.lease_id = held.session_id = ""
        self.look([], drained=True)

    # --- death ----------------------------------------------------------------

    def restart(
        self,
        *,
        busy: bool = False,
        calls: Sequence[tuple[Call, Told]] = (),
        world: World | None = None,
        orderly: bool = False,
    ) -> None:
        """End the core, if it has not died, and start another one on what it left."""
        if orderly:
            self.core.stop()
        elif not busy:
            self.core.kill()
        for held in self.held:
            held.lease_id = held.session_id = ""
        self.sessions.clear()
        for artifact_id in {*self.states, *(call.artifact_id for call, _ in calls)}:
            states = self.states.get(artifact_id, frozenset([None]))
            own = [pair for pair in calls if pair[0].artifact_id == artifact_id]
            after = model.ends(states, own, world or self._world([], alone=True), alone=not busy)
            after |= self.ahead.get(artifact_id, frozenset())
            self.states[artifact_id] = frozenset().union(*(model.after_death(one, was_busy=busy) for one in after))
        self.pictures |= self.seen.pictures
        self.named = set(self._files())
        self.ahead.clear()
        before = {*self.seen.segments.values()}
        self.core = self._start()
        self.look([], died=True)
        assert busy or {*self.seen.segments.values()} <= before, "bytes came back that nobody had"

    def _start(self) -> Core:
        core = self._cores.start(self.places)
        core.call("watch", "steady", self.pictures.pop("steady"))
        return core

    # --- what must be true ----------------------------------------------------

    def look(
        self,
        calls: Sequence[tuple[Call, Told]],
        *,
        alone: bool = True,
        drained: bool = False,
        died: bool = False,
        world: World | None = None,
    ) -> None:
        """Wait until nothing is under way, narrow down what the model holds possible, and check everything."""
        self.sound = False
        self.held = [held for held in self.held if held.lease_id or held.image is not None]
        before, self.seen = self.seen, self.core.call("snapshot")
        assert self.seen.faults == [], "\n".join(self.seen.faults)
        world = world or self._world([], alone=True)
        evicted = set() if died else self._evicted(before, calls)
        for artifact_id in {*self.states, *self.seen.artifacts}:
            own = [pair for pair in calls if pair[0].artifact_id == artifact_id]
            may_drift = not alone or artifact_id in evicted or drained
            start = self.states.get(artifact_id, frozenset([None]))
            self._look_ahead(artifact_id, start, own, world)
            self._narrow(artifact_id, start, model.ends(start, own, world, alone=not may_drift), own)
        self._check_evicted(before, evicted)
        self._check_arena()
        self._check_tables()
        for held in self.held:
            held.check()
        self.sound = True

    def _look_ahead(
        self, artifact_id: str, start: frozenset[Maybe], calls: Sequence[tuple[Call, Told]], world: World
    ) -> None:
        failed = [call for call, told in calls if told.reason]
        may_be = {one for known in start for call in failed for one in model.ahead(known, call, world)}
        self.ahead[artifact_id] = self.ahead.get(artifact_id, frozenset()) | may_be

    def _narrow(
        self, artifact_id: str, start: frozenset[Maybe], after: frozenset[Maybe], calls: Sequence[tuple[Call, Told]]
    ) -> None:
        artifact = self.seen.artifacts.get(artifact_id)
        self.states[artifact_id] = frozenset(known for known in after if model.fits(known, artifact))
        assert self.states[artifact_id], (
            f"no order of the calls explains {artifact_id}:\nwas {set(start)}\ncalls {calls}\n"
            f"could be {set(after)}\nis {artifact}\nlast {self.last}"
        )
        if artifact_id in self.seen.segments:
            self.ahead.pop(artifact_id, None)

    def _evicted(self, before: Snapshot, calls: Sequence[tuple[Call, Told]]) -> set[str]:
        """Return what lost its bytes though no call was about it, in a step in which something may have been loaded."""
        if not any(isinstance(call, (model.Acquire, model.Load)) for call, _ in calls):
            return set()
        named = {call.artifact_id for call, _ in calls}
        return {
            i for i in before.segments if i not in named and i in self.seen.artifacts and i not in self.seen.segments
        }

    def _check_evicted(self, before: Snapshot, evicted: Iterable[str]) -> None:
        held = {held.segment_id for held in self.held if held.lease_id or held.image is not None}
        for artifact_id in evicted:
            assert before.segments[artifact_id] not in held, f"{artifact_id} was evicted though leased or mapped"
            assert not before.artifacts[artifact_id].keep_resident, f"{artifact_id} was evicted though kept"

    def _files(self) -> dict[str, int]:
        """Return what each sealed segment in the arena takes, as the kernel counts it."""
        with os.scandir(self.places.arena) as entries:
            return {e.name: e.stat().st_blocks * 512 for e in entries if e.name != "arena.lock"}

    def unnamed(self) -> dict[str, int]:
        """Return the segments that lost their name while this core ran and that somebody still maps."""
        files = self._files()
        mapped = {held.segment_id: held.size_bytes for held in self.held if held.image is not None}
        return {name: size for name, size in mapped.items() if name in self.named and name not in files}

    def _check_arena(self) -> None:
        files, capacity = self._files(), self.seen.capacity
        self.named |= files.keys()
        leased = {held.segment_id for held in self.held if held.lease_id}
        assert files.keys() == {*self.seen.segments.values(), *leased}, "files in the arena"
        assert all(_SEGMENT.fullmatch(name) for name in files), files
        unnamed = sum(self.unnamed().values())
        books = (capacity.resident_bytes, capacity.unnamed_bytes, capacity.reserved_bytes)
        assert books == (sum(files.values()), unnamed, 0), f"books {books}, files {files}, unnamed {unnamed}"
        assert capacity.free_bytes == BUDGET_BYTES - sum(books) >= 0, f"{books} of {BUDGET_BYTES}"
        for artifact_id, segment_id in self.seen.segments.items():
            artifact = self.seen.artifacts[artifact_id]
            assert artifact.size_bytes == files[segment_id], artifact_id
            assert artifact.digest, f"{artifact_id} is resident and its digest is not known"
            content = next(c.name for c in CONTENTS.values() if c.digest == artifact.digest)
            assert self.sizes.setdefault(content, files[segment_id]) == files[segment_id]

    def _check_tables(self) -> None:
        live = Counter((held.artifact_id, held.generation) for held in self.held if held.lease_id)
        assert Counter(self.seen.leases) == live, (self.seen.leases, live)
        for artifact_id, states in self.states.items():
            if None in states:
                assert self.core.ask("get", artifact_id).reason == "ARTIFACT_NOT_FOUND"
        listed = _without_use(self.seen.artifacts)
        for name, picture in self.seen.pictures.items():
            assert _without_use(picture.artifacts) == listed, f"what watcher {name} knows"

    # --- what the model needs to know -----------------------------------------

    def _world(self, calls: Sequence[Call], *, alone: bool) -> World:
        leases = {held.artifact_id for held in self.held if held.lease_id and self._is_current(held)}
        room: dict[str, Room] = {call.artifact_id: self._room(call) for call in calls} if alone else {}
        return World(dict(self.files.now), BUDGET_BYTES, room, frozenset(leases) if alone else None)

    def _is_current(self, held: Held) -> bool:
        return self.seen.segments.get(held.artifact_id) == held.segment_id

    def _room(self, call: Call) -> Room:
        """Say whether a load finds room once all that may be evicted has been."""
        known = next(iter(self.states.get(call.artifact_id, [None])), None)
        content = self.files.look(known.file).content if known else None
        if known is None or content is None:
            return "may"
        least, most = (CONTENTS[content].size_bytes + extra for extra in _OVERHEAD_BYTES)
        least, most = self.sizes.get(content, least), self.sizes.get(content, most)
        free = BUDGET_BYTES - sum(self.unnamed().values()) - sum(self._held_sizes(call.artifact_id).values())
        if free >= most:
            return "must"
        twins = [a for i, a in self.seen.artifacts.items() if i in self.seen.segments and i != call.artifact_id]
        shared = any(a.digest == CONTENTS[content].digest for a in twins)
        return "may" if shared or free >= least else "cannot"

    def _held_sizes(self, loading_id: str) -> dict[str, int]:
        """Return the segments that cannot be evicted for a load, with their sizes."""
        files = self._files()
        held = {held.segment_id for held in self.held if held.lease_id or held.image is not None}
        kept = {s for i, s in self.seen.segments.items() if self.seen.artifacts[i].keep_resident and i != loading_id}
        return {name: size for name, size in files.items() if name in held | kept}


def _without_use(artifacts: dict[str, Artifact]) -> dict[str, Artifact]:
    """When an artifact was used last is no change that watchers are told of."""
    return {artifact_id: replace(artifact, last_use_time=None) for artifact_id, artifact in artifacts.items()}
