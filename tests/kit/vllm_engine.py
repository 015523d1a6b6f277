"""A vLLM engine in a process of its own, which does what it is told. A program of the environment that has vLLM:

    .venv-vllm/bin/python tests/kit/vllm_engine.py

Takes one command a line on standard input, a JSON list of a method's name and its arguments, and
answers each with a line of JSON: ``{"ok": ...}`` or ``{"error": ...}``.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import sys
import time
from typing import Any

QUESTION = "What is the capital of France?"
TOKENS_MAX = 12


class OtherSignature:
    """A vLLM whose method has one more parameter than the one that the plugin was written for."""

    @staticmethod
    def put() -> None:
        from vllm.lora.peft_helper import PEFTHelper

        original = PEFTHelper.from_local_dir.__func__

        def from_local_dir(cls: Any, lora_path: str, max_position_embeddings: int | None, revision: str = "") -> Any:
            return original(cls, lora_path, max_position_embeddings)

        PEFTHelper.from_local_dir = classmethod(from_local_dir)


class Engine:
    def __init__(self) -> None:
        self.llm: Any = None
        self.second: Any = None
        self.asked: dict[str, Any] = {}

    def modules_after_import(self) -> list[str]:
        """What importing the plugin brings."""
        import warmshelf.vllm  # noqa: F401 - its import is what is looked at

        return sorted({name.partition(".")[0] for name in sys.modules})

    def register_twice(self) -> list[Any]:
        """Register, as vLLM does in each process; say what was done, and whether gRPC was used."""
        from vllm.lora.lora_model import LoRAModel
        from vllm.lora.resolver import LoRAResolverRegistry
        from vllm.model_executor.model_loader import get_model_loader

        import warmshelf.vllm
        from warmshelf import _channel

        seen = []
        for _ in range(2):
            warmshelf.vllm.register()
            seen.append((id(LoRAModel.from_local_checkpoint.__func__), id(LoRAResolverRegistry.resolvers["warmshelf"])))
        loader = type(get_model_loader(_load_config("warmshelf"))).__name__
        return [seen[0] == seen[1], loader, _channel._first_pid]

    def put(self, fault: str) -> None:
        globals()[fault].put()

    def get_in_a_fork(self, adapter: str) -> list[str]:
        """Ask for an adapter in a child of this process, which has not called yet, then here."""
        from warmshelf._engine_shelf import shelf_at

        shelf = shelf_at()
        reading, writing = os.pipe()
        if not os.fork():
            try:
                os.write(writing, shelf.get(adapter).artifact_id.encode())
            finally:
                os._exit(0)
        os.close(writing)
        with open(reading, "rb") as found:
            return [found.read().decode(), shelf.get(adapter).artifact_id]

    def scale(self, adapter: str, dtype: str) -> bool:
        """Load an adapter as a worker does and let vLLM scale it; say whether that was done where it is mapped."""
        import torch
        from vllm.lora.lora_model import LoRAModel
        from vllm.lora.peft_helper import PEFTHelper

        path = self._request(adapter, "").lora_path
        helper = PEFTHelper.from_local_dir(path, 256)
        every = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
        model = LoRAModel.from_local_checkpoint(
            path, every, helper, lora_model_id=99, device="cpu", dtype=getattr(torch, dtype)
        )
        (first, *_) = model.loras.values()
        before, place = first.lora_b.clone(), first.lora_b.data_ptr()
        for layer in model.loras.values():
            layer.optimize()
        return place == first.lora_b.data_ptr() and not torch.equal(before, first.lora_b)

    def make(self, **options: Any) -> float:
        from vllm import LLM

        began = time.perf_counter()
        self.llm = LLM(enforce_eager=True, max_model_len=256, max_num_seqs=8, dtype="bfloat16", seed=0, **options)
        return time.perf_counter() - began

    def answer(self, adapter: str = "", path: str = "", known: bool = False) -> list[int]:
        """Answer the question with the base, an adapter of the shelf or one asked for before, or one at a path."""
        request = self.asked[adapter] if known else self._request(adapter, path)
        return self._answer(request)

    def add(self, adapter: str, path: str) -> None:
        self.llm.llm_engine.add_lora(self._request(adapter, path))

    def first_answer(self, adapter: str) -> dict[str, Any]:
        """Add an adapter and answer with it; say its name, and how long the worker took to have it."""
        request = self._request(adapter, "")
        began = time.perf_counter()
        self.llm.llm_engine.add_lora(request)
        seconds = time.perf_counter() - began
        return {
            "name": request.lora_name,
            "path": request.lora_path,
            "seconds": seconds,
            "tokens": self._answer(request),
        }

    def numbers(self, adapters: list[str]) -> list[int]:
        return [self._request(adapter, "").lora_int_id for adapter in adapters]

    def reload(self) -> None:
        self.llm.collective_rpc("reload_weights")
        self.llm.reset_prefix_cache()

    def spoil(self) -> None:
        """Zero every parameter, so that nothing but a reload brings the right answer back."""
        self.llm.apply_model(lambda model: [part.data.zero_() for part in model.parameters()] and None)
        self.llm.reset_prefix_cache()

    def load(self, directory: str, load_format: str = "warmshelf", **extra: Any) -> str:
        """Load weights, with other options, into a second model that is zero; return a digest of its parameters."""
        import torch
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader import get_model_loader

        model = self._second_model()
        for part in model.parameters():
            part.data.zero_()
        whole_config = self.llm.llm_engine.vllm_config
        config = copy.copy(whole_config.model_config)
        config.model = directory
        with set_current_vllm_config(whole_config):
            get_model_loader(_load_config(load_format, extra)).load_weights(model, config)
        whole = hashlib.sha256()
        for name, part in sorted(model.named_parameters()):
            whole.update(name.encode())
            whole.update(part.data.contiguous().view(-1).view(torch.uint8).numpy())
        return whole.hexdigest()

    def _second_model(self) -> Any:
        """Return a model of the same shape as vLLM makes it: what it serves with is packed, and no longer loadable."""
        import torch
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader import get_model_loader
        from vllm.utils.torch_utils import set_default_torch_dtype

        if self.second is None:
            config = self.llm.llm_engine.vllm_config
            loader = get_model_loader(_load_config("auto"))
            dtype = config.model_config.dtype
            with set_current_vllm_config(config), set_default_torch_dtype(dtype), torch.device("cpu"):
                self.second = loader.create_model(config, config.model_config, prefix="second")
        return self.second

    def mapped(self, arena: str) -> int:
        """How many segments of the arena this process maps."""
        with open("/proc/self/maps") as maps:
            return len({line.split(None, 5)[5] for line in maps if arena in line})

    def _request(self, adapter: str, path: str) -> Any:
        from vllm.lora.request import LoRARequest

        from warmshelf.vllm import lora_request

        if path:
            return LoRARequest(adapter, 1 + sum(adapter.encode()), path)
        if adapter:
            self.asked[adapter] = lora_request(adapter)
        return self.asked.get(adapter)

    def _answer(self, request: Any) -> list[int]:
        from vllm import SamplingParams

        chat = [{"role": "user", "content": QUESTION}]
        sampling = SamplingParams(temperature=0, max_tokens=TOKENS_MAX)
        (output,) = self.llm.chat([chat], sampling, lora_request=request, use_tqdm=False)
        return list(output.outputs[0].token_ids)


def _load_config(load_format: str, extra: dict[str, Any] | None = None) -> Any:
    from vllm.config.load import LoadConfig

    return LoadConfig(load_format=load_format, model_loader_extra_config=extra or {})


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to standard output
    engine = Engine()
    for line in sys.stdin:
        method, arguments = json.loads(line)
        try:
            answer = {"ok": getattr(engine, method)(**arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
