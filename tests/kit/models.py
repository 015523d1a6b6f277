"""Source files, written by hand: an oracle that shares no code with what it judges."""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Mapping
from pathlib import Path

import blake3

Tensor = tuple[str, tuple[int, ...], bytes]  # dtype, shape, bytes


def safetensors_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return a safetensors file."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((struct.pack("<Q", len(text)), text, *(data for _, _, data in tensors.values())))


def pattern(tag: int, size: int) -> bytes:
    """Return bytes that name their owner and place: 16-byte blocks of tag and block number."""
    count = size // 16 + 1
    blocks = array("Q", bytes(16 * count))
    blocks[0::2] = array("Q", [tag]) * count
    blocks[1::2] = array("Q", range(count))
    return blocks.tobytes()[:size]


def write_model(path: Path, tag: int, size: int = 1 << 20, count: int = 4) -> dict[str, bytes]:
    """Write a small base of ``count`` BF16 tensors and return the bytes of each by name."""
    tensors = {f"layer.{i}.weight": pattern(tag * 1000 + i, size // count // 2 * 2) for i in range(count)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(safetensors_bytes({n: ("BF16", (len(d) // 2,), d) for n, d in tensors.items()}))
    return tensors


def filled(value: int, size: int = 256) -> dict[str, Tensor]:
    """Return one tensor ``w`` of bytes that all have the value."""
    return {"w": ("U8", (size,), bytes([value]) * size)}


def write_shards(directory: Path, shards: list[Mapping[str, Tensor]]) -> list[Path]:
    """Write a sharded base with its index and return the paths of the shards."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for path, tensors in zip(paths, shards, strict=True):
        path.write_bytes(safetensors_bytes(tensors))
    weight_map = {name: path.name for path, tensors in zip(paths, shards, strict=True) for name in tensors}
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return paths


def content_digest(tensors: Mapping[str, Tensor], config: bytes = b"") -> str:
    """Return the digest of an artifact's content, as its documentation says it is made."""

    def part(data: bytes) -> bytes:
        return struct.pack("<Q", len(data)) + data

    text = part(b"warmshelf content 1")
    for name in sorted(tensors, key=str.encode):
        dtype, shape, data = tensors[name]
        dims = struct.pack(f"<{len(shape)}Q", *shape)
        text += part(name.encode()) + part(dtype.encode()) + part(dims) + part(blake3.blake3(data).digest())
    return "blake3:" + blake3.blake3(text + part(config)).hexdigest()
