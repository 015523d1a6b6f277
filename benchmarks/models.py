"""Makes the artifacts that are measured: random bf16 tensors, as safetensors and as .tensors.

Written in pieces, so that a large one needs no memory but the page cache.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from tensorizer import TensorDeserializer, TensorSerializer

TENSOR_COUNT = 49
"""The same for every size, so that only the size differs."""

COLUMNS = 4096
ELEMENT_BYTES = 2
PIECE_BYTES = 16 << 20

READER_COUNTS = (1, 2, 4)
"""tensorizer is as fast as the best of these."""


def make_safetensors(path: Path, size_bytes: int) -> Path:
    """Write a file of about that size; return its path."""
    rows = max(1, size_bytes // (TENSOR_COUNT * COLUMNS * ELEMENT_BYTES))
    tensor_bytes = rows * COLUMNS * ELEMENT_BYTES
    header = json.dumps(
        {
            f"model.layers.{i}.weight": {
                "dtype": "BF16",
                "shape": [rows, COLUMNS],
                "data_offsets": [i * tensor_bytes, (i + 1) * tensor_bytes],
            }
            for i in range(TENSOR_COUNT)
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        _write_random(file.fileno(), len(header) + 8, tensor_bytes * TENSOR_COUNT)
    return path


def _write_random(fd: int, offset: int, size: int) -> None:
    """Write random bytes that differ from piece to piece, from one random piece."""
    piece = memoryview(os.urandom(PIECE_BYTES))
    end = offset + size
    for start in range(offset, end, PIECE_BYTES):
        turn = (start // PIECE_BYTES * 4097) % PIECE_BYTES
        turned = bytes(piece[turn:]) + bytes(piece[:turn])
        os.pwrite(fd, turned[: min(PIECE_BYTES, end - start)], start)


def make_tensors(path: Path, safetensors: Path) -> Path:
    """Write the same tensors as one tensorizer file; return its path."""
    serializer = TensorSerializer(str(path))
    serializer.write_state_dict(load_file(safetensors))
    serializer.close()
    return path


def read_with_tensorizer(path: Path, reader_count: int) -> Mapping[str, torch.Tensor]:
    """Load a tensorizer file into memory, as a worker without warmshelf would."""
    tensors = dict(TensorDeserializer(str(path), device="cpu", num_readers=reader_count))
    if len(tensors) != TENSOR_COUNT:
        raise RuntimeError(f"tensorizer read {len(tensors)} tensors of {TENSOR_COUNT}")
    return tensors


def warm(path: Path) -> None:
    """Bring the file into the page cache, wherever earlier reads may have left it."""
    buffer = bytearray(PIECE_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
