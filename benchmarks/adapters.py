"""Makes the adapters that are measured: PEFT directories of LoRA pairs in bf16, and a base that they fit.

Writes files and knows no daemon.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import models

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
RANK = 8
MODULES = (
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
"""What most adapters change in each layer."""


@dataclass(frozen=True, slots=True)
class AdapterShape:
    """Every pair has the same shape, as those of a base whose modules are all square."""

    layer_count: int
    columns: int

    @property
    def tensor_count(self) -> int:
        """Two for each module of each layer."""
        return 2 * len(MODULES) * self.layer_count

    def modules(self) -> Iterator[str]:
        """Yield every module's name in the base."""
        for layer in range(self.layer_count):
            yield from (f"model.layers.{layer}.{module}" for module in MODULES)


def shape_of(size_bytes: int, layer_count: int) -> AdapterShape:
    """Return the shape of an adapter of about that size."""
    pair_count = len(MODULES) * layer_count
    return AdapterShape(layer_count, max(1, size_bytes // (2 * pair_count * RANK * models.ELEMENT_BYTES)))


def make_adapter(directory: Path, shape: AdapterShape, *, sparse: bool = False) -> Path:
    """Write an adapter, or one whose headers are right and whose tensors are a hole; return its directory."""
    directory.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": list(MODULES)}
    (directory / CONFIG_NAME).write_text(json.dumps(config), encoding="utf-8")
    shapes = {}
    for module in shape.modules():
        shapes[f"base_model.model.{module}.lora_A.weight"] = (RANK, shape.columns)
        shapes[f"base_model.model.{module}.lora_B.weight"] = (shape.columns, RANK)
    models.write_safetensors(directory / WEIGHTS_NAME, shapes, sparse=sparse)
    return directory


def make_base(path: Path, shape: AdapterShape) -> Path:
    """Write the base of such adapters, whose tensors are a hole: they are compared with its header only."""
    shapes = {f"{module}.weight": (shape.columns, shape.columns) for module in shape.modules()}
    return models.write_safetensors(path, shapes, sparse=True)
