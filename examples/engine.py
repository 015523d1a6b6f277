"""The inference engine of the demo: transformers, given tensors and a few small files.

It does not know where the tensors come from. Nothing is copied: the model's
parameters are the very tensors that it is given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from accelerate import init_empty_weights
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

QUESTION = "What is the capital of France?"
ANSWER_TOKENS_MAX = 24


class Engine:
    """A model and its tokenizer, ready to answer."""

    def __init__(self, directory: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        # Several workers share the machine: threads would only spin against each other.
        torch.set_num_threads(1)
        self._tokenizer = AutoTokenizer.from_pretrained(directory)
        self._model = _build(directory, tensors)

    def answer(self) -> str:
        """Answer the demo's question, the same way every time: the likeliest token, again and again."""
        prompt = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        tokens = self._model.generate(**prompt, max_new_tokens=ANSWER_TOKENS_MAX, do_sample=False)
        text: str = self._tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
        return text.strip()


def _build(directory: Path, tensors: Mapping[str, torch.Tensor]) -> torch.nn.Module:
    """Return the model whose parameters are these tensors.

    Tied names (here the output layer, tied to the embeddings) are not in the file, so
    they are given before: then loading can be strict.
    """
    config = AutoConfig.from_pretrained(directory)
    with init_empty_weights(include_buffers=False):
        model: torch.nn.Module = AutoModelForCausalLM.from_config(config, dtype=config.dtype)
    tied = {name: tensors[same] for name, same in model.all_tied_weights_keys.items() if same in tensors}
    model.load_state_dict({**tied, **tensors}, strict=True, assign=True)
    model.tie_weights()
    return model.eval()


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return one SHA-256 over every name, dtype, shape and bit."""
    whole = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        whole.update(tensor.contiguous().view(-1).view(torch.uint8).numpy())
    return whole.hexdigest()
