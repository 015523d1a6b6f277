"""Files in memory, and a call that has them inspected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from warmshelfd.formats.base import FormatLimits, Inspected
from warmshelfd.formats.detect import detect

Detect = Callable[..., Inspected]


@dataclass
class MemoryFiles:
    """Files whose content a test gives. Reading past an end fails the test: formats must not."""

    content: Mapping[str, bytes]
    read_names: list[str] = field(default_factory=list)

    def files(self) -> Mapping[str, int]:
        return {name: len(data) for name, data in self.content.items()}

    def read(self, name: str, offset: int, size: int) -> bytes:
        self.read_names.append(name)
        data = self.content[name][offset : offset + size]
        assert len(data) == size, f"{size} bytes at {offset} were asked of {name}, which has {len(self.content[name])}"
        return data


@pytest.fixture
def detect_in() -> Detect:
    """Inspect files given as ``{name: bytes}``."""

    def run(content: Mapping[str, bytes], limits: FormatLimits | None = None) -> Inspected:
        return detect(MemoryFiles(content), limits or FormatLimits())

    return run


@pytest.fixture
def memory_files() -> type[MemoryFiles]:
    return MemoryFiles
