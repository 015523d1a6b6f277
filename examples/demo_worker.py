"""An inference worker that knows its model by ID, and nothing else of it.

    python -m examples.demo_worker ADDRESS ID

It takes commands on standard input, one a line, and answers each with a line of JSON.
At the end of its input it closes its connection, which ends its lease, and exits.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch

import warmshelf
import warmshelf.torch
from examples import memory
from examples.engine import Engine, digest

ACQUIRE_SECONDS_MAX = 60.0


def main() -> None:
    """Say that all is imported, then do what is asked."""
    address, artifact_id = sys.argv[1:]
    with warmshelf.connect(address, holder="demo worker") as shelf:
        worker = Worker(shelf, artifact_id)
        commands = {"acquire": worker.acquire, "answer": worker.answer, "memory": worker.memory}
        print("{}", flush=True)
        for line in sys.stdin:
            print(json.dumps(commands[line.strip()]()), flush=True)


class Worker:
    """Holds one lease, and a model made of what it leases."""

    def __init__(self, shelf: warmshelf.Shelf, artifact_id: str) -> None:
        self._shelf = shelf
        self._artifact_id = artifact_id
        self._tensors: dict[str, torch.Tensor] = {}
        self._engine: Engine | None = None

    def acquire(self) -> Mapping[str, object]:
        """Lease the model, make its tensors and an engine of them."""
        began = time.perf_counter()
        lease = self._shelf.acquire(self._artifact_id, timeout=ACQUIRE_SECONDS_MAX)
        self._tensors = warmshelf.torch.tensors(lease)
        seconds = time.perf_counter() - began
        # transformers wants config and tokenizer in a directory; the lease has them.
        with tempfile.TemporaryDirectory(prefix="warmshelf-") as directory:
            for name, data in lease.files.items():
                Path(directory, name).write_bytes(data)
            self._engine = Engine(Path(directory), self._tensors)
        return {"transport": lease.transport, "seconds": seconds, "digest": digest(self._tensors)}

    def answer(self) -> Mapping[str, object]:
        """Let the model answer."""
        return {"text": self._engine.answer() if self._engine else ""}

    def memory(self) -> Mapping[str, object]:
        """Say what the tensors take in this process."""
        held = memory.measure((tensor.data_ptr(), tensor.nbytes) for tensor in self._tensors.values())
        return {"own_bytes": held.own_bytes, "shared_bytes": held.shared_bytes}


if __name__ == "__main__":
    main()
