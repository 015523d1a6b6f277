"""What the demo compares with: the same weights, loaded by safetensors, tensorizer and peft.

    python -m examples.demo_peers DIRECTORY TENSORS_FILE ADAPTER_DIRECTORY ADAPTER_TENSORS_FILE

A process of its own that never talks to warmshelf. It prints one line of JSON, with
the answers of the model as read from disk among it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from tensorizer import TensorDeserializer

from examples import memory
from examples.demo_adapter import CONFIG_NAME, SAFETENSORS_NAME
from examples.demo_facts import PeerLoad
from examples.demo_model import WEIGHTS_NAME
from examples.engine import Engine, digest, touch

Tensors = Mapping[str, torch.Tensor]

COUNTS = (1, 2, 4)
"""Each peer is as fast as the best with so many threads, or of so many tries."""


def main() -> None:
    """Measure all, let the model answer, print what was found."""
    directory, tensors_file, adapter_directory, adapter_tensors_file = map(Path, sys.argv[1:])
    model, tensors = _facts(directory / WEIGHTS_NAME, tensors_file)
    adapter, _ = _facts(adapter_directory / SAFETENSORS_NAME, adapter_tensors_file)
    engine = Engine(directory, tensors)
    model["text"] = engine.answer()
    in_model = _in_model(engine, adapter_directory, adapter_tensors_file)
    print(json.dumps({"model": model, "adapter": {**adapter, **in_model}}))


def _facts(safetensors_file: Path, tensors_file: Path) -> tuple[dict[str, object], Tensors]:
    """Load the tensors in every way; return what that took, and the tensors."""
    mapped, _ = _measured(partial(_map_safetensors, safetensors_file))
    copied, tensors = _measured(partial(_copy_safetensors, safetensors_file))
    tensorizer, _ = _measured(partial(_load_tensorizer, tensors_file))
    facts = {
        "digest": digest(tensors),
        "tensor_bytes": sum(tensor.nbytes for tensor in tensors.values()),
        "safetensors_mapped": asdict(mapped),
        "safetensors_copied": asdict(copied),
        "tensorizer": asdict(tensorizer),
    }
    return facts, tensors


def _in_model(engine: Engine, directory: Path, tensors_file: Path) -> Mapping[str, object]:
    """Measure the same for an adapter until it is in the model; let the model answer with it."""
    config = json.loads((directory / CONFIG_NAME).read_bytes())

    def by_tensorizer(reader_count: int) -> None:
        engine.adapt("lora", config, _load_tensorizer(tensors_file, reader_count))

    def by_peft(_: int) -> None:
        engine.adapt_from_disk("lora", directory)

    tensorizer_seconds, peft_seconds = _best(engine, by_tensorizer), _best(engine, by_peft)
    return {
        "text": engine.answer("lora"),
        "peft_model_seconds": peft_seconds,
        "tensorizer_model_seconds": tensorizer_seconds,
    }


def _map_safetensors(file: Path, thread_count: int) -> Tensors:
    torch.set_num_threads(thread_count)
    tensors: Tensors = load_file(file)
    return tensors


def _copy_safetensors(file: Path, thread_count: int) -> Tensors:
    return {name: tensor.clone() for name, tensor in _map_safetensors(file, thread_count).items()}


def _load_tensorizer(file: Path, reader_count: int) -> Tensors:
    return dict(TensorDeserializer(str(file), device="cpu", num_readers=reader_count))


def _measured(load: Callable[[int], Tensors]) -> tuple[PeerLoad, Tensors]:
    """Load with every count; return the shortest times with the memory, and what was loaded last."""
    seconds, touched_seconds = [], []
    for count in COUNTS:
        began = time.perf_counter()
        tensors = load(count)
        seconds.append(time.perf_counter() - began)
        touch(tensors)
        touched_seconds.append(time.perf_counter() - began)
    held = memory.measure((tensor.data_ptr(), tensor.nbytes) for tensor in tensors.values())
    return PeerLoad(min(seconds), min(touched_seconds), held.own_bytes, held.shared_bytes), tensors


def _best(engine: Engine, adapt: Callable[[int], None]) -> float:
    """Adapt the model with every count; return the shortest time."""
    seconds = []
    for count in COUNTS:
        engine.drop_adapters()
        began = time.perf_counter()
        adapt(count)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


if __name__ == "__main__":
    main()
