"""Sources that change under a daemon, and a memory of what each of them ever was.

An oracle: it shares no code with what it judges. Each source is a directory with the
files of a base or of an adapter. Every write gives them a time of their own, so two
looks of a source are the same exactly if nothing happened to it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from kit.models import Tensor, content_digest, pattern, safetensors_bytes

_FIRST_TIME_SECONDS = 1_700_000_000
_BASE_WEIGHTS, _ADAPTER_WEIGHTS = "model.safetensors", "adapter_model.safetensors"
_RANK = 4


@dataclass(frozen=True)
class Content:
    """What an artifact may consist of: some tensors whose bytes say whose they are."""

    name: str
    tag: int
    size_bytes: int
    is_adapter: bool = False

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        first, second = (pattern(self.tag * 10 + i, self.size_bytes // 2) for i in range(2))
        if self.is_adapter:
            columns, prefix = self.size_bytes // 4 // _RANK, "base_model.model.q_proj"
            return {
                f"{prefix}.lora_A.weight": ("BF16", (_RANK, columns), first),
                f"{prefix}.lora_B.weight": ("BF16", (columns, _RANK), second),
            }
        return {
            "first": ("BF16", (self.size_bytes // 4,), first),
            "empty": ("F32", (0, 3), b""),
            "second": ("U8", (self.size_bytes // 2,), second),
        }

    @cached_property
    def bytes_by_name(self) -> dict[str, bytes]:
        return {name: data for name, (_, _, data) in self.tensors.items()}

    @cached_property
    def config(self) -> bytes:
        fields = {"peft_type": "LORA", "r": _RANK, "lora_alpha": self.tag, "target_modules": ["q_proj"]}
        return json.dumps(fields).encode() if self.is_adapter else b""

    @cached_property
    def files(self) -> Mapping[str, bytes]:
        weights = safetensors_bytes(self.tensors)
        if self.is_adapter:
            return {_ADAPTER_WEIGHTS: weights, "adapter_config.json": self.config}
        return {_BASE_WEIGHTS: weights}

    @cached_property
    def digest(self) -> str:
        return content_digest(self.tensors, self.config)

    @cached_property
    def file_digest(self) -> str:
        weights = self.files[_ADAPTER_WEIGHTS if self.is_adapter else _BASE_WEIGHTS]
        return f"sha256:{hashlib.sha256(weights).hexdigest()}"


_KIB = 1 << 10
_ALL = [
    Content("small-1", 1, 8 * _KIB),
    Content("small-2", 2, 8 * _KIB),  # of the same size: only its bytes tell it from the first
    Content("middle-1", 3, 40 * _KIB),
    Content("middle-2", 4, 40 * _KIB),
    Content("large", 5, 96 * _KIB),
    Content("giant", 6, 400 * _KIB),  # larger than the arenas that tests with these contents have
    Content("adapter-1", 7, 8 * _KIB, is_adapter=True),
    Content("adapter-2", 8, 8 * _KIB, is_adapter=True),
    Content("adapter-large", 9, 48 * _KIB, is_adapter=True),
]
CONTENTS = MappingProxyType({content.name: content for content in _ALL})


@dataclass(frozen=True)
class Look:
    """How a source was at one time. ``content`` is None if it holds none; ``version`` is never given twice."""

    version: int
    content: str | None
    exists: bool = True


class SourceFiles:
    """A few sources below one directory, by their names."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now: dict[str, Look] = {}
        self._last_version = 0

    def path(self, name: str) -> Path:
        return self.directory / name

    def look(self, name: str) -> Look:
        return self.now.get(name, Look(0, None, exists=False))

    def write(self, name: str, content: str, *, rename: bool) -> None:
        """Give the source a content, in place or by putting other files in place of its own."""
        files = CONTENTS[content].files
        path = self.path(name)
        path.mkdir(exist_ok=True)
        for other in {file.name for file in path.iterdir()} - files.keys():
            (path / other).unlink()
        for file, data in files.items():
            _write(path / file, data, rename=rename)
        self._note(name, content)

    def touch(self, name: str) -> None:
        """Change the files' times and nothing else."""
        if self.look(name).exists:
            self._note(name, self.look(name).content)

    def delete(self, name: str) -> None:
        shutil.rmtree(self.path(name), ignore_errors=True)
        self._last_version += 1
        self.now[name] = Look(self._last_version, None, exists=False)

    def cut(self, name: str, size_bytes: int) -> None:
        """Leave only the first bytes of the weights."""
        for path in self._weights(name):
            if path.stat().st_size > size_bytes:
                os.truncate(path, size_bytes)
                self._note(name, None)

    def scribble(self, name: str) -> None:
        """Overwrite the header of the weights."""
        for path in self._weights(name):
            _write(path, b"\xff" * 64, rename=False)
            self._note(name, None)

    def _weights(self, name: str) -> list[Path]:
        return list(self.path(name).glob("*.safetensors"))

    def _note(self, name: str, content: str | None) -> None:
        self._last_version += 1
        time_ns = (_FIRST_TIME_SECONDS + self._last_version) * 1_000_000_000
        for path in self.path(name).iterdir():
            os.utime(path, ns=(time_ns, time_ns))
        self.now[name] = Look(self._last_version, content)


def _write(path: Path, data: bytes, *, rename: bool) -> None:
    if rename:
        path.with_suffix(".new").write_bytes(data)
        path.with_suffix(".new").rename(path)
    else:
        path.write_bytes(data)
