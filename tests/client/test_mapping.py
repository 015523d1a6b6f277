"""A segment is mapped only if everything about it is right; else a word says why not."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.models import pattern
from kit.segments import SegmentFile, write_segment
from warmshelf.errors import Internal
from warmshelf.mapping import FALLBACK_REASONS, CannotMap, map_segment

Put = Callable[[SegmentFile], SegmentFile]


def reason(arena: Path, segment: SegmentFile) -> str:
    with pytest.raises(CannotMap) as caught:
        map_segment(str(arena), segment.segment_id, len(segment.data))
    assert caught.value.fallback_reason in FALLBACK_REASONS
    return caught.value.fallback_reason


def test_a_segment_of_the_arena_is_mapped(arena: Path, put: Put, segment: SegmentFile) -> None:
    put(segment)
    image = map_segment(str(arena), segment.segment_id, len(segment.data))
    assert image.tensor("a.weight") == pattern(1, 600_000)


def test_writing_changes_this_mapping_only(arena: Path, put: Put, segment: SegmentFile) -> None:
    """B45: neither another mapping nor the file."""
    put(segment)
    one = map_segment(str(arena), segment.segment_id, len(segment.data))
    other = map_segment(str(arena), segment.segment_id, len(segment.data))
    one.tensor("a.weight")[:4] = b"\xff\xff\xff\xff"
    assert one.tensor("a.weight")[:4] == b"\xff\xff\xff\xff"
    assert other.tensor("a.weight") == pattern(1, 600_000)
    assert (arena / segment.segment_id).read_bytes() == segment.data


def test_a_read_only_mapping_refuses_to_be_written(arena: Path, put: Put, segment: SegmentFile) -> None:
    put(segment)
    image = map_segment(str(arena), segment.segment_id, len(segment.data), read_only=True)
    with pytest.raises(TypeError):
        image.tensor("a.weight")[0] = 1


def test_a_file_that_may_only_be_read_is_mapped(arena: Path, put: Put, segment: SegmentFile) -> None:
    put(segment)
    (arena / segment.segment_id).chmod(0o400)
    map_segment(str(arena), segment.segment_id, len(segment.data)).tensor("scalar")[0] = 1


def test_the_bytes_stay_after_the_file_has_gone_and_go_with_the_last_view(
    arena: Path, put: Put, segment: SegmentFile
) -> None:
    put(segment)
    image = map_segment(str(arena), segment.segment_id, len(segment.data))
    (arena / segment.segment_id).unlink()
    view = image.tensor("a.weight")
    del image
    gc.collect()
    assert view == pattern(1, 600_000)
    assert segment.segment_id in Path("/proc/self/maps").read_text()
    del view
    gc.collect()
    assert segment.segment_id not in Path("/proc/self/maps").read_text()


CHILD = """
import os, sys
from warmshelf.mapping import map_segment
image = map_segment(sys.argv[1], sys.argv[2], int(sys.argv[3]))
image.tensor("a.weight")[0] = 7
{ending}
"""


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "1 / 0", "os.kill(os.getpid(), 9)"])
def test_a_process_that_ends_leaves_the_segment(arena: Path, put: Put, segment: SegmentFile, ending: str) -> None:
    """B43: however it ends, and without a word about leaked memory."""
    put(segment)
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(ending=ending), str(arena), segment.segment_id, str(len(segment.data))],
        capture_output=True,
        check=False,
        text=True,
    )
    assert (arena / segment.segment_id).read_bytes() == segment.data
    assert "leak" not in done.stderr


def test_a_directory_that_is_not_here_is_not_visible(tmp_path: Path, segment: SegmentFile) -> None:
    """B47."""
    assert reason(tmp_path / "nowhere", segment) == "arena_not_visible"
    (tmp_path / "file").touch()
    assert reason(tmp_path / "file", segment) == "arena_not_visible"


def test_another_arena_lacks_the_segment(arena: Path, segment: SegmentFile) -> None:
    """B47."""
    assert reason(arena, segment) == "segment_not_found"


def test_a_file_of_the_same_name_from_another_host_is_noticed(arena: Path, segment: SegmentFile) -> None:
    """B47: by the id in its header, or by its length."""
    other = write_segment({"a.weight": ("U8", (3,), b"abc")}, segment_id="f" * 32)
    (arena / other.segment_id).write_bytes(segment.data)
    wrong_id = SegmentFile(other.segment_id, segment.data, segment.content_size_bytes)
    assert reason(arena, wrong_id) == "other_host"
    (arena / segment.segment_id).write_bytes(other.data)
    assert reason(arena, segment) == "other_host"


def test_a_newer_format_is_left_to_the_stream(arena: Path, put: Put) -> None:
    newer = put(write_segment({"w": ("U8", (1,), b"x")}, version=2))
    assert reason(arena, newer) == "format_too_new"


def test_a_broken_file_is_not_mapped(arena: Path, put: Put, segment: SegmentFile) -> None:
    put(SegmentFile(segment.segment_id, b"\0" * len(segment.data), 0))
    assert reason(arena, segment) == "map_failed"


def test_what_is_no_regular_file_is_not_mapped(arena: Path, tmp_path: Path, segment: SegmentFile) -> None:
    """B54: no link is followed, and nothing hangs on a pipe."""
    (tmp_path / "outside").write_bytes(segment.data)
    (arena / segment.segment_id).symlink_to(tmp_path / "outside")
    assert reason(arena, segment) == "map_failed"
    (arena / segment.segment_id).unlink()
    os.mkfifo(arena / segment.segment_id)
    assert reason(arena, segment) == "other_host"


@pytest.mark.parametrize(
    "name", ["", "..", "../" + "a" * 29, "A" * 32, "a" * 31, "a" * 33, "/etc/passwd", "a" * 32 + "\n"]
)
def test_a_name_that_is_no_segment_id_is_never_opened(arena: Path, name: str) -> None:
    """B54."""
    with pytest.raises(Internal):
        map_segment(str(arena), name, 4096)
