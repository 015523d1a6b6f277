"""The engine's side of ``vllm_load``: a program of the environment that has vLLM.

    .venv-vllm/bin/python benchmarks/vllm_worker.py JSON

Times, in turns, the weights step of each loader into one model, and an adapter's way into the
engine. Prints the samples as JSON. Knows no daemon but by its address in the environment.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

WARMSHELF, HUGE = "warmshelf, 4 KiB pages", "warmshelf, huge pages"
DEFAULT, TENSORIZER = "vLLM's default loader", "vLLM's tensorizer loader"
SHELF, DISK = "by its ID", "vLLM, from its directory"
TOKENS_MAX = 256


def main() -> None:
    """Measure what was asked for."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to standard output
    print(json.dumps(_measure(**json.loads(sys.argv[1]))), file=answer, flush=True)


def _measure(
    model: str, prepared: str, tensors: str, huge_address: str, adapter: str, adapter_id: str, rounds: int
) -> dict[str, Any]:
    from vllm import LLM  # noqa: PLC0415 - sets up its logging, which takes standard output

    engine = LLM(
        model=prepared,
        load_format="warmshelf",
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=TOKENS_MAX,
        enable_lora=True,
        max_lora_rank=16,
        max_loras=1,
        max_cpu_loras=1,
    )
    huge = {HUGE: ("warmshelf", prepared, {"address": huge_address})} if huge_address else {}
    loaders = {
        WARMSHELF: ("warmshelf", prepared, {}),
        **huge,
        DEFAULT: ("auto", model, {}),
        TENSORIZER: ("tensorizer", model, {"tensorizer_config": {"tensorizer_uri": tensors}}),
    }
    return {
        "weights": _weights(engine.llm_engine.vllm_config, loaders, rounds),
        "adapters": _adapters(engine.llm_engine, adapter, adapter_id, rounds),
    }


def _weights(config: Any, loaders: Mapping[str, tuple[str, str, Any]], rounds: int) -> dict[str, list[float]]:
    """Time each loader's weights step; one round before the others brings files and code into memory."""
    import torch  # noqa: PLC0415
    from vllm.config import set_current_vllm_config  # noqa: PLC0415
    from vllm.config.load import LoadConfig  # noqa: PLC0415
    from vllm.model_executor.model_loader import get_model_loader  # noqa: PLC0415
    from vllm.utils.torch_utils import set_default_torch_dtype  # noqa: PLC0415

    samples: dict[str, list[float]] = {label: [] for label in loaders}
    with set_current_vllm_config(config), set_default_torch_dtype(config.model_config.dtype), torch.device("cpu"):
        model = get_model_loader(LoadConfig()).create_model(config, config.model_config, prefix="measured")
        for number in range(rounds + 1):
            for label, (load_format, directory, extra) in loaders.items():
                its_config = copy.copy(config.model_config)
                its_config.model = directory
                load = LoadConfig(load_format=load_format, model_loader_extra_config=extra, use_tqdm_on_load=False)
                gc.collect()
                began = time.perf_counter()
                get_model_loader(load).load_weights(model, its_config)
                if number:
                    samples[label].append(time.perf_counter() - began)
    return samples


def _adapters(engine: Any, directory: str, adapter_id: str, rounds: int) -> dict[str, list[float]]:
    """Time how long the worker takes to have an adapter that it has not: by its ID, and from disk."""
    from vllm.lora.request import LoRARequest  # noqa: PLC0415

    from warmshelf.vllm import lora_request  # noqa: PLC0415

    requests = {SHELF: lora_request(adapter_id), DISK: LoRARequest("disk", 1000, directory)}
    samples: dict[str, list[float]] = {label: [] for label in requests}
    for number in range(rounds + 1):
        for label, request in requests.items():
            began = time.perf_counter()
            engine.add_lora(request)
            if number:
                samples[label].append(time.perf_counter() - began)
            engine.remove_lora(request.lora_int_id)
            gc.collect()
    return samples


if __name__ == "__main__":
    main()
