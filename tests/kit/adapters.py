"""Adapters written by hand: a config, and tensors of given names and shapes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from kit.models import safetensors_bytes

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
Shape = tuple[int, ...]


def config_bytes(**fields: object) -> bytes:
    """Return a LoRA config; fields given as ``...`` are left out."""
    every = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], **fields}
    return json.dumps({name: value for name, value in every.items() if value is not ...}).encode()


def weights_bytes(shapes: Mapping[str, Shape]) -> bytes:
    """Return a safetensors file of BF16 tensors, each filled with its number."""
    return safetensors_bytes(
        {
            name: ("BF16", shape, bytes([number % 251]) * (2 * math.prod(shape)))
            for number, (name, shape) in enumerate(shapes.items())
        }
    )


def pair(module: str, rank: int = 4, columns: int = 8, rows: int = 8, *, suffix: str = ".weight") -> dict[str, Shape]:
    """Return the names and shapes of one LoRA pair."""
    return {
        f"{PREFIX}{module}.lora_A{suffix}": (rank, columns),
        f"{PREFIX}{module}.lora_B{suffix}": (rows, rank),
    }


def adapter_files(shapes: Mapping[str, Shape], **fields: object) -> dict[str, bytes]:
    """Return the files of an adapter."""
    return {CONFIG: config_bytes(**fields), WEIGHTS: weights_bytes(shapes)}
