"""Makes the bases that are measured: random bf16 tensors, as safetensors and as .tensors; and reads them as peers do.

Written in pieces, so that a large one needs no memory but the page cache.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from runai_model_streamer import SafetensorsStreamer
from safetensors.torch import load_file
from tensorizer import DecryptionParams, EncryptionParams, TensorDeserializer, TensorSerializer

TENSOR_COUNT = 49
"""The same for every size, so that only the size differs."""

COLUMNS = 4096
ELEMENT_BYTES = 2
EXPERT_COLUMNS = 512
PIECE_BYTES = 16 << 20

READER_COUNTS = (1, 2, 4)
"""tensorizer is as fast as the best of these."""


def make_safetensors(path: Path, size_bytes: int) -> Path:
    """Write a file of about that size; return its path."""
    rows = max(1, size_bytes // (TENSOR_COUNT * COLUMNS * ELEMENT_BYTES))
    return write_safetensors(path, {f"model.layers.{i}.weight": (rows, COLUMNS) for i in range(TENSOR_COUNT)})


def make_experts(path: Path, tensor_count: int) -> Path:
    """Write a file of many small tensors, named as those of a base with many experts."""
    names = (f"model.layers.{i // 768}.mlp.experts.{i % 768}.down_proj.weight" for i in range(tensor_count))
    return write_safetensors(path, dict.fromkeys(names, (1, EXPERT_COLUMNS)))


def write_safetensors(path: Path, shapes: Mapping[str, Sequence[int]], *, sparse: bool = False) -> Path:
    """Write a file of random tensors, or one whose header is right and whose tensors are a hole; return its path."""
    header, end = {}, 0
    for name, (rows, columns) in shapes.items():
        start, end = end, end + rows * columns * ELEMENT_BYTES
        header[name] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.flush()
        if sparse:
            file.truncate(len(text) + 8 + end)
        else:
            _write_random(file.fileno(), len(text) + 8, end)
    return path


def _write_random(fd: int, offset: int, size: int) -> None:
    """Write random bytes that differ from piece to piece, from one random piece."""
    piece = memoryview(os.urandom(min(PIECE_BYTES, size)))
    end = offset + size
    for start in range(offset, end, PIECE_BYTES):
        turn = (start // PIECE_BYTES * 4097) % len(piece)
        turned = bytes(piece[turn:]) + bytes(piece[:turn])
        os.pwrite(fd, turned[: min(PIECE_BYTES, end - start)], start)


def make_tensors(path: Path, safetensors: Path, *, key: bytes | None = None) -> Path:
    """Write the same tensors as one tensorizer file, encrypted if there is a key; return its path."""
    serializer = TensorSerializer(str(path), encryption=EncryptionParams(key) if key else None)
    serializer.write_state_dict(load_file(safetensors))
    serializer.close()
    return path


def read_with_tensorizer(
    path: Path | str, reader_count: int, *, verified: bool = False, key: bytes | None = None
) -> Mapping[str, torch.Tensor]:
    """Load a tensorizer file into memory, as a worker without warmshelf would."""
    encryption = DecryptionParams.from_key(key) if key else None
    return _whole(
        TensorDeserializer(
            str(path), device="cpu", num_readers=reader_count, verify_hash=verified, encryption=encryption
        )
    )


def read_with_streamer(path: Path | str) -> Mapping[str, torch.Tensor]:
    """Load a safetensors file into memory with the Run:ai streamer. Each tensor it yields is ours to keep."""
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(str(path), device="cpu")
        return _whole(streamer.get_tensors())


def read_with_safetensors(path: Path) -> Mapping[str, torch.Tensor]:
    """Load a safetensors file into memory. Cloned: load_file alone only maps the file."""
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


def _whole(found: Iterable[tuple[str, torch.Tensor]] | Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    tensors = dict(found)
    if len(tensors) != TENSOR_COUNT:
        raise RuntimeError(f"{len(tensors)} tensors were read of {TENSOR_COUNT}")
    return tensors


def warm(path: Path) -> None:
    """Bring the file into the page cache, wherever earlier reads may have left it."""
    buffer = bytearray(PIECE_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
