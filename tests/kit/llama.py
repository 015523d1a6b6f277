"""A tiny random Llama and adapters for it, made by transformers and PEFT themselves."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

VOCABULARY, WIDTH, LAYER_COUNT = 32, 16, 3
torch.set_num_threads(1)  # more would only wait for each other at this size

TOKENS = torch.tensor([[1, 5, 9, 2, 17, 4, 30, 3]])


def tiny_llama(*, tied: bool = False, dtype: torch.dtype = torch.bfloat16) -> Any:
    """Return a Llama of 3 layers with random weights, the same every time."""
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYER_COUNT,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=tied,
        attention_bias=True,
        pad_token_id=0,
        initializer_range=0.3,  # so large that the order of tokens matters
        dtype=dtype,
    )
    with _quiet():
        return transformers.AutoModelForCausalLM.from_config(config).eval()


def save_model(model: Any, directory: Path) -> Path:
    """Save a model as transformers does."""
    with _quiet():
        model.save_pretrained(directory)
    return directory


def save_adapter(model: Any, directory: Path, *, seed: int = 1, **fields: Any) -> Path:
    """Save an adapter with a config of the given fields and random weights, as PEFT does; the model stays as it is."""
    torch.manual_seed(seed)
    fields = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **fields}
    with _quiet():
        adapted = peft.get_peft_model(copy.deepcopy(model), peft.LoraConfig(**fields), autocast_adapter_dtype=False)
        with torch.no_grad():
            for parameter in adapted.parameters():
                if parameter.requires_grad:
                    parameter.copy_(torch.randn(parameter.shape) * 0.3)
        adapted.save_pretrained(directory)
    return directory


def load_by_peft(model: Any, directory: Path, name: str = "default") -> Any:
    """Let PEFT load an adapter from its directory onto a copy of a model: what all is compared with."""
    with _quiet():
        return peft.PeftModel.from_pretrained(
            copy.deepcopy(model), directory, adapter_name=name, autocast_adapter_dtype=False
        )


def logits(model: Any) -> torch.Tensor:
    """Return what a model says to ``TOKENS``."""
    with torch.no_grad(), _quiet():
        found: torch.Tensor = model(input_ids=TOKENS).logits
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """PEFT warns of what the tests' adapters are for, and transformers of what PEFT asks it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
