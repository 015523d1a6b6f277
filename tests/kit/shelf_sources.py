"""Sources for whatever offers the methods of a Shelf."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kit.adapters import adapter_files, pair
from kit.models import Tensor, pattern, safetensors_bytes

MIB = 1 << 20
TENSORS: dict[str, Tensor] = {
    "a.weight": ("BF16", (100, 30), pattern(1, 6000)),
    "b.bias": ("F8_E4M3", (7,), pattern(2, 7)),
    "c.scale": ("F32", (), pattern(3, 4)),
    "d.empty": ("I64", (0, 4), b""),
    "ü.名": ("BOOL", (3,), b"\0\1\1"),
}
CONFIG_TEXT = b'\xef\xbb\xbf{"model_type": "tiny", "new": 1}\n'


def write_base(directory: Path) -> Path:
    """Write a base with a config and a tokenizer."""
    directory.mkdir()
    write(directory / "model.safetensors", TENSORS)
    (directory / "config.json").write_bytes(CONFIG_TEXT)
    (directory / "tokenizer.json").write_bytes(b"{}")
    return directory


def write_adapter(directory: Path) -> Path:
    """Write an adapter of rank 8 that needs rank-stabilised scaling."""
    directory.mkdir()
    for name, data in adapter_files(pair("layers.0.q_proj", rank=8, rows=16), r=8, use_rslora=True).items():
        (directory / name).write_bytes(data)
    return directory


def write(path: Path, tensors: Mapping[str, Tensor]) -> Path:
    """Write a safetensors file."""
    path.write_bytes(safetensors_bytes(tensors))
    return path


def sized(models: Path, name: str, size: int) -> Path:
    """Write a base with one tensor of zeros."""
    return write(models / f"{name}.safetensors", {"w": ("U8", (size,), bytes(size))})
