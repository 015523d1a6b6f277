"""What the demo found, and what is wrong with it.

Measures nothing, starts nothing and shows nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

NEARLY_ONE_COPY = 1.1
"""Mapped workers share one copy if arena and workers together hold less than this many."""


@dataclass(frozen=True, slots=True)
class PeerLoad:
    """One way to load without warmshelf: to have the tensors, and to have read every byte of them.

    What is shared is there once for all processes; what is their own, once for each.
    """

    seconds: float
    touched_seconds: float
    own_bytes: int
    shared_bytes: int

    def held_bytes(self, worker_count: int) -> int:
        """Memory of so many workers."""
        return self.shared_bytes + worker_count * self.own_bytes


@dataclass(frozen=True, slots=True)
class PeerFacts:
    """The same tensors without warmshelf, from disk; the text is the answer of a model with them."""

    text: str
    digest: str
    tensor_bytes: int
    safetensors_mapped: PeerLoad
    safetensors_copied: PeerLoad
    tensorizer: PeerLoad

    @property
    def loads(self) -> tuple[PeerLoad, PeerLoad, PeerLoad]:
        """All ways to load them."""
        return self.safetensors_mapped, self.safetensors_copied, self.tensorizer


@dataclass(frozen=True, slots=True)
class PeerAdapterFacts(PeerFacts):
    """The adapter; ``model_seconds`` is until it is in the model."""

    peft_model_seconds: float
    tensorizer_model_seconds: float


@dataclass(frozen=True, slots=True)
class Peers:
    """Model and adapter without warmshelf."""

    model: PeerFacts
    adapter: PeerAdapterFacts


@dataclass(frozen=True, slots=True)
class Acquired:
    """One acquire: seconds to have the tensors, and to have read every byte of them."""

    transport: str
    seconds: float
    touched_seconds: float
    digest: str
    text: str


@dataclass(frozen=True, slots=True)
class AdapterFacts(Acquired):
    """An acquire of an adapter; ``model_seconds`` is until it was in the model, its bytes read on the way."""

    artifact_id: str
    segment_id: str
    model_seconds: float


@dataclass(frozen=True, slots=True)
class WorkerFacts(Acquired):
    """One worker process; what ends in ``after`` it answered after the daemon was killed.

    ``text_after`` is without the adapters that it has by then.
    """

    wanted_transport: str
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
        return self.peers.model.tensor_bytes + self.peers.adapter.tensor_bytes

    @property
    def mapped(self) -> tuple[WorkerFacts, ...]:
        """The workers that map."""
        return tuple(worker for worker in self.workers if worker.transport == "mapped")

    @property
    def streamed(self) -> tuple[WorkerFacts, ...]:
        """The workers that do not."""
        return tuple(worker for worker in self.workers if worker.transport != "mapped")

    @property
    def mapped_bytes(self) -> int:
        """Memory of the weights for all workers that map: the arena and what is theirs alone."""
        return self.arena_bytes + sum(worker.own_bytes for worker in self.mapped)

    def faults(self) -> Iterator[str]:
        """Say everything that is not as it must be."""
        for number, worker in enumerate(self.workers, 1):
            for fault in _faults(worker, self.peers):
                yield f"worker {number} {fault}"
        if self.peers.adapter.text == self.peers.model.text:
            yield "the adapter changes nothing"
        if self.evicted_bytes < self.peers.adapter.tensor_bytes:
            yield f"evicting the adapter gave back {self.evicted_bytes} bytes of {self.peers.adapter.tensor_bytes}"
        if self.mapped_bytes > NEARLY_ONE_COPY * self.weights_bytes:
            yield f"{len(self.mapped)} mapped workers and the arena hold {self.mapped_bytes} bytes"


def _faults(worker: WorkerFacts, peers: Peers) -> Iterator[str]:
    acquired = [("the model", worker.transport, worker.digest, peers.model.digest)]
    acquired += [(use.artifact_id, use.transport, use.digest, peers.adapter.digest) for use in worker.adapters]
    for what, transport, digest, wanted in acquired:
        if transport != worker.wanted_transport:
            yield f"got {what} {transport}, not {worker.wanted_transport}"
        if digest != wanted:
            yield f"has other tensors of {what} than the file on disk"
    later = "after the daemon was killed"
    answers = [("", worker.text, peers.model.text), (f" {later}", worker.text_after, peers.model.text)]
    answers += [(f" with {use.artifact_id}", use.text, peers.adapter.text) for use in worker.adapters]
    answers += [(f" with the adapter {later}", worker.adapter_text_after, peers.adapter.text)]
    for how, text, wanted in answers:
        if text != wanted:
            yield f"answers {text!r}{how}, from disk it is {wanted!r}"
