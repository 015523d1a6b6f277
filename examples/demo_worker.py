"""An inference worker that knows model and adapters by ID, and nothing else of them.

    python -m examples.demo_worker ADDRESS ID

It takes commands on standard input, one a line, and answers each with a line of JSON.
At the end of its input it closes its connection, which ends its leases, and exits.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

import warmshelf
import warmshelf.torch
from examples import memory
from examples.engine import Engine, digest, touch

ACQUIRE_SECONDS_MAX = 60.0


def main() -> None:
    """Say that all is imported, then do what is asked."""
    address, artifact_id = sys.argv[1:]
    with warmshelf.connect(address, holder="demo worker") as shelf:
        worker = Worker(shelf)
        commands: dict[str, Callable[..., Mapping[str, object]]] = {
            "acquire": partial(worker.acquire, artifact_id),
            "adapt": worker.adapt,
            "answer": worker.answer,
            "drop": worker.drop,
            "memory": worker.memory,
        }
        print("{}", flush=True)
        for line in sys.stdin:
            command, *arguments = line.split()
            print(json.dumps(commands[command](*arguments)), flush=True)


class Worker:
    """Holds leases, a model made of what it leases, and adapters in it."""

    def __init__(self, shelf: warmshelf.Shelf) -> None:
        self._shelf = shelf
        self._tensors: dict[str, dict[str, torch.Tensor]] = {}  # by ID, as are the leases
        self._leases: dict[str, warmshelf.Lease] = {}
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """The engine, once there is one."""
        if self._engine is None:
            raise RuntimeError("nothing has been acquired yet")
        return self._engine

    def acquire(self, artifact_id: str) -> Mapping[str, object]:
        """Lease the model, make its tensors and an engine of them."""
        lease, tensors, times = self._lease(artifact_id)
        # transformers wants config and tokenizer in a directory; the lease has them.
        with tempfile.TemporaryDirectory(prefix="warmshelf-") as directory:
            for name, data in lease.files.items():
                Path(directory, name).write_bytes(data)
            self._engine = Engine(Path(directory), tensors)
        return {"transport": lease.transport, **times, "digest": digest(tensors)}

    def adapt(self, artifact_id: str) -> Mapping[str, object]:
        """Lease an adapter, add it to the model, answer with it."""
        began = time.perf_counter()
        lease, tensors, times = self._lease(artifact_id)
        self.engine.adapt(artifact_id, lease.config, tensors)
        return {
            "artifact_id": artifact_id,
            "transport": lease.transport,
            **times,
            "model_seconds": time.perf_counter() - began,
            "digest": digest(tensors),
            "segment_id": lease.layout.segments[0].segment_id,
            "text": self.engine.answer(artifact_id),
        }

    def answer(self, adapter_id: str = "") -> Mapping[str, object]:
        """Let the model answer, with an adapter or without."""
        return {"text": self.engine.answer(adapter_id)}

    def drop(self, *adapter_ids: str) -> Mapping[str, object]:
        """Take every adapter out of the model and release these."""
        for artifact_id in adapter_ids:
            self._leases.pop(artifact_id).release()
            del self._tensors[artifact_id]
        self.engine.drop_adapters()
        return {}

    def memory(self) -> Mapping[str, object]:
        """Say what the tensors take in this process."""
        tensors = [tensor for some in self._tensors.values() for tensor in some.values()]
        held = memory.measure((tensor.data_ptr(), tensor.nbytes) for tensor in tensors)
        return {"own_bytes": held.own_bytes, "shared_bytes": held.shared_bytes}

    def _lease(self, artifact_id: str) -> tuple[warmshelf.Lease, dict[str, torch.Tensor], dict[str, float]]:
        """Return a lease, its tensors, and how many seconds it took to have them and to have read them."""
        began = time.perf_counter()
        lease = self._shelf.acquire(artifact_id, timeout=ACQUIRE_SECONDS_MAX)
        tensors = warmshelf.torch.tensors(lease)
        seconds = time.perf_counter() - began
        touch(tensors)
        touched_seconds = time.perf_counter() - began
        self._leases[artifact_id], self._tensors[artifact_id] = lease, tensors
        return lease, tensors, {"seconds": seconds, "touched_seconds": touched_seconds}


if __name__ == "__main__":
    main()
