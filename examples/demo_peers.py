"""What the demo compares with: the same weights, loaded by safetensors, tensorizer and peft.

    python -m examples.demo_peers DIRECTORY TENSORS_FILE ADAPTER_DIRECTORY ADAPTER_TENSORS_FILE

A process of its own that never talks to warmshelf. It prints one line of JSON, with
the answers of the model as read from disk among it.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import load_file
from tensorizer import TensorDeserializer

from examples import memory
from examples.demo_adapter import CONFIG_NAME, SAFETENSORS_NAME
from examples.demo_model import WEIGHTS_NAME
from examples.engine import Engine, digest

T = TypeVar("T")
Tensors = Mapping[str, torch.Tensor]

COUNTS = (1, 2, 4)
"""Each peer is as fast as the best with so many threads, or of so many tries."""


def main() -> None:
    """Measure all, let the model answer, print what was found."""
    directory, tensors_file, adapter_directory, adapter_tensors_file = map(Path, sys.argv[1:])
    facts, tensors = _facts(directory / WEIGHTS_NAME, tensors_file)
    adapter, _ = _facts(adapter_directory / SAFETENSORS_NAME, adapter_tensors_file)
    engine = Engine(directory, tensors)
    text = engine.answer()
    in_model = _in_model(engine, adapter_directory, adapter_tensors_file)
    print(json.dumps({**facts, "text": text, "adapter": {**adapter, **in_model}}))


def _facts(safetensors_file: Path, tensors_file: Path) -> tuple[Mapping[str, object], Tensors]:
    """Measure how long the tensors take and how much memory; return that and the tensors."""
    with_safetensors, safetensors_seconds = _best(partial(_load_safetensors, safetensors_file))
    with_tensorizer, tensorizer_seconds = _best(partial(_load_tensorizer, tensors_file))
    facts = {
        "digest": digest(with_safetensors),
        "tensor_bytes": sum(tensor.nbytes for tensor in with_safetensors.values()),
        "tensor_count": len(with_safetensors),
        "safetensors_seconds": safetensors_seconds,
        "safetensors_bytes": _own_bytes(with_safetensors),
        "tensorizer_seconds": tensorizer_seconds,
        "tensorizer_bytes": _own_bytes(with_tensorizer),
    }
    return facts, with_safetensors


def _in_model(engine: Engine, directory: Path, tensors_file: Path) -> Mapping[str, object]:
    """Measure the same for an adapter until it is in the model; let the model answer with it."""
    config = json.loads((directory / CONFIG_NAME).read_bytes())

    def by_tensorizer(reader_count: int) -> None:
        engine.adapt("lora", config, _load_tensorizer(tensors_file, reader_count))

    def by_peft(_: int) -> None:
        engine.adapt_from_disk("lora", directory)

    _, tensorizer_seconds = _best(by_tensorizer, before=engine.drop_adapters)
    _, peft_seconds = _best(by_peft, before=engine.drop_adapters)
    return {
        "text": engine.answer("lora"),
        "peft_model_seconds": peft_seconds,
        "tensorizer_model_seconds": tensorizer_seconds,
    }


def _load_safetensors(file: Path, thread_count: int) -> Tensors:
    """Load and touch every byte: load_file alone only maps the file."""
    torch.set_num_threads(thread_count)
    return {name: tensor.clone() for name, tensor in load_file(file).items()}


def _load_tensorizer(file: Path, reader_count: int) -> Tensors:
    return dict(TensorDeserializer(str(file), device="cpu", num_readers=reader_count))


def _best(load: Callable[[int], T], before: Callable[[], None] = lambda: None) -> tuple[T, float]:
    """Load with every count; return what was loaded last, and the shortest time."""
    shortest = math.inf
    for count in COUNTS:
        before()
        began = time.perf_counter()
        loaded = load(count)
        shortest = min(shortest, time.perf_counter() - began)
    return loaded, shortest


def _own_bytes(tensors: Tensors) -> int:
    return memory.measure((tensor.data_ptr(), tensor.nbytes) for tensor in tensors.values()).own_bytes


if __name__ == "__main__":
    main()
