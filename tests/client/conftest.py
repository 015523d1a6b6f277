"""A stand-in for the daemon, and segments in an arena's directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.models import pattern
from kit.ports import free_port
from kit.segments import SegmentFile, write_segment
from kit.standin import StandIn


@pytest.fixture
def arena(tmp_path: Path) -> Path:
    path = tmp_path / "arena"
    path.mkdir()
    return path


@pytest.fixture
def put(arena: Path) -> Callable[[SegmentFile], SegmentFile]:
    """Writes a segment into the arena's directory."""

    def write(segment: SegmentFile) -> SegmentFile:
        (arena / segment.segment_id).write_bytes(segment.data)
        return segment

    return write


@pytest.fixture
def segment() -> SegmentFile:
    """A segment of a few chunks: two tensors, a scalar, an empty one and a config."""
    return write_segment(
        {
            "a.weight": ("BF16", (300, 1000), pattern(1, 600_000)),
            "b.weight": ("F32", (100, 50), pattern(2, 20_000)),
            "scalar": ("I64", (), pattern(3, 8)),
            "empty": ("F32", (0, 4), b""),
        },
        files={"config.json": b'\xef\xbb\xbf{"r": 1}', "adapter_config.json": b'{"lora_alpha": 8}'},
    )


@pytest.fixture
def stand_in(tmp_path: Path, arena: Path) -> Iterator[StandIn]:
    it = StandIn(f"unix:{tmp_path}/api.sock", str(arena)).start()
    yield it
    it.stop()


@pytest.fixture
def tcp_stand_in() -> Iterator[StandIn]:
    it = StandIn(f"127.0.0.1:{free_port()}").start()
    yield it
    it.stop()
