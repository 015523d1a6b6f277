"""One daemon after another on one arena, killed at one point after another, with workers that go on meanwhile."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from killing.daemons import NurseryDaemon
from killing.deeds import ALIAS, DEATH_SECONDS, Deeds
from killing.points import ANYWHERE, POINTS
from killing.truth import Content, Story, differs
from kit.plain import Plain
from kit.processes import Worker, eventually, read_all
from kit.pushes import unfinished
from warmshelf import Shelf
from warmshelf.errors import DigestMismatch
from warmshelf.types import ArtifactState

KEPT = {f"kept/{i}": Content(i, is_adapter=i % 2 == 1) for i in range(4)}
"""Resident from the first start to the end; their sources are gone."""

BUDGET = ("--budget", "256MiB", "--pin", "off")
NEW_COUNT_MAX = 8
"""Artifacts of deeds beyond these are removed, the oldest first."""

_MAY_LOAD = {"evict", "remove", "move", "register", "push", "replace"}
_MAY_PUSH = {"load", "evict", "remove", "move"}
_MAY_REMOVE = {"load", "register", "push"}
"""Areas of points at which a daemon does not die of that."""


class Wrong(Exception):  # noqa: N818 - what was found, no fault of the harness
    """Something that must not be."""


class Scene:
    """What stays while daemons come and go."""

    def __init__(self, root: Path, arena: Path, seed: int) -> None:
        self.models = root / "models"
        self.chance = random.Random(seed)
        self.daemon = NurseryDaemon(root, arena, self.models)
        self.deeds = Deeds(self.daemon, self.chance)
        self.kills: Counter[str] = Counter()
        self.looks = 0
        self._rows: set[str] = set()  # what the dead daemon's registry had
        self.bytes_compared = 0
        self._workers: list[Worker] = []

    def open(self) -> None:
        """Seal what is kept, take its sources away, and start the workers."""
        self.daemon.begin(*BUDGET)
        self.daemon.wait_ready()
        with self.daemon.connect() as shelf:
            for artifact_id, content in KEPT.items():
                source = content.write(self.models / str(content.number))
                shelf.register(artifact_id, f"file://{source}")
                shelf.acquire(artifact_id, timeout=20).release()
                eventually(lambda one=artifact_id: bool(shelf.get(one).digest), "its digest is known")  # type: ignore[misc]
                source.rename(self.models / f"{content.number}.away")
        kept = [f"{one}:{content.number}:{int(content.is_adapter)}" for one, content in KEPT.items()]
        for transport in ("mapped", "streamed"):
            code = "from killing.worker import main; main()"
            self._workers.append(Worker(code, transport, self.daemon.address, str(self.chance.random())[2:9], *kept))
        self.daemon.kill()

    def close(self) -> None:
        """End everything."""
        for worker in self._workers:
            worker.end()
        self.daemon.close()

    # --- a kill and a look ---

    def kill_at(self, name: str) -> None:
        """Start a daemon that will die at a point, look at what the last one left, and bring it there."""
        point = POINTS[name]
        hit = self.chance.randint(1, point.hits_max)
        self.begin("" if name == ANYWHERE else f"{name}={hit}*kill")
        if point.is_quiet:
            self.daemon.wait_ready()
            self.look(name.partition(".")[0])
        elif point.deed != "start":
            self._wait_ready_or_dead()
        self.deeds.latest = ""
        if point.deed != "start" and not self.daemon.has_died(0):
            self.deeds.do(point.deed)
        if not self.daemon.has_died(DEATH_SECONDS) or self.daemon.wait() != -signal.SIGKILL:
            self._fail(f"was not killed at {name}, hit {hit}")
        if point.is_sealed:
            self.deeds.stories[self.deeds.latest].is_resident = True
        self.kills[name] += 1

    def begin(self, failpoints: str = "") -> None:
        """Note what the dead daemon's registry has, and start the next."""
        self._rows = _rows_of(self.daemon.registry)
        self.daemon.begin(*BUDGET, failpoints=failpoints)

    def _wait_ready_or_dead(self) -> None:
        while not self.daemon.ready_line and not self.daemon.has_died(0):
            self.daemon.take_line()

    def look(self, area: str) -> None:
        """Compare what there is with what must be; tidy, as far as a daemon that is to die in this area may."""
        self.looks += 1
        with self.daemon.connect() as shelf:
            self._look_at_ids(shelf)
            self._look_at_bytes(shelf)
            self._look_at_room(shelf)
            if area in _MAY_PUSH:
                for artifact_id in list(self.deeds.pushes):
                    self.deeds.go_on(artifact_id)
            if area in _MAY_LOAD:
                self._load_again(shelf)
        if area in _MAY_REMOVE:
            with Plain(self.daemon.address) as plain:
                for artifact_id in self._too_many():
                    self.deeds.remove_one(plain, artifact_id)

    def last_look(self) -> list[dict[str, Any]]:
        """Start a daemon that nothing kills, look at everything, and return what the workers have seen until then."""
        self.begin()
        self.daemon.wait_ready()
        self.look("evict")
        reports = list(self._reports())
        for report in reports:
            if report["wrong"]:
                self._fail(f"the {report['transport']} worker saw {report['wrong'][0]}")
        if self.daemon.kill(signal.SIGTERM) != 0:
            self._fail("did not end well")
        self.daemon.check()
        return reports

    def _reports(self) -> Iterator[dict[str, Any]]:
        """Ask the workers what they have seen."""
        for worker in self._workers:
            worker.tell()
            yield json.loads(worker.line() or "{}")

    # --- looking ---

    def _look_at_ids(self, shelf: Shelf) -> None:
        there = {artifact.artifact_id for artifact in shelf.list()}
        stories = self.deeds.stories
        must = KEPT.keys() | {one for one, story in stories.items() if story.is_known}
        may = must | {one for one, story in stories.items() if story.is_known is None}
        if not must <= there <= may:
            self._fail(f"lost IDs {sorted(must - there)}, foreign IDs {sorted(there - may)}")
        for artifact_id, story in stories.items():
            story.is_known = artifact_id in there
        if self._rows != there:
            self._fail(f"rows without artifact {self._rows - there}, artifacts without row {there - self._rows}")
        with Plain(self.daemon.address) as plain:
            if (meant := self.deeds.alias_now(plain)) not in self.deeds.alias:
                self._fail(f"alias {ALIAS!r} means {meant!r}, not {self.deeds.alias}")
            self.deeds.alias = (meant,)

    def _look_at_bytes(self, shelf: Shelf) -> None:
        segments = set()
        for artifact in shelf.list():
            story = self.deeds.stories.get(artifact.artifact_id) or Story((KEPT[artifact.artifact_id],), True, True)
            is_ready = artifact.state is ArtifactState.READY
            if story.is_resident and not is_ready:
                self._fail(f"lost the bytes of {artifact.artifact_id}: {artifact.state.value} {artifact.failure}")
            if not is_ready:
                continue
            if story.is_refused:
                self._fail(f"{artifact.artifact_id} is ready, though its digest is not what was expected")
            _hide(story)
            story.is_resident = True
            segments.add(self._compare(shelf, artifact.artifact_id, story))
        if segments != {*self.daemon.segments()}:
            self._fail(f"segments {self.daemon.segments()}, used are {sorted(segments)}")

    def _compare(self, shelf: Shelf, artifact_id: str, story: Story) -> str:
        with shelf.acquire(artifact_id, timeout=20, resident_only=True) as lease:
            found = read_all(lease)
            if text := differs(found, story.contents):
                self._fail(f"{artifact_id}: {text}")
            self.bytes_compared += sum(map(len, found.values()))
            return lease.layout.segments[0].segment_id

    def _look_at_room(self, shelf: Shelf) -> None:
        capacity = shelf.capacity()
        in_files = self.daemon.arena_bytes()
        if capacity.reserved_bytes or capacity.unnamed_bytes or capacity.resident_bytes != in_files:
            self._fail(f"books say {capacity}, files have {in_files} bytes")
        if self.daemon.leftovers():
            self._fail(f"left behind: {self.daemon.leftovers()}")
        pushes = {push_id for push_id, _ in self.deeds.pushes.values()}
        if not pushes >= {*unfinished(self.daemon)}:
            self._fail(f"unfinished pushes {unfinished(self.daemon)}, begun were {pushes}")

    # --- tidying ---

    def _load_again(self, shelf: Shelf) -> None:
        for artifact_id, story in self.deeds.stories.items():
            if not story.is_known or story.is_resident:
                continue
            _bring_back(story)
            if story.is_refused:
                self._must_refuse(shelf, artifact_id)
                continue
            shelf.acquire(artifact_id, timeout=20).release()
            story.is_resident = True
            self._compare(shelf, artifact_id, story)

    def _must_refuse(self, shelf: Shelf, artifact_id: str) -> None:
        try:
            shelf.acquire(artifact_id, timeout=20).release()
        except DigestMismatch:
            return
        self._fail(f"{artifact_id} was loaded, though its digest is not what was expected")

    def _too_many(self) -> list[str]:
        known = [artifact_id for artifact_id, story in self.deeds.stories.items() if story.is_known]
        return known[: max(0, len(known) - NEW_COUNT_MAX)]

    def _fail(self, text: str) -> None:
        log = self.daemon.log.read_text()[-2000:]
        raise Wrong(f"after {sum(self.kills.values())} kills, the last {list(self.kills)[-1:]}: {text}\n{log}")


def _rows_of(registry: Path) -> set[str]:
    """Return the IDs that a dead daemon's registry has, from a copy: to open it would mend it."""
    with tempfile.TemporaryDirectory() as copy:
        for file in registry.parent.glob(f"{registry.name}*"):
            if file.is_file():
                shutil.copy(file, copy)
        with closing(sqlite3.connect(Path(copy, registry.name))) as connection:
            return {one for (one,) in connection.execute("SELECT artifact_id FROM registrations")}


def _hide(story: Story) -> None:
    """Take a source away: from now on only memory has the bytes."""
    for source in story.sources:
        if source.exists():
            source.rename(source.with_name(f"{source.name}.away"))


def _bring_back(story: Story) -> None:
    for source in story.sources:
        away = source.with_name(f"{source.name}.away")
        if away.exists():
            away.rename(source)


@contextmanager
def opened(root: Path, seed: int) -> Iterator[Scene]:
    """Return a scene on an arena of its own, and end it."""
    (root / "models").mkdir()
    with ExitStack() as stack:
        arena = stack.enter_context(tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm"))
        scene = Scene(root, Path(arena), seed)
        stack.callback(scene.close)
        scene.open()
        yield scene
