"""Sequences of calls and SIGKILLs against a real daemon through the client, mapped and streamed.

Few and short: ``test_shelf_machine`` makes many, without the wire. ``WARMSHELF_TEST_DEPTH=N``
makes N times as many here too.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import warmshelf
from kit import shelf_model as model
from kit.processes import Daemon, eventually, read_all
from kit.shelf_model import Call, Maybe, World
from kit.shelf_order import Told, after_death, ends, fits
from kit.source_files import CONTENTS, SourceFiles
from warmshelf.errors import WarmshelfError
from warmshelf.types import Artifact, ArtifactState, ChangeKind

DEPTH = int(os.environ.get("WARMSHELF_TEST_DEPTH", "0"))
BUDGET_BYTES = 1 << 20  # of this, everything fits
CALL_SECONDS = 20.0

NAMES = {"a": "p", "b/b": "q"}
IDS, FILES = st.sampled_from([*NAMES]), st.sampled_from([*NAMES.values()])
CONTENT = st.sampled_from(["small-1", "small-2", "adapter-1"])
SELDOM = st.sampled_from([False, False, False, True])
REGISTER = st.builds(model.Register, IDS, FILES, replace=st.booleans(), keep=SELDOM, follow=SELDOM)
CALLS: st.SearchStrategy[Call] = st.one_of(
    REGISTER,
    st.builds(model.Load, IDS),
    st.builds(model.Evict, IDS, drain=SELDOM),
    st.builds(model.Remove, IDS),
    st.builds(model.Verify, IDS),
)


class Watcher:
    """A program that follows the changes over every restart."""

    def __init__(self, shelf: warmshelf.Shelf) -> None:
        self.artifacts: dict[str, Artifact] = {}
        self._watch = shelf.watch()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for change in self._watch:
            if change.kind is ChangeKind.STARTED_OVER:
                self.artifacts = {}
            elif change.artifact is not None:
                self.artifacts = {**self.artifacts, change.artifact_id: replace(change.artifact, last_use_time=None)}
            elif change.kind is ChangeKind.REMOVED:
                self.artifacts = {i: artifact for i, artifact in self.artifacts.items() if i != change.artifact_id}

    def close(self) -> None:
        self._watch.close()
        self._thread.join()


class DaemonMachine(RuleBasedStateMachine):
    """A daemon, a worker that maps, one that streams, and a watcher."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="warmshelf-test-", dir="/dev/shm"))
        (self.root / "sources").mkdir()
        self.files = SourceFiles(self.root / "sources")
        self.daemon = Daemon(self.root, self.root / "arena", self.files.directory)
        self.start()
        self.workers = [self.daemon.connect(), warmshelf.connect(self.daemon.tcp_address)]
        self.watcher = Watcher(self.workers[0])
        self.states: dict[str, frozenset[Maybe]] = {}
        self.leases: list[warmshelf.Lease] = []
        self.views: list[tuple[dict[str, memoryview], dict[str, bytes]]] = []  # what workers hold, and what it must be
        self.sound = True

    def start(self) -> None:
        self.daemon.start("--budget", str(BUDGET_BYTES), "--pin", "off")

    @property
    def shelf(self) -> warmshelf.Shelf:
        return self.workers[0]

    @initialize(contents=st.tuples(CONTENT, CONTENT))
    def begin(self, contents: tuple[str, ...]) -> None:
        for (artifact_id, file), content in zip(NAMES.items(), contents, strict=True):
            self.files.write(file, content, rename=False)
            self.call(model.Register(artifact_id, file))

    @rule(file=FILES, content=CONTENT, rename=st.booleans())
    def write(self, file: str, content: str, rename: bool) -> None:
        self.files.write(file, content, rename=rename)

    @rule(file=FILES)
    def touch(self, file: str) -> None:
        self.files.touch(file)

    @rule(file=FILES)
    def delete(self, file: str) -> None:
        self.files.delete(file)

    @rule(call=CALLS)
    def call(self, call: Call) -> None:
        reason = ""
        try:
            self._calls()[type(call)](call)
        except WarmshelfError as error:
            reason = error.reason
        self.look([(call, Told(reason))])

    def _calls(self) -> dict[type[Call], Callable[[Any], object]]:
        return {
            model.Register: lambda c: self.shelf.register(
                c.artifact_id, self.files.path(c.file), replace=c.replace, keep=c.keep, follow=c.follow
            ),
            model.Load: lambda c: list(self.shelf.load(c.artifact_id, timeout=CALL_SECONDS)),
            model.Evict: lambda c: self.shelf.evict(c.artifact_id, drain=c.drain),
            model.Remove: lambda c: self.shelf.remove(c.artifact_id),
            model.Verify: lambda c: self.shelf.verify(c.artifact_id),
        }

    @rule(call=st.builds(model.Acquire, IDS, resident_only=SELDOM), streamed=st.booleans())
    def acquire(self, call: model.Acquire, streamed: bool) -> None:
        states = self.states.get(call.artifact_id, frozenset())
        waits = any(known and known.state == "evicting" for known in states)
        timeout = 0.3 if waits else CALL_SECONDS
        try:
            lease = self.workers[streamed].acquire(call.artifact_id, timeout=timeout, resident_only=call.resident_only)
        except WarmshelfError as error:
            self.look([(call, Told(error.reason))])
            return
        assert lease.transport == ("streamed" if streamed else "mapped")
        found = read_all(lease)
        content = next(c for c in CONTENTS.values() if c.bytes_by_name == found)
        self.leases.append(lease)
        self.views.append(({name: lease[name] for name in lease}, found))
        self.look([(call, Told("", lease.generation, content.name))])

    @rule(index=st.integers(0, 5))
    def release(self, index: int) -> None:
        if self.leases:
            self.leases.pop(index % len(self.leases)).release()
            self.look([], drained=True)

    @rule(number=st.sampled_from([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
    def restart(self, number: int) -> None:
        self.daemon.kill(number)
        self.leases.clear()
        self.states = {
            artifact_id: frozenset().union(*(after_death(known, is_sure=True) for known in states))
            for artifact_id, states in self.states.items()
        }
        self.start()
        self.look([])

    # --- always -----------------------------------------------------------------

    def look(self, calls: list[tuple[Call, Told]], *, drained: bool = False) -> None:
        """Wait until nothing is under way, and compare with what the model holds possible."""
        self.sound = False
        eventually(lambda: all(map(_is_at_rest, self.shelf.list())), "nothing is under way")
        seen = {artifact.artifact_id: artifact for artifact in self.shelf.list()}
        world = World(dict(self.files.now), BUDGET_BYTES, dict.fromkeys(NAMES, "must"), None)
        for artifact_id in NAMES:
            own = [pair for pair in calls if pair[0].artifact_id == artifact_id]
            start = self.states.get(artifact_id, frozenset([None]))
            after = ends(start, own, [world], alone=not drained)
            self.states[artifact_id] = frozenset(known for known in after if fits(known, seen.get(artifact_id)))
            assert self.states[artifact_id], f"was {start}\n{own}\ncould be {after}\nis {seen.get(artifact_id)}"
        live = sorted((lease.artifact.artifact_id, lease.generation) for lease in self.leases)
        assert sorted((info.artifact_id, info.generation) for info in self.shelf.leases()) == live
        for views, expected in self.views:
            assert {name: bytes(view) for name, view in views.items()} == expected
        self.sound = True

    def check_end(self) -> None:
        """Every watcher knows what is listed; and everything can be given back."""
        listed = {a.artifact_id: replace(a, last_use_time=None) for a in self.shelf.list()}
        eventually(lambda: _basic(self.watcher.artifacts) == _basic(listed), "the watcher knows what is listed")
        self.views.clear()
        for lease in self.leases:
            lease.release()
        self.leases.clear()
        for artifact_id in listed:
            self.shelf.remove(artifact_id)
        eventually(lambda: self.shelf.capacity().free_bytes == BUDGET_BYTES, "everything is given back")
        self.daemon.check()

    def teardown(self) -> None:
        try:
            if self.sound:
                self.check_end()
        finally:
            self.watcher.close()
            for worker in self.workers:
                worker.close()
            self.daemon.kill()
            shutil.rmtree(self.root)


def _is_at_rest(artifact: Artifact) -> bool:
    if artifact.state is ArtifactState.READY:
        return bool(artifact.digest)
    return artifact.state is not ArtifactState.LOADING


def _basic(artifacts: dict[str, Artifact]) -> dict[str, Artifact]:
    """Watchers are told everything; a listing leaves names and config out, which bases do not have anyway."""
    return {artifact_id: replace(artifact, inspection=None) for artifact_id, artifact in artifacts.items()}


@pytest.mark.e2e
@pytest.mark.timeout(120 * max(DEPTH, 1))
def test_no_sequence_of_calls_and_deaths_breaks_a_promise_of_a_real_daemon() -> None:
    chosen = settings(
        max_examples=5 * DEPTH or 3,
        stateful_step_count=40 if DEPTH else 20,
        derandomize=not DEPTH,
        deadline=None,
        database=None,
        print_blob=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(DaemonMachine, settings=chosen)
