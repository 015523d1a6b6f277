"""One core under test, its source files and its callers, who do everything that callers do.

Each method ends with a look at everything that must be true then.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from kit import shelf_model as model
from kit.core_process import Granted, Picture, Places
from kit.cores import Answer, Core, Cores
from kit.shelf_model import Call, Maybe, World
from kit.shelf_order import Told, after_death, ends
from kit.shelf_truth import Held, Truth, map_content
from kit.source_files import SourceFiles
from warmshelf.types import ArtifactSpec, Source
from warmshelfd.leasing import AcquireOptions
from warmshelfd.registering import RegisterOptions

BUDGET_BYTES = 192 << 10
SESSIONS_MAX = 4

_PATIENT_SECONDS, _BUSY_SECONDS, _HASTY_SECONDS = 20.0, 0.5, 0.1
_OPEN = frozenset({"CANCELLED", "DIED"})
"""Answers that do not say whether the call took effect."""

_SPOILED_AT = 8192
"""A byte in the middle of the smallest content."""


class Bench(Truth):
    """A core, its files and its callers."""

    def __init__(self, cores: Cores) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="warmshelf-test-", dir="/dev/shm"))
        sources = self.root / "sources"
        sources.mkdir()
        places = Places(f"{self.root}/arena", f"{self.root}/registry.sqlite", str(sources), BUDGET_BYTES)
        super().__init__(places, SourceFiles(sources))
        self.sessions: list[str] = []
        self._cores = cores
        self.core = self._start()
        self.seen = self.core.call("snapshot")

    def close(self) -> None:
        """Give everything back: then nothing is left."""
        for held in self.held:
            held.image = None
        for session_id in self.sessions[:]:
            self.close_session(session_id)
        self.look()
        for artifact_id in [*self.seen.artifacts]:
            self.run([model.Remove(artifact_id)])
        assert self.seen.capacity.free_bytes == self.places.budget_bytes
        self.core.stop()

    def discard(self) -> None:
        """End the core and remove its files."""
        if self.core.is_alive:
            self.core.kill()
        shutil.rmtree(self.root)

    # --- calls ------------------------------------------------------------------

    def run(
        self, calls: Sequence[Call], delays: Iterable[float] = (), *, kill_after: float = -1, faulty: bool = False
    ) -> list[Told]:
        """Make calls, all at once or each after its delay; explain the answers and look at everything."""
        alone = len(calls) == 1 and kill_after < 0 and not faulty
        delays = [*delays, *[0.0] * len(calls)]
        worlds = [self.world(calls, alone=alone)]
        numbers = [self.begin(call, delay, alone=alone) for call, delay in zip(calls, delays, strict=False)]
        if kill_after >= 0:
            time.sleep(kill_after)
            self.core.kill()
        return self.finish(calls, numbers, worlds, alone=alone, faulty=faulty)

    def finish(
        self,
        calls: Sequence[Call],
        numbers: Sequence[int],
        worlds: Sequence[World] = (),
        *,
        alone: bool = False,
        faulty: bool = False,
    ) -> list[Told]:
        """Wait for calls under way, as ``run`` does. ``faulty``: a failpoint may fail them."""
        worlds = worlds or [self.world(alone=False)]
        answers = [self.core.end(number) for number in numbers]
        told = [self._told(c, a, alone=alone, faulty=faulty) for c, a in zip(calls, answers, strict=True)]
        pairs = list(zip(calls, told, strict=True))
        if faulty:
            answers.append(self.core.ask("snapshot"))  # it may die of what goes on behind the answer
        if any(answer.reason == "DIED" for answer in answers) or not self.core.is_alive:
            self._bury(pairs, worlds, was_busy=True)
            self._wake()
        else:
            self.look(pairs, worlds, alone=alone)
        return told

    def cancel(self, calls: Sequence[Call], after: float) -> None:
        """Begin calls and give the first one up after a while."""
        numbers = [self.begin(call) for call in calls]
        time.sleep(after)
        self.core.cancel(numbers[0])
        self.finish(calls, numbers)

    def change_during(self, call: Call, step: str, file: str, content: str) -> None:
        """Write a source while the whole core stands still at a step of a load, if it comes to that."""
        before = self.world(alone=False)
        self.core.call("arm", f"{step}=stop")
        number = self.begin(call)
        if self.core.wait_stopped(number):
            self.files.write(file, content, rename=False)
            self.core.go_on()
        after = self.world(alone=False, changing=file)
        self.finish([call], [number], [before, replace(after, looks=before.looks), after])
        self.core.call("arm", "")

    def begin(self, call: Call, delay: float = 0.0, *, alone: bool = False) -> int:
        """Begin a call."""
        name, *arguments = self._arguments(call, self._patience(call, alone=alone))
        return self.core.begin(name, *arguments, delay_seconds=delay)

    def _arguments(self, call: Call, timeout: float) -> tuple[object, ...]:
        match call:
            case model.Register(artifact_id, file, expected, replacing, keep, follow, defer):
                spec = ArtifactSpec(Source(f"file://{self.files.path(file)}", "", expected))
                return "register", artifact_id, spec, RegisterOptions(replacing, defer, keep, follow)
            case model.Acquire(artifact_id, resident_only, expected):
                return "acquire", self._session(), artifact_id, AcquireOptions(resident_only, expected), timeout
            case model.Load(artifact_id, detach):
                return "load", artifact_id, min(timeout, _BUSY_SECONDS) if detach else timeout, detach
            case model.Evict(artifact_id, drain):
                return "evict", artifact_id, drain
        return type(call).__name__.lower(), call.artifact_id

    def _patience(self, call: Call, *, alone: bool) -> float:
        """Wait long for what must come, and not for what cannot."""
        artifact = self.seen.artifacts.get(call.artifact_id)
        if alone and artifact is not None and artifact.state.value == "evicting":
            return _HASTY_SECONDS
        return {"must": _PATIENT_SECONDS, "may": _BUSY_SECONDS, "cannot": _HASTY_SECONDS}[
            self.room(call) if alone else "may"
        ]

    def _told(self, call: Call, answer: Answer, *, alone: bool, faulty: bool) -> Told:
        if answer.reason in _OPEN or (faulty and answer.reason == "INTERNAL"):
            return Told(answer.reason, is_open=True)
        if isinstance(call, model.Load) and call.detach and not answer.reason and not alone:
            return Told("INTERNAL" if faulty else "", is_open=True)  # who knows how it goes on
        if answer.reason or not isinstance(call, model.Acquire):
            return Told(answer.reason)
        held = self._hold(call, answer.value)
        return Told("", held.generation, held.content)

    def _hold(self, call: model.Acquire, granted: Granted) -> Held:
        image, content = map_content(self.places.arena, granted.segment_id, granted.size_bytes)
        self.named.add(granted.segment_id)
        self.held.append(
            Held(
                call.artifact_id,
                self._session(),
                granted.lease_id,
                granted.generation,
                granted.segment_id,
                granted.size_bytes,
                image,
                content.name,
                content.bytes_by_name,
            )
        )
        return self.held[-1]

    def file_of(self, artifact_id: str) -> str:
        """Return the source of an artifact; if it is unknown, any."""
        return next((known.file for known in self.states.get(artifact_id, ()) if known), "p")

    # --- workers ----------------------------------------------------------------

    def _session(self) -> str:
        """Return the newest session, which takes new leases."""
        if not self.sessions:
            self.open_session()
        return self.sessions[-1]

    def open_session(self) -> None:
        if len(self.sessions) < SESSIONS_MAX:
            self.sessions.append(self.core.call("open_session"))

    def release(self, held: Held) -> None:
        self.core.call("release", held.session_id, held.lease_id)
        self._ended([held])

    def unmap(self, held: Held) -> None:
        held.image = None
        self.look()

    def keep_only(self, artifact_id: str, what: str) -> None:
        """Keep only leases, only mappings, both or nothing of what workers have of an artifact."""
        for held in [held for held in self.held if held.artifact_id == artifact_id]:
            if held.lease_id and what not in ("lease", "both"):
                self.release(held)
            if held.image is not None and what not in ("mapping", "both"):
                self.unmap(held)

    def close_session(self, session_id: str) -> None:
        self.core.call("close_session", session_id)
        self.sessions.remove(session_id)
        self._ended([held for held in self.held if held.session_id == session_id])

    def _ended(self, ended: Iterable[Held]) -> None:
        for held in ended:
            held.lease_id = held.session_id = ""
        self.look(drained=True)

    # --- watchers ---------------------------------------------------------------

    def watch(self) -> None:
        """Let the second watcher come back and go on where it was."""
        if "restless" not in self.seen.pictures:
            self.core.call("watch", "restless", self.pictures.get("restless", Picture(0, {})))
            self.look()

    def stop_watching(self) -> None:
        if "restless" in self.seen.pictures:
            self.pictures["restless"] = self.core.call("unwatch", "restless")
            self.look()

    # --- death ------------------------------------------------------------------

    def restart(self, calls: Sequence[Call] = (), *, orderly: bool = False, budget_bytes: int = BUDGET_BYTES) -> None:
        """End the core and start another on what it left; its first callers do not wait until it has settled."""
        if orderly:
            self.core.stop()
        else:
            self.core.kill()
        may_lose = budget_bytes < sum(self.in_arena.values()) + sum(self.unnamed().values())
        self._bury([], [self.world()], was_busy=False, may_lose=may_lose)
        self.tight = may_lose
        self.places = replace(self.places, budget_bytes=budget_bytes)
        self._wake(calls)

    def _bury(
        self,
        calls: Sequence[tuple[Call, Told]],
        worlds: Sequence[World],
        *,
        was_busy: bool,
        may_lose: bool = False,
    ) -> None:
        """The core has ended: think of everything that the next one may find."""
        for held in self.held:
            held.lease_id = held.session_id = ""
        self.sessions.clear()
        for artifact_id in {*self.states, *(call.artifact_id for call, _ in calls)}:
            states = self.states.get(artifact_id, frozenset([None]))
            own = [pair for pair in calls if pair[0].artifact_id == artifact_id]
            after = ends(states, own, worlds, alone=not was_busy) | self.ahead.get(artifact_id, frozenset())
            if any(told.is_open and isinstance(call, (model.Register, model.Remove)) for call, told in own):
                after |= states  # others may have seen it already, but the registry had not written it
            nothing: frozenset[Maybe] = frozenset()
            lives = (after_death(one, is_sure=not (was_busy or may_lose)) for one in after)
            self.states[artifact_id] = nothing.union(*lives)
        self.pictures |= self.seen.pictures
        self.ahead.clear()

    def _wake(self, calls: Sequence[Call] = ()) -> None:
        self.named = set(self._files())
        self.core = self._start()
        if calls:
            worlds = [self.world(calls, alone=False)]
            self.finish(calls, [self.begin(call) for call in calls], worlds)
        else:
            is_spoiled = any(known and known.spoiled for states in self.states.values() for known in states)
            self.look(died=True, alone=not is_spoiled)

    def _start(self) -> Core:
        core = self._cores.start(self.places)
        core.call("watch", "steady", self.pictures.pop("steady", Picture(0, {})))
        return core

    # --- spoiled bytes ----------------------------------------------------------

    def spoil_and_verify(self, artifact_id: str) -> None:
        """Let a bit in the arena flip: who verifies one ID finds it, and no other ID gives these bytes out either."""
        segment_id = self.seen.segments.get(artifact_id, "")
        if segment_id in {"", *self._held_segments()}:
            return
        self._spoil({segment_id})
        self.finish([model.Verify(artifact_id)], [self.begin(model.Verify(artifact_id))])

    def spoil_and_restart(self, calls: Sequence[Call]) -> None:
        """Let a bit of whatever nobody holds flip while no core runs: the next one gives none of it out."""
        self.core.kill()
        self._bury([], [self.world()], was_busy=False)
        self._spoil({*self.seen.segments.values()} - self._held_segments())
        self._wake(calls)

    def _spoil(self, segment_ids: Collection[str]) -> None:
        for segment_id in segment_ids:
            _flip_a_bit(f"{self.places.arena}/{segment_id}")
        for artifact_id, states in self.states.items():
            spoiled = frozenset(replace(one, spoiled=True) for one in states if one and one.state == "ready")
            if self.seen.segments.get(artifact_id) in segment_ids:
                self.states[artifact_id] = spoiled | {one for one in states if not one or one.state != "ready"}
            elif artifact_id not in self.seen.segments:  # it may share them still
                self.states[artifact_id] = states | spoiled


def _flip_a_bit(path: str) -> None:
    mode = os.stat(path).st_mode
    os.chmod(path, 0o600)
    with open(path, "r+b") as file:
        file.seek(_SPOILED_AT)
        value = file.read(1)[0]
        file.seek(_SPOILED_AT)
        file.write(bytes([value ^ 1]))
    os.chmod(path, mode)
