"""What stops the demo before it begins, said in one line."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from examples.demo import BUDGET_BYTES, memory_hindrance

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.e2e


def volume(size_bytes, free_bytes):
    """A file system with pages of 4 KiB, as statvfs tells of it."""
    return SimpleNamespace(f_frsize=4096, f_blocks=size_bytes // 4096, f_bavail=free_bytes // 4096)


def test_a_small_memory_file_system_is_named_with_both_ways_out():
    said = memory_hindrance(Path("/dev/shm"), volume(64 << 20, 64 << 20))
    assert all(part in said for part in ("/dev/shm", "67 MB", "403 MB", "--memory DIR", "docker run --shm-size"))
    assert "\n" not in said


def test_a_file_system_with_just_enough_room_or_no_limit_is_taken():
    assert memory_hindrance(Path("/dev/shm"), volume(1 << 30, BUDGET_BYTES)) == ""
    assert memory_hindrance(Path("/dev/shm"), volume(1 << 30, BUDGET_BYTES - 4096)) != ""
    assert memory_hindrance(Path("/dev/shm"), volume(0, 0)) == ""


def refused(*arguments):
    """Start the demo with places that do not do; return the line it says."""
    command = [sys.executable, "-m", "examples.demo", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def test_facts_that_cannot_be_written_stop_it_at_once(tmp_path):
    place = tmp_path / "nowhere" / "facts.json"
    assert str(place) in refused("--json", place, "--cache", tmp_path)


def test_a_memory_directory_that_is_not_there_stops_it_at_once(tmp_path):
    assert f"{tmp_path}/nowhere" in refused("--memory", tmp_path / "nowhere", "--cache", tmp_path)
