"""Page-locking, with and without the right to it."""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path

import pytest

from kit.arenas import MIB, NOBODY, SEGMENT_ID, Arenas, Process, load, mib_files
from warmshelf.errors import PinningFailed
from warmshelfd.memory.arena import Arena, PinPolicy
from warmshelfd.memory.pinning import check_lockable, choose_pinning, lock_pages

LOCKABLE_BYTES = 64 << 10
"""Within everybody's limit."""


def locked_bytes() -> int:
    found = re.search(r"VmLck:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


@pytest.mark.parametrize("access", [mmap.ACCESS_READ, mmap.ACCESS_WRITE])
def test_a_mapping_is_locked_as_a_whole_and_let_go(access: int) -> None:
    before = locked_bytes()
    with mmap.mmap(-1, LOCKABLE_BYTES, access=access) as mapping:
        lock_pages(mapping)
        assert locked_bytes() - before == LOCKABLE_BYTES
    assert locked_bytes() == before


def test_asking_whether_pages_could_be_locked_takes_no_memory() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may lock so much")
    before = Path("/proc/self/statm").read_text().split()[1]
    check_lockable(1 << 40)
    assert int(Path("/proc/self/statm").read_text().split()[1]) - int(before) < 256
    assert locked_bytes() == 0


def test_more_than_there_are_addresses_cannot_be_locked() -> None:
    with pytest.raises(PinningFailed, match="ENOMEM"):
        check_lockable(1 << 60)


def test_locking_that_fails_half_way_leaves_nothing_locked(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * mmap.PAGESIZE))
    before = locked_bytes()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        file.truncate(mmap.PAGESIZE)  # the second page of the mapping is not there any more
        with pytest.raises(PinningFailed, match=f"cannot page-lock {2 * mmap.PAGESIZE} bytes: ENOMEM"):
            lock_pages(mapping)
        assert locked_bytes() == before


@pytest.mark.parametrize(
    ("policy", "is_hugetlb", "pinning"),
    [
        (PinPolicy.OFF, False, "none"),
        (PinPolicy.PREFER, False, "mlock"),
        (PinPolicy.REQUIRE, False, "mlock"),
        (PinPolicy.OFF, True, "hugetlb"),
        (PinPolicy.REQUIRE, True, "hugetlb"),
    ],
)
def test_the_policy_chooses_how(policy: PinPolicy, is_hugetlb: bool, pinning: str) -> None:
    assert choose_pinning(policy, LOCKABLE_BYTES, is_hugetlb=is_hugetlb) == pinning


def test_what_cannot_be_locked_is_not_if_preferred_and_an_error_if_required() -> None:
    assert choose_pinning(PinPolicy.PREFER, 1 << 60, is_hugetlb=False) == "none"
    with pytest.raises(PinningFailed):
        choose_pinning(PinPolicy.REQUIRE, 1 << 60, is_hugetlb=False)


def locked_in_arena(segment_id: str) -> int:
    """Return how many bytes of a segment's mapping the kernel counts as locked."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.endswith(segment_id):
            return next(int(it.split()[1]) << 10 for it in lines if it.startswith("Locked:"))
    return 0


def test_segments_are_locked_while_resident_loaded_or_adopted(arenas: Arenas, shm: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may lock so much")
    first = Arena.open(str(shm), 64 * MIB, PinPolicy.PREFER)
    segment = load(first, mib_files(2), SEGMENT_ID)
    assert (first.pinning, segment.pinned, locked_in_arena(SEGMENT_ID)) == ("mlock", True, segment.size_bytes)
    segment.close()
    first.close()
    assert locked_in_arena(SEGMENT_ID) == 0
    arena = arenas.open(shm, pin=PinPolicy.REQUIRE)
    segment = arena.adopt(SEGMENT_ID)
    assert (segment.pinned, locked_in_arena(SEGMENT_ID)) == (True, segment.size_bytes)
    assert not arena.in_use(segment)
    assert locked_in_arena(SEGMENT_ID) == segment.size_bytes
    arena.unlink(segment)
    assert locked_bytes() == 0


@pytest.fixture
def anybodys(shm: Path) -> Path:
    """A directory of the user that a process without privileges is."""
    if os.geteuid() == 0:
        os.chown(shm, NOBODY, NOBODY)
    return shm


def test_without_the_right_to_lock_segments_are_served_unpinned(anybodys: Path) -> None:
    """B41"""
    with Process("pin", anybodys, "prefer") as daemon:
        assert daemon.line() == "none False True"


def test_without_the_right_to_lock_a_daemon_that_must_does_not_start(anybodys: Path) -> None:
    """B41"""
    with Process("pin", anybodys, "require") as daemon:
        said = daemon.line()
    assert said.startswith(f"PINNING_FAILED: cannot page-lock {8 * MIB} bytes: ENOMEM")
    assert said.endswith(f"RLIMIT_MEMLOCK is {64 << 10} bytes")


def test_locking_that_fails_after_the_start_publishes_nothing_if_required(
    anybodys: Path,
) -> None:
    with Process("pin-late", anybodys, "require") as daemon:
        assert daemon.line().startswith("PINNING_FAILED: cannot page-lock")
        assert daemon.line() == "['arena.lock']"


def test_locking_that_fails_after_the_start_is_served_unpinned_if_preferred(
    anybodys: Path,
) -> None:
    with Process("pin-late", anybodys, "prefer") as daemon:
        assert daemon.line() == "mlock False True"


def test_what_must_be_locked_and_cannot_be_is_not_adopted(anybodys: Path) -> None:
    with Process("adopt-late", anybodys) as daemon:
        assert daemon.line() == "PINNING_FAILED"
        assert daemon.line() == str(2 * MIB)
