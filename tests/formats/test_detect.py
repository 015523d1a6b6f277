"""Which format is meant, and what is said of files in none."""

from __future__ import annotations

import importlib
import pickle
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.adapters import adapter_files, pair
from warmshelf.errors import UnsupportedFormat
from warmshelf.types import ArtifactKind
from warmshelfd.formats.base import FormatLimits
from warmshelfd.formats.detect import detect
from warmshelfd.formats.pickled import conversion_command, is_pickled

Detect = Callable[..., Any]


def test_a_directory_with_a_lora_config_is_an_adapter(detect_in: Detect) -> None:
    found = detect_in(adapter_files(pair("layers.0.q_proj")))
    assert (found.kind, found.format_name) == (ArtifactKind.ADAPTER, "peft")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "last.ckpt", "w.pkl"])
@pytest.mark.parametrize("head", [b"PK\x03\x04rest", pickle.dumps({}, 2), pickle.dumps({}, 4), pickle.dumps({}, 5)])
def test_a_pickle_is_refused_with_the_command_that_converts_it(name: str, head: bytes, detect_in: Detect) -> None:
    with pytest.raises(UnsupportedFormat) as caught:
        detect_in({"config.json": b"{}", name: head})
    assert conversion_command(name) in caught.value.message


def test_a_pickle_of_any_name_is_refused_as_one(detect_in: Detect) -> None:
    with pytest.raises(UnsupportedFormat, match="is a pickle"):
        detect_in({"weights": pickle.dumps({})})


def test_a_pickle_beside_safetensors_is_never_opened(memory_files: Any) -> None:
    raw = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    whole = len(raw).to_bytes(8, "little") + raw + b"x"
    files = memory_files({"model.safetensors": whole, "pytorch_model.bin": b"PK\x03\x04"})
    assert detect(files, FormatLimits()).file_names == ("model.safetensors",)
    assert set(files.read_names) == {"model.safetensors"}


@pytest.mark.parametrize("content", [{}, {"README.md": b"x"}, {"model.gguf": b"GGUF"}, {"model.bin": b"\x00\x01"}])
def test_files_of_no_known_format_are_refused(content: dict[str, bytes], detect_in: Detect) -> None:
    with pytest.raises(UnsupportedFormat, match=r"ends in \.safetensors|has no files"):
        detect_in(content)


def test_a_header_of_640_bytes_is_no_pickle(detect_in: Detect) -> None:
    """Its length begins with the two bytes that open a pickle of protocol 2."""
    raw = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'.ljust(0x280)
    whole = len(raw).to_bytes(8, "little") + raw + b"x"
    assert is_pickled(whole)
    assert len(detect_in({"m.safetensors": whole}).entries) == 1


def test_the_command_converts(tmp_path: Path, detect_in: Detect) -> None:
    torch = importlib.import_module("torch")
    shared = torch.arange(4, dtype=torch.bfloat16)
    name = 'it\'s "a" model.bin'
    torch.save({"a": shared, "b": shared.view(2, 2).t()}, tmp_path / name)
    python, *arguments = shlex.split(conversion_command(name))
    assert python == "python"
    subprocess.run([sys.executable, *arguments], cwd=tmp_path, check=True)
    converted = next(tmp_path.glob("*.safetensors"))
    entries = detect_in({converted.name: converted.read_bytes()}).entries
    assert {(e.name, e.dtype, e.shape) for e in entries} == {("a", "BF16", (4,)), ("b", "BF16", (2, 2))}
