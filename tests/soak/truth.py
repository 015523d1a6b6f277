"""What the artifacts are: bytes that say of themselves whose they are. Shares no code with the daemon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kit.adapters import CONFIG, WEIGHTS, config_bytes
from kit.marked import Mark, fault, marked
from kit.models import safetensors_bytes
from warmshelf import Lease

RANK = 4
PREFIX = "base_model.model.q_proj.lora_"


@dataclass(frozen=True)
class Content:
    """The content of one artifact: two tensors of so many bytes."""

    number: int
    tensor_bytes: int

    @property
    def is_adapter(self) -> bool:
        return self.number % 2 == 1

    @property
    def marks(self) -> Mapping[str, Mark]:
        """Whose bytes each tensor has."""
        names = (f"{PREFIX}A.weight", f"{PREFIX}B.weight") if self.is_adapter else ("w.0", "w.1")
        return {name: Mark(1, self.number, 1, tensor) for tensor, name in enumerate(names)}

    def write(self, directory: Path) -> Path:
        """Write its source."""
        directory.mkdir(parents=True)
        columns = self.tensor_bytes // 2 // RANK
        shapes = ((RANK, columns), (columns, RANK))
        data = safetensors_bytes(
            {
                name: ("BF16", shape, marked(mark, self.tensor_bytes))
                for (name, mark), shape in zip(self.marks.items(), shapes, strict=True)
            }
        )
        (directory / (WEIGHTS if self.is_adapter else "model.safetensors")).write_bytes(data)
        if self.is_adapter:
            (directory / CONFIG).write_bytes(config_bytes())
        return directory

    def fault(self, lease: Lease) -> str:
        """Say what is wrong with what a worker got; "" if nothing is."""
        if {*lease} != {*self.marks}:
            return f"tensors {sorted(lease)}, not {sorted(self.marks)}"
        for name, mark in self.marks.items():
            data = bytes(lease[name])
            if len(data) != self.tensor_bytes:
                return f"{name} has {len(data)} bytes, not {self.tensor_bytes}"
            if text := fault(mark, data):
                return f"{name} {text}"
        return ""


HOT = {f"hot/{i}": Content(i, 32 << 10) for i in range(8)}
"""Resident nearly always: what most acquires are of."""

COLD = {f"cold/{i}": Content(100 + i, 128 << 10) for i in range(32)}
"""More than the arena has room for: some of them are evicted and loaded all the time."""

POOL = tuple(Content(200 + i, 16 << 10) for i in range(64))
"""What is registered under ever new IDs."""

BUDGET = "6MiB"
EVERY = (*HOT.values(), *COLD.values(), *POOL)


def source_of(models: Path, content: Content) -> Path:
    """Return where a content's source is."""
    return models / str(content.number)
