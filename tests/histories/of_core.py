"""Histories of a daemon's core in a process of its own: thousands, with kills."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from histories.order import Done
from histories.rules import ALIAS, Acquire, Answer, Call, Evict, Get, Kill, Move, Register
from histories.scripts import NAMES, SOURCES, Script, last_looks
from kit.core_process import Places
from kit.cores import Answer as CoreAnswer
from kit.cores import Cores
from kit.shelf_truth import map_content
from kit.source_files import SourceFiles
from warmshelf.types import ArtifactSpec, Source
from warmshelfd.leasing import AcquireOptions
from warmshelfd.registering import RegisterOptions

BUDGET_BYTES = 1 << 20
CALL_SECONDS = 20.0


class CoreHistories:
    """A core, and callers that take turns at one pipe to it. Each history has names of its own."""

    def __init__(self, cores: Cores) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="warmshelf-test-", dir="/dev/shm"))
        (self._root / "sources").mkdir()
        files = SourceFiles(self._root / "sources")
        for source, content in SOURCES.items():
            files.write(source, content, rename=False)
        self._places = Places(
            f"{self._root}/arena", f"{self._root}/registry.sqlite", str(files.directory), BUDGET_BYTES
        )
        self._cores = cores
        self._number = 0
        self._step = 0
        self._start()

    def close(self) -> None:
        self._core.stop()
        shutil.rmtree(self._root)

    def _start(self) -> None:
        self._core = self._cores.start(self._places)
        self._session = self._core.call("open_session")

    def run(self, script: Script) -> list[Done]:
        """Have a script played; return its history."""
        self._number += 1
        self._step = 0
        history: list[Done] = []
        left = [list(calls) for calls in script.callers]
        under_way: dict[int, tuple[int, int, Call]] = {}  # by number: whose, since when, what
        for caller in range(len(left)):
            self._begin_next(left, under_way, caller)
        answers = 0
        while under_way:
            number = None if answers == script.kill_after else self._core.end_any(under_way)
            if number is None:
                history += self._kill(under_way)
                answers = -1_000_000  # once is enough
                for caller in range(len(left)):
                    self._begin_next(left, under_way, caller)
                continue
            caller, begun, call = under_way.pop(number)
            history.append(Done(call, begun, self._tick(), self._told(call, self._core.end(number))))
            answers += 1
            self._begin_next(left, under_way, caller)
        for call in last_looks():
            begun = self._tick()
            history.append(Done(call, begun, self._tick(), self._told(call, self._core.ask(*self._words(call)))))
        self._forget()
        return history

    def _tick(self) -> int:
        self._step += 1
        return self._step

    def _begin_next(
        self, left: list[list[tuple[float, Call]]], under_way: dict[int, tuple[int, int, Call]], caller: int
    ) -> None:
        if left[caller]:
            delay, call = left[caller].pop(0)
            begun = self._tick()
            under_way[self._core.begin(*self._words(call), delay_seconds=delay)] = (caller, begun, call)

    def _kill(self, under_way: dict[int, tuple[int, int, Call]]) -> list[Done]:
        """Kill the core and start another; what was under way may have taken effect."""
        if self._core.is_alive:
            self._core.kill()
        killed = self._tick()
        died = [Done(call, begun, killed, None) for _, begun, call in under_way.values()]
        under_way.clear()
        begun = self._tick()
        self._start()
        return [*died, Done(Kill(), begun, self._tick(), Answer())]

    def _forget(self) -> None:
        for name in NAMES:
            self._core.ask("remove", self._named(name))

    # --- words ------------------------------------------------------------------

    def _named(self, name: str) -> str:
        return f"h{self._number}/{name}"

    def _words(self, call: Call) -> tuple[Any, ...]:
        name = self._named(call.name)
        match call:
            case Register(_, source, replacing):
                spec = ArtifactSpec(Source(f"file://{self._places.sources}/{source}", "", ""))
                return "register", name, spec, RegisterOptions(replacing)
            case Acquire():
                return "acquire", self._session, name, AcquireOptions(), CALL_SECONDS
            case Evict():
                return "evict", name, False
            case Move(_, expected):
                return "set_alias", self._named(ALIAS), name, expected and self._named(expected)
        return type(call).__name__.lower(), name

    def _told(self, call: Call, answer: CoreAnswer) -> Answer | None:
        if answer.reason == "DIED":
            return None
        if answer.reason:
            return Answer(answer.reason)
        if isinstance(call, Acquire):
            return self._read(answer.value)
        if isinstance(call, Register):
            return Answer("", answer.value.spec.source.uri.rpartition("/")[2])
        if isinstance(call, Get):
            return Answer("", answer.value.spec.source.uri.rpartition("/")[2], answer.value.generation)
        return Answer()

    def _read(self, granted: Any) -> Answer:
        """Look whose bytes were granted, and let them go."""
        _, content = map_content(self._places.arena, granted.segment_id, granted.size_bytes)
        self._core.begin("release", self._session, granted.lease_id)
        source = next(source for source, held in SOURCES.items() if held == content.name)
        return Answer("", source, granted.generation)
