"""A worker that reads the same artifacts over and over, whatever becomes of the daemon.

``python -m killing.worker mapped|streamed ADDRESS SEED ID:NUMBER:ADAPTER ...``. They must be
resident at every moment. At each line of input it tells in JSON what it has read so far,
and what was wrong.
"""

from __future__ import annotations

import json
import random
import select
import sys
from dataclasses import asdict, dataclass, field

import warmshelf
from killing.truth import Content, differs
from kit.processes import read_all
from warmshelf.errors import WarmshelfError

PAUSE_SECONDS = 0.02
"""Between two rounds, so that a worker loads a core no more than an engine does."""

ACQUIRE_SECONDS = 1.0


@dataclass
class Report:
    """What a worker has seen."""

    transport: str
    reads: int = 0
    bytes_read: int = 0
    refused: int = 0
    acquired: int = 0
    wrong: list[str] = field(default_factory=list)


class Reader:
    """Leases, compares, and lets go by chance."""

    def __init__(self, transport: str, address: str, seed: int, contents: dict[str, Content]) -> None:
        self.report = Report(transport)
        self._shelf = warmshelf.connect(address, arena=None if transport == "mapped" else "/nonexistent")
        self._contents = contents
        self._random = random.Random(seed)
        self._leases: dict[str, warmshelf.Lease] = {}

    def round(self) -> None:
        """Look at every artifact once: what is held from before, and what has to be acquired."""
        for artifact_id in self._contents:
            if artifact_id not in self._leases and not self._acquire(artifact_id):
                continue
            self._compare(artifact_id)
            if self.report.transport == "streamed" or self._random.random() < 0.2:
                self._leases.pop(artifact_id).release()

    def _acquire(self, artifact_id: str) -> bool:
        try:
            lease = self._shelf.acquire(artifact_id, timeout=ACQUIRE_SECONDS, resident_only=True)
        except WarmshelfError as error:
            self.report.refused += 1
            if not error.retryable and error.reason not in {"SESSION_LOST", "LEASE_LOST", "DEADLINE_EXCEEDED"}:
                self._wrong(f"{artifact_id}: {error}")
            return False
        if lease.transport != self.report.transport:
            self._wrong(f"{artifact_id} was {lease.transport}: {lease.fallback_reason}")
        self.report.acquired += 1
        self._leases[artifact_id] = lease
        return True

    def _compare(self, artifact_id: str) -> None:
        found = read_all(self._leases[artifact_id])
        self.report.reads += 1
        self.report.bytes_read += sum(map(len, found.values()))
        if text := differs(found, (self._contents[artifact_id],)):
            self._wrong(f"{artifact_id}: {text}")

    def _wrong(self, text: str) -> None:
        self.report.wrong.append(text)


def main() -> None:
    """Read until the input ends."""
    transport, address, seed, *kept = sys.argv[1:]
    contents = {}
    for one in kept:
        artifact_id, number, is_adapter = one.split(":")
        contents[artifact_id] = Content(int(number), is_adapter=bool(int(is_adapter)))
    reader = Reader(transport, address, int(seed), contents)
    while True:
        reader.round()
        if select.select([sys.stdin], [], [], PAUSE_SECONDS)[0]:
            if not sys.stdin.readline():
                return
            print(json.dumps(asdict(reader.report)), flush=True)


if __name__ == "__main__":
    main()
