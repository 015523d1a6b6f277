"""Source files, written by hand: an oracle that shares no code with what it judges."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

Tensor = tuple[str, tuple[int, ...], bytes]  # dtype, shape, bytes


def safetensors_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Write a safetensors file by hand: an oracle that shares no code with what it judges."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    body = b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def pattern(tag: int, size: int) -> bytes:
    """Return bytes that name their owner and place: 16-byte blocks of tag and block number."""
    block = b"".join(struct.pack("<QQ", tag, i) for i in range(size // 16 + 1))
    return block[:size]


def write_model(path: Path, tag: int, size: int = 1 << 20, count: int = 4) -> dict[str, bytes]:
    """Write a small base of ``count`` BF16 tensors and return the bytes of each by name."""
    tensors = {f"layer.{i}.weight": pattern(tag * 1000 + i, size // count // 2 * 2) for i in range(count)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(safetensors_bytes({n: ("BF16", (len(d) // 2,), d) for n, d in tensors.items()}))
    return tensors
