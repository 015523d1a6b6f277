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
class PeerAdapter:
    """The adapter without warmshelf, from disk; ``model_seconds`` is until it is in the model."""

    text: str
    digest: str
    tensor_bytes: int
    tensor_count: int
    safetensors_seconds: float
    safetensors_bytes: int
    tensorizer_seconds: float
    tensorizer_bytes: int
    peft_model_seconds: float
    tensorizer_model_seconds: float


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
    adapter: PeerAdapter


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """One acquire of an adapter: ``seconds`` to its bytes, ``model_seconds`` until it was in the model."""

    when: str
    artifact_id: str
    transport: str
    seconds: float
    model_seconds: float
    digest: str
    segment_id: str
    text: str


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One worker process; what ends in ``after`` it answered after the daemon was killed.

    ``text_after`` is without the adapters that it has by then.
    """

    wanted_transport: str
    transport: str
    seconds: float
    digest: str
    text: str
    adapters: tuple[AdapterFacts, ...]
    text_after: str
    adapter_text_after: str
    own_bytes: int


@dataclass(frozen=True, slots=True)
class Facts:
    """All of one run. The last of the workers came after the restart."""

    peers: Peers
    start_seconds: float
    load_seconds: float
    evicted_bytes: int
    restart_seconds: float
    arena_bytes: int
    workers: tuple[WorkerFacts, ...]

    @property
    def weights_bytes(self) -> int:
        """Size of all tensors: the model's and the adapter's."""
        return self.peers.tensor_bytes + self.peers.adapter.tensor_bytes

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
            for fault in _faults(worker, self.peers):
                yield f"worker {number} {fault}"
        if self.peers.adapter.text == self.peers.text:
            yield "the adapter changes nothing"
        if self.evicted_bytes < self.peers.adapter.tensor_bytes:
            yield f"evicting the adapter gave back {_megabytes(self.evicted_bytes)}"
        if self.mapped_bytes > NEARLY_ONE_COPY * self.weights_bytes:
            yield f"{self.mapped_count} mapped workers and the arena hold {_megabytes(self.mapped_bytes)}"


def _faults(worker: WorkerFacts, peers: Peers) -> Iterator[str]:
    acquired = [("the model", worker.transport, worker.digest, peers.digest)]
    acquired += [(use.artifact_id, use.transport, use.digest, peers.adapter.digest) for use in worker.adapters]
    for what, transport, digest, wanted in acquired:
        if transport != worker.wanted_transport:
            yield f"got {what} {transport}, not {worker.wanted_transport}"
        if digest != wanted:
            yield f"has other tensors of {what} than the file on disk"
    later = "after the daemon was killed"
    answers = [("", worker.text, peers.text), (f" {later}", worker.text_after, peers.text)]
    answers += [(f" with {use.artifact_id}", use.text, peers.adapter.text) for use in worker.adapters]
    answers += [(f" with the adapter {later}", worker.adapter_text_after, peers.adapter.text)]
    for how, text, wanted in answers:
        if text != wanted:
            yield f"answers {text!r}{how}, from disk it is {wanted!r}"


def table(facts: Facts) -> Table:
    """Return the table of times and memory, each beside the peers' own."""
    shown = Table(title="the same weights, in one run", title_justify="left")
    shown.add_column("")
    for name in ("warmshelf", "safetensors", "tensorizer"):
        shown.add_column(name, justify="right")
    sections = {"the model": _model_rows(facts), "the adapter": _adapter_rows(facts), "memory": _memory_rows(facts)}
    for name, rows in sections.items():
        shown.add_row(name, style="bold")
        for row in rows:
            shown.add_row(*row)
        shown.add_section()
    return shown


CAPTION = (
    "The files lie in the page cache. safetensors: load_file and a copy of every tensor, so that all bytes are read.\n"
    "Of it and of tensorizer the best of 1, 2 and 4 threads. In the model: until peft has the adapter; beside it\n"
    "PeftModel.from_pretrained and tensorizer, best of 3. Most of that is peft's work on the model, which warmshelf\n"
    "does not spare. Memory is what the weights take, in pages: of warmshelf the arena and what workers have of their\n"
    "own, of the others one process times the workers. The streamed worker stands for one on another host, where its\n"
    "copies would lie: one for each form of the adapter."
)


def _model_rows(facts: Facts) -> Iterator[tuple[str, ...]]:
    peers, workers = facts.peers, facts.workers
    once, again = _beside(peers)
    yield "cold load", _time(facts.load_seconds), *once
    for worker in workers[:-1]:
        yield f"next worker, {worker.transport}", _time(worker.seconds), *again
    yield "restart, until ready", _time(facts.restart_seconds)
    yield f"then a worker, {workers[-1].transport}", _time(workers[-1].seconds), *again


def _adapter_rows(facts: Facts) -> Iterator[tuple[str, ...]]:
    peer, uses = facts.peers.adapter, [use for worker in facts.workers for use in worker.adapters]
    once, again = _beside(peer)
    for number, use in enumerate(uses):
        yield f"{use.when}, {use.transport}", _time(use.seconds), *(again if number else once)
    fastest = min(use.model_seconds for use in uses)
    yield "in the model, at best", _time(fastest), _time(peer.peft_model_seconds), _time(peer.tensorizer_model_seconds)


def _memory_rows(facts: Facts) -> Iterator[tuple[str, ...]]:
    peers, workers = facts.peers, facts.workers
    each = (
        peers.safetensors_bytes + peers.adapter.safetensors_bytes,
        peers.tensorizer_bytes + peers.adapter.tensorizer_bytes,
    )
    streamed_bytes = sum(worker.own_bytes for worker in workers if worker.transport != "mapped")
    for who, count, held_bytes in (
        (f"{facts.mapped_count} mapped", facts.mapped_count, facts.mapped_bytes),
        (f"all {len(workers)}", len(workers), facts.mapped_bytes + streamed_bytes),
    ):
        yield who, *(_copies(facts, taken) for taken in (held_bytes, *(count * own for own in each)))


def _beside(peer: Peers | PeerAdapter) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return what the peers take, and how that is shown for each worker after the first."""
    safetensors, tensorizer = _time(peer.safetensors_seconds), _time(peer.tensorizer_seconds)
    return (safetensors, tensorizer), (f"{safetensors} again", f"{tensorizer} again")


def _copies(facts: Facts, held_bytes: int) -> str:
    return f"{_megabytes(held_bytes)} = {held_bytes / facts.weights_bytes:.1f} x"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _megabytes(count: int) -> str:
    return f"{count / MEGABYTE:,.0f} MB"
