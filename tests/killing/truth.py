"""What must be so after each death: what was done, what was answered, and whose bytes which are.

Shares no code with the daemon. Bytes say of themselves whose they are: each block of 16
names artifact, generation, tensor and place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from kit.models import Tensor, pattern, safetensors_bytes

CONFIG = "adapter_config.json"
RANK = 4


@dataclass(frozen=True)
class Content:
    """The content of one generation of one artifact."""

    number: int
    generation: int = 1
    is_adapter: bool = False

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Every tensor."""
        sizes = (64 << 10, 64 << 10) if self.is_adapter else (1 << 20, (1 << 20) + 4096, 9000)
        data = [pattern(self._tag(i), size) for i, size in enumerate(sizes)]
        if self.is_adapter:
            columns, name = sizes[0] // 2 // RANK, "base_model.model.q_proj.lora_{}.weight"
            return {
                name.format("A"): ("BF16", (RANK, columns), data[0]),
                name.format("B"): ("BF16", (columns, RANK), data[1]),
            }
        return {f"tensor.{i}": ("U8", (len(one),), one) for i, one in enumerate(data)}

    def _tag(self, tensor: int) -> int:
        return self.number << 24 | self.generation << 8 | tensor

    def bytes_by_name(self) -> Mapping[str, bytes]:
        """What a worker must see."""
        return _bytes_of(self)

    def files(self) -> dict[str, bytes]:
        """What its source is made of."""
        weights = safetensors_bytes(self.tensors)
        if not self.is_adapter:
            return {"model.safetensors": weights}
        fields = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "target_modules": ["q_proj"]}
        return {"adapter_model.safetensors": weights, CONFIG: json.dumps(fields).encode()}

    def write(self, directory: Path) -> Path:
        """Write its source."""
        directory.mkdir(parents=True)
        for name, data in self.files().items():
            (directory / name).write_bytes(data)
        return directory


@lru_cache(maxsize=16)
def _bytes_of(content: Content) -> Mapping[str, bytes]:
    return {name: data for name, (_, _, data) in content.tensors.items()}


def differs(found: Mapping[str, bytes], contents: tuple[Content, ...]) -> str:
    """Return "" if what was found is exactly one of the contents; else whose it is at the first difference."""
    if any(found == content.bytes_by_name() for content in contents):
        return ""
    wanted = contents[0].bytes_by_name()
    if found.keys() != wanted.keys():
        return f"tensors {sorted(found)}, not {sorted(wanted)}"
    name = next(name for name in wanted if found[name] != wanted[name])
    if len(found[name]) != len(wanted[name]):
        return f"{name} has {len(found[name])} bytes, not {len(wanted[name])}"
    at = next(i for i in range(0, len(wanted[name]), 16) if found[name][i : i + 16] != wanted[name][i : i + 16])
    return f"{name} at byte {at}: {whose(found[name][at : at + 16])}, not {whose(wanted[name][at : at + 16])}"


def whose(block: bytes) -> str:
    """Return what a block of 16 bytes says of itself."""
    tag, index = (int.from_bytes(half, "little") for half in (block[:8], block[8:]))
    return f"artifact {tag >> 24} generation {tag >> 8 & 0xFFFF} tensor {tag & 0xFF} block {index}"


@dataclass
class Story:
    """What was asked of one ID, and what was answered. ``begun`` is what nobody has heard the end of.

    Attributes:
        contents: what its bytes may be; the first is the newest.
        is_known: whether it must be registered, must not be, or may be either.
        is_resident: whether it must be resident, also without its source.
        is_refused: its bytes are not those that it was registered with.
    """

    contents: tuple[Content, ...]
    is_known: bool | None = None
    is_resident: bool = False
    is_refused: bool = False
    sources: list[Path] = field(default_factory=list)
