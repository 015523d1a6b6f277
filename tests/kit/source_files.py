"""Source files that change under a daemon, and a memory of what each of them ever was.

An oracle: it shares no code with what it judges. Every write gives a file a time of
its own, so two looks of a file are the same exactly if nothing happened to it.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from kit.models import Tensor, content_digest, pattern, safetensors_bytes

_FIRST_TIME_SECONDS = 1_700_000_000


@dataclass(frozen=True)
class Content:
    """What an artifact may consist of: some tensors whose bytes say whose they are."""

    name: str
    tag: int
    size_bytes: int

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        half = self.size_bytes // 2
        return {
            "first": ("BF16", (half // 2,), pattern(self.tag * 10, half)),
            "empty": ("F32", (0, 3), b""),
            "second": ("U8", (half,), pattern(self.tag * 10 + 1, half)),
        }

    @cached_property
    def bytes_by_name(self) -> dict[str, bytes]:
        return {name: data for name, (_, _, data) in self.tensors.items()}

    @cached_property
    def file_bytes(self) -> bytes:
        return safetensors_bytes(self.tensors)

    @cached_property
    def digest(self) -> str:
        return content_digest(self.tensors)

    @cached_property
    def file_digest(self) -> str:
        return f"sha256:{hashlib.sha256(self.file_bytes).hexdigest()}"


_KIB = 1 << 10
_ALL = [
    Content("small-1", 1, 8 * _KIB),
    Content("small-2", 2, 8 * _KIB),  # of the same size: only its bytes tell it from the first
    Content("middle-1", 3, 40 * _KIB),
    Content("middle-2", 4, 40 * _KIB),
    Content("large", 5, 96 * _KIB),
    Content("giant", 6, 400 * _KIB),  # larger than the arenas that tests with these files have
]
CONTENTS = MappingProxyType({content.name: content for content in _ALL})


@dataclass(frozen=True)
class Look:
    """How a file was at one time. ``content`` is None if it holds none; ``version`` is never given twice."""

    version: int
    content: str | None
    exists: bool = True


class SourceFiles:
    """A few files of one directory, by their names."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now: dict[str, Look] = {}
        self._last_version = 0

    def path(self, name: str) -> Path:
        return self.directory / f"{name}.safetensors"

    def look(self, name: str) -> Look:
        return self.now.get(name, Look(0, None, exists=False))

    def write(self, name: str, content: str, *, rename: bool) -> None:
        """Give the file a content, in place or by putting another file in its place."""
        self._write(name, CONTENTS[content].file_bytes, rename=rename)
        self._note(name, content)

    def touch(self, name: str) -> None:
        """Change the file's time and nothing else."""
        if self.look(name).exists:
            self._note(name, self.look(name).content)

    def delete(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)
        self._last_version += 1
        self.now[name] = Look(self._last_version, None, exists=False)

    def cut(self, name: str, size_bytes: int) -> None:
        """Leave only the first bytes of the file."""
        path = self.path(name)
        if self.look(name).exists and path.stat().st_size > size_bytes:
            os.truncate(path, size_bytes)
            self._note(name, None)

    def scribble(self, name: str) -> None:
        """Overwrite the file's header."""
        self._write(name, b"\xff" * 64, rename=False)
        self._note(name, None)

    def _write(self, name: str, data: bytes, *, rename: bool) -> None:
        path = self.path(name)
        if rename:
            path.with_suffix(".new").write_bytes(data)
            path.with_suffix(".new").rename(path)
        else:
            path.write_bytes(data)

    def _note(self, name: str, content: str | None) -> None:
        self._last_version += 1
        time_ns = (_FIRST_TIME_SECONDS + self._last_version) * 1_000_000_000
        os.utime(self.path(name), ns=(time_ns, time_ns))
        self.now[name] = Look(self._last_version, content)
