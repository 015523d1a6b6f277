"""Histories of a real daemon through the client, mapped and streamed, with its registry in a real Redis.

Both may be killed in the middle. A call that was under way then is an open one: the client asks again by
itself, so what it was told may be the second answer, and what it asked for may have been done twice.
"""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import warmshelf
from histories.order import Done
from histories.rules import ALIAS, Acquire, Answer, Call, Evict, Get, Kill, Move, Register, Remove
from histories.scripts import NAMES, SOURCES, Script, last_looks
from kit.fleet import Node
from kit.processes import eventually, read_all
from kit.redis_server import RedisServer, redis_server
from kit.source_files import CONTENTS, SourceFiles
from warmshelf.errors import ArtifactNotFound, RegistryUnavailable, WarmshelfError

CALL_SECONDS = 30.0

AWAY = Answer("REGISTRY_UNAVAILABLE")
"""Of a change that is compared, which only the shared registry can do."""


class DaemonHistories:
    """A daemon and its callers, each a thread with a client of its own."""

    def __init__(self, node: Node, server: RedisServer) -> None:
        self._node = node
        self._server = server
        self._files = SourceFiles(node.models)
        for source, content in SOURCES.items():
            self._files.write(source, content, rename=False)
        self._number = 0
        self._step = 0  # guarded by _lock
        self._history: list[Done] = []  # guarded by _lock
        self._kill: tuple[int, int] | None = None  # from when to when; guarded by _lock
        self._lock = threading.Lock()
        node.begin()

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[DaemonHistories]:
        """Start Redis and a daemon; at the end it must stop well, with no bug in its log."""
        with (
            tempfile.TemporaryDirectory(prefix="warmshelf-histories-") as place,
            tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm") as arena,
        ):
            root = Path(place)
            for name in ("redis", "models"):
                (root / name).mkdir()
            with redis_server(root / "redis") as server:
                node = Node(root, Path(arena), root / "models", server.uri())
                try:
                    yield cls(node, server)
                finally:
                    node.kill(signal.SIGTERM)
                node.check()

    def run(self, script: Script, *, redis_is_away: bool) -> list[Done]:
        """Have a script played; return its history."""
        self._number += 1
        self._step, self._history, self._kill = 0, [], None
        if redis_is_away:
            self._server.pause()
        threads = [
            threading.Thread(target=self._play, args=(number, calls)) for number, calls in enumerate(script.callers)
        ]
        for thread in threads:
            thread.start()
        if script.kill_after >= 0:
            self._kill_when(script.kill_after, threads)
        for thread in threads:
            thread.join()
        if redis_is_away:
            self._server.resume()
            eventually(self._has_registry, "the daemon has its registry again", CALL_SECONDS)
        with self._node.connect() as shelf:
            for call in last_looks():
                self._do(shelf, call)
            for name in NAMES:
                self._forget(shelf, name)
        history = [unsure(done, self._step) for done in self._history] if redis_is_away else self._history
        kill = self._kill
        if kill is None:
            return history
        return [one for done in history for one in opened_by(kill, done)] + [Done(Kill(), *kill, Answer())]

    def _has_registry(self) -> bool:
        """Say whether the daemon can make a change that is compared, which needs the registry."""
        probe, alias = self._named("probe"), self._named("probe-alias")
        with self._node.connect() as shelf:
            shelf.register(probe, self._files.path(next(iter(SOURCES))))
            try:
                shelf.set_alias(alias, probe)
                shelf.remove_alias(alias)
            except RegistryUnavailable:
                return False
            shelf.remove(probe)
            return True

    def _kill_when(self, answer_count: int, threads: list[threading.Thread]) -> None:
        """Kill the daemon once so many answers were given, or all."""
        while len(self._history) < answer_count and any(thread.is_alive() for thread in threads):
            threading.Event().wait(0.0005)
        begun = self._tick()
        self._node.kill()
        self._node.begin()
        self._kill = begun, self._tick()

    def _play(self, number: int, calls: tuple[tuple[float, Call], ...]) -> None:
        address = self._node.tcp_address if number % 2 else self._node.address
        with warmshelf.connect(address) as shelf:
            for delay, call in calls:
                threading.Event().wait(delay)
                self._do(shelf, call)

    def _do(self, shelf: warmshelf.Shelf, call: Call) -> None:
        begun = self._tick()
        try:
            answer = self._ask(shelf, call)
        except WarmshelfError as error:
            answer = Answer(error.reason)
        with self._lock:
            self._step += 1
            self._history.append(Done(call, begun, self._step, answer))

    def _tick(self) -> int:
        with self._lock:
            self._step += 1
            return self._step

    def _forget(self, shelf: warmshelf.Shelf, name: str) -> None:
        try:
            shelf.remove(self._named(name))
        except ArtifactNotFound:
            return

    # --- words ------------------------------------------------------------------

    def _named(self, name: str) -> str:
        return f"h{self._number}/{name}"

    def _ask(self, shelf: warmshelf.Shelf, call: Call) -> Answer:
        name = self._named(call.name)
        match call:
            case Register(_, source, replacing):
                artifact = shelf.register(name, self._files.path(source), replace=replacing)
                return Answer("", _shown(artifact).source)
            case Get():
                return _shown(shelf.get(name))
            case Acquire():
                with shelf.acquire(name, timeout=CALL_SECONDS) as lease:
                    found = read_all(lease)
                    source = next(one for one, held in SOURCES.items() if CONTENTS[held].bytes_by_name == found)
                    return Answer("", source, lease.generation)
            case Evict():
                shelf.evict(name)
            case Remove():
                shelf.remove(name)
            case Move(_, expected):
                shelf.set_alias(self._named(ALIAS), name, expect=self._named(expected) if expected else None)
        return Answer()


def _shown(artifact: warmshelf.Artifact) -> Answer:
    return Answer("", artifact.spec.source.uri.rpartition("/")[2], artifact.generation)


def opened_by(kill: tuple[int, int], done: Done) -> list[Done]:
    """Return what a call was that a kill may have met: open, and twice, since the client asks again by itself.

    The first time was before the daemon was dead, and others may come between the two.
    """
    begun, ended = kill
    if not (done.begun < ended and begun < done.ended):
        return [done]
    first = Done(done.call, done.begun, ended, None)
    return [first, Done(done.call, done.begun, max(done.ended, ended + 1), None)]


def unsure(done: Done, last: int) -> Done:
    """Return what a call was that found the registry away: open, if that was its answer, up to the last step.

    What was sent to a server that hangs it may still do when it goes on.
    """
    return replace(done, ended=last, answer=None) if done.answer == AWAY else done
