"""Encrypted ``.tensors`` files, written by tensorizer itself, and the daemon's settings to read them with.

tensorizer encrypts with the system's libsodium and says so where there is none: apt install libsodium23.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from tensorizer import DecryptionParams, EncryptionParams, TensorDeserializer, TensorSerializer

KEY_VARIABLE = "TENSORS_KEY"

FAST = {"opslimit": EncryptionParams.OpsLimit.MIN, "memlimit": EncryptionParams.MemLimit.MIN}
"""The cheapest derivation of a key: 0.05 ms."""


def write_encrypted(path: Path, state: Mapping[str, torch.Tensor], encryption: EncryptionParams) -> None:
    """Write a file; tensors without bytes go in as tensorizer can write them, which is without data."""
    serializer = TensorSerializer(str(path), encryption=encryption)
    serializer.write_state_dict({name: t if t.numel() else t.to("meta") for name, t in state.items()})
    serializer.close()


def read_with_tensorizer(path: Path, decryption: DecryptionParams | None) -> dict[str, torch.Tensor]:
    """Read a file by the library, all its hashes compared."""
    deserializer = TensorDeserializer(str(path), device="cpu", encryption=decryption, verify_hash=True)
    try:
        return {str(name): tensor.detach() for name, tensor in deserializer.items()}
    finally:
        deserializer.close()


def raw(tensor: torch.Tensor) -> bytes:
    """Return a tensor's bytes as they lie in memory."""
    flat = tensor.contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""


def source_config(path: Path, models: Path, secret: str = f"env:{KEY_VARIABLE}", more: str = "") -> tuple[str, str]:
    """Write the daemon's configuration with a key for all below ``models``; return the options that name it."""
    path.write_text(f'{more}\n[[source]]\nprefix = "file://{models}"\ntensors_key = "{secret}"\n')
    return "--config", str(path)
