"""Any sequence of calls, changed files, deaths and restarts: hypothesis looks for one that breaks a promise.

Quick by default. ``WARMSHELF_TEST_DEPTH=N`` makes N times as many and longer ones, and
other ones each time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from kit.cores import Cores
from kit.shelf_bench import Bench
from kit.shelf_model import Acquire, Call, Evict, Load, Register, Remove, Verify
from kit.source_files import CONTENTS

DEPTH = int(os.environ.get("WARMSHELF_TEST_DEPTH", "0"))

NAMES = {"a": "p", "b/b": "q", "c": "r", "d": "s"}  # artifacts, and the file of each at first
IDS, FILES = st.sampled_from([*NAMES]), st.sampled_from([*NAMES.values()])
CONTENT = st.sampled_from([*CONTENTS, *(name for name in CONTENTS if name != "giant")])
DIGESTS = [content.digest for content in CONTENTS.values()]
EXPECTED = st.sampled_from([*[""] * 20, *DIGESTS, *(content.file_digest for content in CONTENTS.values())])
SELDOM = st.sampled_from([False, False, False, True])
KEEPING = st.sampled_from(["nothing", "nothing", "mapping", "lease", "both"])
INDEXES = st.integers(0, 5)
DELAYS = st.sampled_from([0.0, 0.0, 0.0005, 0.001, 0.002, 0.004, 0.008])

REGISTER = st.builds(
    Register, IDS, FILES, expected=EXPECTED, replace=st.booleans(), keep=SELDOM, follow=SELDOM, defer=SELDOM
)
ACQUIRE = st.builds(Acquire, IDS, resident_only=SELDOM, expected=st.sampled_from([*[""] * 20, *DIGESTS]))
LOAD, REMOVE, VERIFY = st.builds(Load, IDS, detach=SELDOM), st.builds(Remove, IDS), st.builds(Verify, IDS)
EVICT = st.builds(Evict, IDS, drain=st.booleans())
CALLS: st.SearchStrategy[Call] = st.one_of(ACQUIRE, ACQUIRE, ACQUIRE, LOAD, REGISTER, REGISTER, EVICT, VERIFY, REMOVE)
BURST = st.lists(st.tuples(CALLS, DELAYS), min_size=2, max_size=4)

STEPS_OF_A_LOAD = ["load.started", "load.reserved", "load.created", "load.part", "load.read"]
STEPS_OF_A_LOAD += ["load.verified", "load.sealed", "load.recorded", "load.published"]
DEADLY = [*STEPS_OF_A_LOAD, "load.ready", "register.inspected", "register.recorded", "remove.recorded"]
DEADLY += ["evict.chosen", "evict.unlinked"]

_cores: list[Cores] = []  # the one that all machines of this module start theirs from


class ShelfMachine(RuleBasedStateMachine):
    """A daemon's core, its callers and its sources."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(_cores[0])

    @initialize(contents=st.tuples(CONTENT, CONTENT, CONTENT, CONTENT))
    def begin(self, contents: tuple[str, ...]) -> None:
        for (artifact_id, file), content in zip(NAMES.items(), contents, strict=True):
            self.bench.files.write(file, content, rename=False)
            self.bench.run([Register(artifact_id, file)])

    # --- sources ---

    @rule(file=FILES, content=CONTENT, rename=st.booleans())
    def write(self, file: str, content: str, rename: bool) -> None:
        self.bench.files.write(file, content, rename=rename)

    @rule(file=FILES)
    def touch(self, file: str) -> None:
        self.bench.files.touch(file)

    @rule(file=FILES, how=st.sampled_from(["delete", "cut", "cut to nothing", "scribble"]))
    def spoil(self, file: str, how: str) -> None:
        if how == "delete":
            self.bench.files.delete(file)
        elif how == "scribble":
            self.bench.files.scribble(file)
        else:
            self.bench.files.cut(file, 0 if how == "cut to nothing" else 5000)

    @rule(artifact_id=IDS, content=CONTENT, rename=st.booleans())
    def write_and_load_again(self, artifact_id: str, content: str, rename: bool) -> None:
        self.bench.run([Evict(artifact_id)])
        self.bench.files.write(self.bench.file_of(artifact_id), content, rename=rename)
        self.bench.run([Acquire(artifact_id)])

    # --- calls ---

    @rule(call=REGISTER)
    def register(self, call: Register) -> None:
        self.bench.run([call])

    @rule(artifact_id=IDS, replace=SELDOM, keep=st.booleans(), follow=st.booleans())
    def register_again(self, artifact_id: str, replace: bool, keep: bool, follow: bool) -> None:
        file = self.bench.file_of(artifact_id)
        self.bench.run([Register(artifact_id, file, replace=replace, keep=keep, follow=follow)])

    @rule(call=ACQUIRE, scribble=SELDOM)
    def acquire(self, call: Acquire, scribble: bool) -> None:
        (told,) = self.bench.run([call])
        if scribble and not told.reason:
            self.bench.held[-1].scribble()

    @rule(artifact_id=IDS)
    def acquire_plainly(self, artifact_id: str) -> None:
        self.bench.run([Acquire(artifact_id)])

    @rule(order=st.permutations([*NAMES]), keeping=st.tuples(KEEPING, KEEPING, KEEPING, KEEPING))
    def fill(self, order: list[str], keeping: tuple[str, ...]) -> None:
        """Workers acquire everything, one after another; of each some keep the lease, some only their tensors."""
        for artifact_id, what in zip(order, keeping, strict=True):
            self.bench.run([Acquire(artifact_id)])
            self.bench.keep_only(artifact_id, what)

    @rule(call=CALLS)
    def call(self, call: Call) -> None:
        self.bench.run([call])

    @rule(burst=BURST)
    def burst(self, burst: list[tuple[Call, float]]) -> None:
        self.bench.run([call for call, _ in burst], [delay for _, delay in burst])

    @rule(call=CALLS, others=st.lists(CALLS, max_size=2), after=DELAYS)
    def cancel(self, call: Call, others: list[Call], after: float) -> None:
        """A caller gives up, which is nothing to the others."""
        self.bench.cancel([call, *others], after)

    # --- workers ---

    # What is drawn does not depend on what happens: else no failure could be made smaller.

    @rule(index=INDEXES)
    def release(self, index: int) -> None:
        live = [held for held in self.bench.held if held.lease_id]
        if live:
            self.bench.release(live[index % len(live)])

    @rule(index=INDEXES)
    def unmap(self, index: int) -> None:
        mapped = [held for held in self.bench.held if held.image is not None]
        if mapped:
            self.bench.unmap(mapped[index % len(mapped)])

    @rule()
    def open_session(self) -> None:
        self.bench.open_session()

    @rule(index=INDEXES)
    def close_session(self, index: int) -> None:
        if sessions := self.bench.sessions:
            self.bench.close_session(sessions[index % len(sessions)])

    # --- death ---

    @rule(calls=st.lists(CALLS, max_size=3), orderly=SELDOM, budget=st.sampled_from([192, 192, 192, 96]))
    def restart(self, calls: list[Call], orderly: bool, budget: int) -> None:
        self.bench.restart(calls, orderly=orderly, budget_bytes=budget << 10)

    @rule(burst=BURST, kill_after=DELAYS)
    def die_busy(self, burst: list[tuple[Call, float]], kill_after: float) -> None:
        self.bench.run([call for call, _ in burst], [delay for _, delay in burst], kill_after=kill_after)

    @rule(call=CALLS, step=st.sampled_from(DEADLY))
    def die_at(self, call: Call, step: str) -> None:
        self._armed(f"{step}=kill", [call])

    @rule(call=st.one_of(ACQUIRE, LOAD), step=st.sampled_from(STEPS_OF_A_LOAD))
    def fail_at(self, call: Call, step: str) -> None:
        self._armed(f"{step}=error", [call])

    @rule(call=ACQUIRE, step=st.sampled_from(STEPS_OF_A_LOAD), file=FILES, content=CONTENT)
    def change_during_a_load(self, call: Call, step: str, file: str, content: str) -> None:
        self.bench.change_during(call, step, file, content)

    @rule(artifact_id=IDS, step=st.sampled_from(STEPS_OF_A_LOAD), content=CONTENT)
    def change_its_source_during_a_load(self, artifact_id: str, step: str, content: str) -> None:
        self.bench.run([Evict(artifact_id)])
        self.bench.change_during(Acquire(artifact_id), step, self.bench.file_of(artifact_id), content)

    @rule(artifact_id=IDS)
    def spoil_and_verify(self, artifact_id: str) -> None:
        self.bench.spoil_and_verify(artifact_id)

    @rule(calls=st.lists(CALLS, max_size=2))
    def spoil_and_restart(self, calls: list[Call]) -> None:
        self.bench.spoil_and_restart(calls)

    # --- watchers ---

    @rule()
    def watch(self) -> None:
        self.bench.watch()

    @rule()
    def stop_watching(self) -> None:
        self.bench.stop_watching()

    def _armed(self, failpoint: str, calls: list[Call]) -> None:
        core = self.bench.core
        core.call("arm", failpoint)
        self.bench.run(calls, faulty=True)
        if self.bench.core is core:
            core.call("arm", "")

    def teardown(self) -> None:
        try:
            if self.bench.sound:
                self.bench.close()
        finally:
            self.bench.discard()


@pytest.fixture(scope="module")
def cores() -> Iterator[Cores]:
    it = Cores()
    _cores.append(it)
    yield it
    _cores.remove(it)
    it.close()


@pytest.mark.timeout(120 * max(DEPTH, 1))
def test_no_sequence_of_calls_changes_and_deaths_breaks_a_promise(cores: Cores) -> None:
    chosen = settings(
        max_examples=100 * DEPTH or 30,
        stateful_step_count=60 if DEPTH else 30,
        derandomize=not DEPTH,
        deadline=None,
        database=None,
        print_blob=True,
        phases=[Phase.generate],  # what depends on threads does not fail again and again while it is made smaller
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(ShelfMachine, settings=chosen)
