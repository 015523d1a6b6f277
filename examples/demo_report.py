"""What the demo found: its facts, what is wrong with them, and how they are shown.

Measures nothing and starts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.table import Table

MEGABYTE = 1e6

NEARLY_ONE_COPY = 1.1
"""Mapped workers share one copy if arena and workers together hold less than this many."""


@dataclass(frozen=True, slots=True)
class Peers:
    """The same weights without warmshelf: from disk, by safetensors and by tensorizer."""

    text: str
    digest: str
    tensor_bytes: int
    tensor_count: int
    safetensors_seconds: float
    safetensors_bytes: int
    tensorizer_seconds: float
    tensorizer_bytes: int


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One worker process; ``text_after`` is its answer after the daemon was killed."""

    wanted_transport: str
    transport: str
    seconds: float
    digest: str
    text: str
    text_after: str
    own_bytes: int


@dataclass(frozen=True, slots=True)
class Facts:
    """All of one run. The last of the workers came after the restart."""

    peers: Peers
    start_seconds: float
    load_seconds: float
    restart_seconds: float
    arena_bytes: int
    workers: tuple[WorkerFacts, ...]

    @property
    def mapped_bytes(self) -> int:
        """Memory of the weights for all workers that map: the arena and what is theirs alone."""
        return self.arena_bytes + sum(worker.own_bytes for worker in self.workers if worker.transport == "mapped")

    @property
    def mapped_count(self) -> int:
        """How many workers map."""
        return sum(worker.transport == "mapped" for worker in self.workers)

    def faults(self) -> Iterator[str]:
        """Say everything that is not as it must be."""
        for number, worker in enumerate(self.workers, 1):
            if worker.transport != worker.wanted_transport:
                yield f"worker {number} got its bytes {worker.transport}, not {worker.wanted_transport}"
            if worker.digest != self.peers.digest:
                yield f"worker {number} has other tensors than the file on disk"
            if worker.text != self.peers.text:
                yield f"worker {number} answers {worker.text!r}, from disk it is {self.peers.text!r}"
            if worker.text_after != worker.text:
                yield f"worker {number} answers {worker.text_after!r} after the daemon was killed"
        if self.mapped_bytes > NEARLY_ONE_COPY * self.peers.tensor_bytes:
            yield f"{self.mapped_count} mapped workers and the arena hold {_megabytes(self.mapped_bytes)}"


def table(facts: Facts) -> Table:
    """Return the table of times and memory, each beside the peers' own."""
    peers, workers = facts.peers, facts.workers
    again = (f"{_time(peers.safetensors_seconds)} again", f"{_time(peers.tensorizer_seconds)} again")
    shown = Table(title="the same weights, in one run", title_justify="left")
    shown.add_column("")
    for name in ("warmshelf", "safetensors", "tensorizer"):
        shown.add_column(name, justify="right")
    shown.add_row(
        "cold load",
        _time(facts.load_seconds),
        _time(peers.safetensors_seconds),
        _time(peers.tensorizer_seconds),
    )
    for worker in workers[:-1]:
        shown.add_row(f"next worker, {worker.transport}", _time(worker.seconds), *again)
    shown.add_row("restart, until ready", _time(facts.restart_seconds), "", "")
    shown.add_row(f"then a worker, {workers[-1].transport}", _time(workers[-1].seconds), *again)
    streamed_bytes = sum(worker.own_bytes for worker in workers if worker.transport != "mapped")
    for who, count, held_bytes in (
        (f"{facts.mapped_count} mapped", facts.mapped_count, facts.mapped_bytes),
        (f"all {len(workers)}", len(workers), facts.mapped_bytes + streamed_bytes),
    ):
        each_its_own = (count * peers.safetensors_bytes, count * peers.tensorizer_bytes)
        shown.add_row(f"memory of {who}", *(_copies(facts, taken) for taken in (held_bytes, *each_its_own)))
    return shown


CAPTION = (
    "The file lies in the page cache. safetensors: load_file and a copy of every tensor, so that all bytes are read.\n"
    "Of it and of tensorizer the best of 1, 2 and 4 threads. Memory is what the weights take, in pages: of warmshelf\n"
    "the arena and what workers have of their own, of the others one process times the workers. The streamed worker\n"
    "stands for one on another host, where its copy would lie."
)


def _copies(facts: Facts, held_bytes: int) -> str:
    return f"{_megabytes(held_bytes)} = {held_bytes / facts.peers.tensor_bytes:.1f} x"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _megabytes(count: int) -> str:
    return f"{count / MEGABYTE:,.0f} MB"
