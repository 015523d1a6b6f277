"""The processes of the load: ``python -m soak.parts PART ADDRESS RATE SEED [ARGUMENT ...]``.

Each does one thing over and over, so often a second, whatever becomes of the daemon. Its
parent tells it to ``go`` or to ``hold``, whereupon it lets go of everything it has, and asks
what it has seen with ``tell``; each is answered with one line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import warmshelf
from soak.truth import COLD, HOT, POOL, Content, source_of
from warmshelf.errors import ArtifactNotFound, WarmshelfError

CALL_SECONDS = 30.0
BACKLOG_SECONDS = 2.0
"""Who is late by more than this does not try to catch up with it."""

HOT_SHARE = 0.93
LIVE_COUNT = 50
"""Registrations of one node that are there at once; the oldest goes when another comes."""

ACQUIRED_SHARE = 0.1
"""Of the registrations, those that are acquired too."""

WRONG_COUNT_MAX = 20


class Part:
    """What all have in common."""

    def __init__(self, connect: Callable[[], warmshelf.Shelf], rate: float, seed: int) -> None:
        self._connect = connect
        self._shelf: warmshelf.Shelf | None = None
        self._rate = rate
        self.chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()  # calls that failed, by reason
        self.wrong: list[str] = []  # what must never be

    @property
    def shelf(self) -> warmshelf.Shelf:
        if self._shelf is None:
            self._shelf = self._connect()
        return self._shelf

    def turn(self) -> None:
        """Do it once."""
        raise NotImplementedError

    def hold(self) -> None:
        """Let go of everything."""
        if self._shelf is not None:
            self._shelf.close()
            self._shelf = None

    def more(self) -> dict[str, Any]:
        """Return what else it has seen."""
        return {}

    def run(self) -> None:
        """Go on until the input ends."""
        going, due = False, time.monotonic()
        while True:
            wait = max(0.0, due - time.monotonic()) if going else None
            if select.select([sys.stdin], [], [], wait)[0]:
                word = sys.stdin.readline().strip()
                if not word:
                    return
                going = word == "go" or (going and word != "hold")
                if word == "hold":
                    self.hold()
                print(json.dumps(self._told()), flush=True)
                due = max(due, time.monotonic() - BACKLOG_SECONDS)
            elif going:
                self._try_turn()
                due = max(due + 1 / self._rate, time.monotonic() - BACKLOG_SECONDS)

    def _try_turn(self) -> None:
        try:
            self.turn()
        except WarmshelfError as error:
            self.refused[error.reason] += 1
            if not error.retryable and error.reason not in {"SESSION_LOST", "LEASE_LOST", "DEADLINE_EXCEEDED"}:
                self.say_wrong(str(error))
            time.sleep(0.01)  # its daemon may be away

    def say_wrong(self, text: str) -> None:
        """Note what must not be."""
        self.counts["wrong"] += 1
        if len(self.wrong) < WRONG_COUNT_MAX:
            self.wrong.append(text)

    def compare(self, artifact_id: str, content: Content, lease: warmshelf.Lease) -> None:
        """Look at every byte."""
        self.counts["bytes_compared"] += 2 * content.tensor_bytes
        if text := content.fault(lease):
            self.say_wrong(f"{artifact_id}: {text}")

    def _told(self) -> dict[str, Any]:
        own = {"rss_kib": rss_kib_of(os.getpid()), "fds": len(os.listdir("/proc/self/fd"))}
        return {"counts": self.counts, "refused": self.refused, "wrong": self.wrong, "own": own, **self.more()}


class Reader(Part):
    """A worker: acquires, compares, releases."""

    def __init__(self, connect: Callable[[], warmshelf.Shelf], rate: float, seed: int, transport: str) -> None:
        super().__init__(connect, rate, seed)
        self._transport = transport
        self._seconds: list[float] = []  # of acquires of what is hot, since it was last asked

    def turn(self) -> None:
        is_hot = self.chance.random() < HOT_SHARE
        artifact_id, content = self.chance.choice([*(HOT if is_hot else COLD).items()])
        begun = time.perf_counter()
        with self.shelf.acquire(artifact_id, timeout=CALL_SECONDS) as lease:
            if is_hot:
                self._seconds.append(time.perf_counter() - begun)
            self.counts["acquires"] += 1
            self.counts[lease.transport] += 1
            if lease.transport != self._transport:
                self.say_wrong(f"{artifact_id} was {lease.transport}: {lease.fallback_reason}")
            self.compare(artifact_id, content, lease)

    def more(self) -> dict[str, Any]:
        seconds, self._seconds = sorted(self._seconds), []
        if not seconds:
            return {}
        return {"p50_ms": _ms(seconds, 0.5), "p99_ms": _ms(seconds, 0.99)}


def rss_kib_of(pid: int) -> int:
    """Return what a process has of memory that belongs to no file."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def _ms(ordered: list[float], share: float) -> float:
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)


class Registrar(Part):
    """Registers ever new IDs, acquires some, and removes the oldest; once begun, each is tried until it is done."""

    def __init__(self, connect: Callable[[], warmshelf.Shelf], rate: float, seed: int, name: str, models: str) -> None:
        super().__init__(connect, rate, seed)
        self._name = name
        self._models = Path(models)
        self._next = 0
        self._begun: int | None = None  # being registered
        self._live: list[int] = []
        self._going: list[int] = []  # being removed

    def turn(self) -> None:
        if self._going:
            self._remove(self._going[0])
        number = self._begun = self._next if self._begun is None else self._begun
        self._register(number)
        if self.chance.random() < ACQUIRED_SHARE:
            with self.shelf.acquire(self._id(number), timeout=CALL_SECONDS) as lease:
                self.counts["acquires"] += 1
                self.compare(self._id(number), POOL[number % len(POOL)], lease)

    def _register(self, number: int) -> None:
        source = source_of(self._models, POOL[number % len(POOL)])
        self.shelf.register(self._id(number), f"file://{source}")
        self.counts["registrations"] += 1
        self._begun, self._next = None, number + 1
        self._live.append(number)
        while len(self._live) > LIVE_COUNT:
            self._going.append(self._live.pop(0))

    def _remove(self, number: int) -> None:
        with suppress(ArtifactNotFound):  # it was done, and the answer was lost
            self.shelf.remove(self._id(number))
        self._going.remove(number)
        self.counts["removals"] += 1

    def hold(self) -> None:
        """Bring to an end what is begun: its daemon is there, or will be at once."""
        until = time.monotonic() + CALL_SECONDS
        while self._begun is not None or self._going:
            try:
                if self._begun is not None:
                    self._register(self._begun)
                if self._going:
                    self._remove(self._going[0])
            except WarmshelfError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)
        super().hold()

    def more(self) -> dict[str, Any]:
        return {"live": [self._id(number) for number in self._live]}

    def _id(self, number: int) -> str:
        return f"new/{self._name}/{number}"


class Mortals(Part):
    """Workers that are killed with leases in their hands; this process itself never calls, so that it can fork them."""

    def turn(self) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reading)
            self._live_on(writing)
        os.close(writing)
        has_leases = bool(select.select([reading], [], [], CALL_SECONDS)[0] and os.read(reading, 1))
        if has_leases:
            time.sleep(self.chance.uniform(0, 0.05))  # killed at any moment
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        self.counts["worker_deaths" if has_leases else "died_before"] += 1

    def _live_on(self, writing: int) -> None:
        with suppress(WarmshelfError):
            held = [self.shelf.acquire(one, timeout=CALL_SECONDS) for one in self.chance.sample([*HOT], 3)]
            os.write(writing, b"!")
            while held:
                self.shelf.acquire(self.chance.choice([*HOT]), timeout=CALL_SECONDS).release()
        os._exit(1)


def main() -> None:
    """Be one part."""
    part, address, rate, seed, *more = sys.argv[1:]
    tls = warmshelf.Tls(*more.pop().split(":"), server_name="localhost") if part == "streamed" else None
    arena = "/nonexistent" if part == "streamed" else None
    make: dict[str, Any] = {"registrar": Registrar, "mortals": Mortals, "mapped": Reader, "streamed": Reader}
    arguments = [part] if make[part] is Reader else more
    make[part](lambda: warmshelf.connect(address, arena=arena, tls=tls), float(rate), int(seed), *arguments).run()


if __name__ == "__main__":
    main()
