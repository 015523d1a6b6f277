"""What the demo compares with: the same weights, loaded by safetensors and by tensorizer.

    python -m examples.demo_peers DIRECTORY TENSORS_FILE

A process of its own that never talks to warmshelf. It prints one line of JSON, with
the answer of the model as read from disk among it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from tensorizer import TensorDeserializer

from examples import memory
from examples.demo_model import WEIGHTS_NAME
from examples.engine import Engine, digest

THREAD_COUNTS = (1, 2, 4)
"""Each peer is as fast as the best of these."""


def main() -> None:
    """Measure both, let the model answer, print all of it."""
    directory, tensors_file = map(Path, sys.argv[1:])
    safetensors = [_timed(partial(_load_safetensors, directory / WEIGHTS_NAME, count)) for count in THREAD_COUNTS]
    tensorizer = [_timed(partial(_load_tensorizer, tensors_file, count)) for count in THREAD_COUNTS]
    with_safetensors, with_tensorizer = safetensors[0][0], tensorizer[0][0]
    facts = {
        "text": Engine(directory, with_safetensors).answer(),
        "digest": digest(with_safetensors),
        "tensor_bytes": sum(tensor.nbytes for tensor in with_safetensors.values()),
        "tensor_count": len(with_safetensors),
        "safetensors_seconds": min(seconds for _, seconds in safetensors),
        "safetensors_bytes": _own_bytes(with_safetensors),
        "tensorizer_seconds": min(seconds for _, seconds in tensorizer),
        "tensorizer_bytes": _own_bytes(with_tensorizer),
    }
    print(json.dumps(facts))


def _load_safetensors(file: Path, thread_count: int) -> Mapping[str, torch.Tensor]:
    """Load and touch every byte: load_file alone only maps the file."""
    torch.set_num_threads(thread_count)
    return {name: tensor.clone() for name, tensor in load_file(file).items()}


def _load_tensorizer(file: Path, reader_count: int) -> Mapping[str, torch.Tensor]:
    return dict(TensorDeserializer(str(file), device="cpu", num_readers=reader_count))


def _timed(load: Callable[[], Mapping[str, torch.Tensor]]) -> tuple[Mapping[str, torch.Tensor], float]:
    began = time.perf_counter()
    tensors = load()
    return tensors, time.perf_counter() - began


def _own_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    return memory.measure((tensor.data_ptr(), tensor.nbytes) for tensor in tensors.values()).own_bytes


if __name__ == "__main__":
    main()
