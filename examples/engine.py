"""The inference engine of the demo: transformers and peft, given tensors and a few small files.

It does not know where the tensors come from. Nothing is copied: the parameters of model
and adapters are the very tensors that it is given.
"""

from __future__ import annotations

import gc
import hashlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from crc32c import crc32c
from peft import PeftModel
from transformers import AutoConfig, AutoTokenizer

import warmshelf.peft
import warmshelf.transformers

QUESTION = "What is the capital of France?"
ANSWER_TOKENS_MAX = 24

AS_IT_IS = {"low_cpu_mem_usage": True, "autocast_adapter_dtype": False}
"""Told to peft where it loads an adapter itself, as warmshelf.peft does: allocate nothing, and cast nothing."""

# peft asks transformers by the old name, each time that it adds adapters to a model.
warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)


class Engine:
    """A model and its tokenizer, ready to answer, with adapters or without."""

    def __init__(self, directory: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        # Several workers share the machine: threads would only spin against each other.
        torch.set_num_threads(1)
        self._tokenizer = AutoTokenizer.from_pretrained(directory)
        self._model = warmshelf.transformers.model_of(tensors, AutoConfig.from_pretrained(directory))
        self._adapted: PeftModel | None = None  # the same model, while it has adapters

    def adapt(self, name: str, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Add an adapter to the model, by its adapter_config.json and its tensors."""
        self._adapted = warmshelf.peft.add_adapter(self._adapted or self._model, name, config, tensors)

    def adapt_from_disk(self, name: str, directory: Path) -> None:
        """Let peft load an adapter from its directory: what ``adapt`` is compared with."""
        self._adapted = PeftModel.from_pretrained(self._model, directory, adapter_name=name, **AS_IT_IS).eval()

    def drop_adapters(self) -> None:
        """Make the model what it was, and let go of the adapters' tensors."""
        if self._adapted is not None:
            self._model, self._adapted = self._adapted.unload(), None
            gc.collect()  # peft's layers know each other in circles

    def answer(self, adapter: str = "") -> str:
        """Answer the demo's question, the same way every time: the likeliest token, again and again.

        With an adapter of that name, or as the model does without any.
        """
        asked = prompt(self._tokenizer)
        with self._using(adapter) as model:
            tokens = model.generate(**asked, max_new_tokens=ANSWER_TOKENS_MAX, do_sample=False)
        text: str = self._tokenizer.decode(tokens[0, asked["input_ids"].shape[1] :], skip_special_tokens=True)
        return text.strip()

    @contextmanager
    def _using(self, adapter: str) -> Iterator[Any]:
        if self._adapted is None:
            if adapter:
                raise ValueError(f"there is no adapter {adapter!r}")
            yield self._model
        elif adapter:
            self._adapted.set_adapter(adapter)
            yield self._adapted
        else:
            with self._adapted.disable_adapter():
                yield self._adapted


def prompt(tokenizer: Any) -> Mapping[str, torch.Tensor]:
    """Return the demo's question as a model is asked it."""
    asked: Mapping[str, torch.Tensor] = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    return asked


def touch(tensors: Mapping[str, torch.Tensor]) -> None:
    """Read every byte once, by a CRC that costs less than the page faults."""
    for tensor in tensors.values():
        crc32c(_bytes(tensor))


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return one SHA-256 over every name, dtype, shape and bit."""
    whole = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        whole.update(_bytes(tensor))
    return whole.hexdigest()


def _bytes(tensor: torch.Tensor) -> Any:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy()
