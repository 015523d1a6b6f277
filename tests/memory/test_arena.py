"""Opening an arena, and its books."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.arenas import MIB, NOBODY, Arenas, Mounter, Process, load, mib_files, tensors_in
from warmshelf.errors import ArenaFull, DaemonInUse, InvalidConfig, LargerThanArena
from warmshelfd.memory import budgeting
from warmshelfd.memory.arena import Arena, PinPolicy
from warmshelfd.memory.books import Books, Reservation

# --- opening ----------------------------------------------------------------


def test_a_directory_that_is_not_there_is_made_for_its_owner_alone(arenas: Arenas, shm: Path) -> None:
    arena = arenas.open(shm / "a" / "b")
    assert os.stat(arena.directory).st_mode & 0o777 == 0o700


def test_a_second_daemon_is_refused_and_told_who_has_the_directory(shm: Path) -> None:
    with Process("hold", shm) as holder:
        assert holder.line() == "held"
        with pytest.raises(DaemonInUse, match=f"in use by process {holder.popen.pid} \\(") as refused:
            Arena.open(str(shm), MIB, PinPolicy.OFF)
        assert refused.value.details["pid_number"] == holder.popen.pid


def test_what_a_killed_daemon_left_does_not_block_the_next(arenas: Arenas, shm: Path) -> None:
    with Process("hold", shm) as holder:
        assert holder.line() == "held"
        holder.kill()
    assert arenas.open(shm).usage().resident_bytes == 0


def test_a_closed_arena_can_be_opened_again(shm: Path) -> None:
    for _ in range(3):
        Arena.open(str(shm), MIB, PinPolicy.OFF).close()


def test_a_refused_start_leaves_the_directory_free(arenas: Arenas, shm: Path) -> None:
    with pytest.raises(InvalidConfig):
        Arena.open(str(shm), 0, PinPolicy.OFF)
    arenas.open(shm)


@pytest.mark.parametrize("budget", [0, -1])
def test_a_budget_of_nothing_is_refused(shm: Path, budget: int) -> None:
    with pytest.raises(InvalidConfig, match=f"budget of {budget} bytes"):
        Arena.open(str(shm), budget, PinPolicy.OFF)


def test_a_budget_beyond_the_file_system_is_cut_to_it_and_grows_no_further(shm: Path) -> None:
    stat = os.statvfs(shm)
    total = stat.f_blocks * stat.f_frsize
    arena = Arena.open(str(shm), total + 5, PinPolicy.OFF)
    with contextlib.closing(arena):
        assert (arena.budget_bytes, arena.lacking_bytes) == (total, 5)
        with pytest.raises(InvalidConfig) as refused:
            arena.grow(total + 1)
    assert refused.value.details == {"budget_bytes": total + 1, "total_bytes": total}


def test_a_budget_that_with_the_reserve_exceeds_the_cgroup_is_refused(
    shm: Path, arenas: Arenas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgeting, "memory_limit_bytes", lambda: 8 * MIB)
    with pytest.raises(InvalidConfig, match=f"leaves for it: {6 * MIB} bytes"):
        Arena.open(str(shm), 6 * MIB + 1, PinPolicy.OFF, reserve_bytes=2 * MIB)
    assert arenas.open(shm, None).budget_bytes == 8 * MIB


def test_without_a_budget_it_is_half_of_what_is_free(mount: Mounter, arenas: Arenas) -> None:
    path = mount(size="16m")
    (path / "foreign").write_bytes(bytes(4 * MIB))
    assert arenas.open(path, None).budget_bytes == 6 * MIB


def test_without_a_budget_a_restart_has_the_same_again(mount: Mounter) -> None:
    path = mount(size="16m")
    first = Arena.open(str(path), None, PinPolicy.OFF)
    load(first, mib_files(5))
    first.close()
    second = Arena.open(str(path), None, PinPolicy.OFF)
    assert second.budget_bytes == first.budget_bytes
    second.close()


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidConfig, match="File exists"):
        Arena.open(str(tmp_path / "file"), MIB, PinPolicy.OFF)


def test_a_directory_of_another_user_is_refused(shm: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(shm, NOBODY, NOBODY)
    with pytest.raises(InvalidConfig, match=f"belongs to user {NOBODY}"):
        Arena.open(str(shm), MIB, PinPolicy.OFF)


# --- the books --------------------------------------------------------------


def test_what_is_larger_than_the_budget_is_refused_for_good(arena: Arena) -> None:
    with pytest.raises(LargerThanArena) as refused:
        arena.reserve(64 * MIB + 1)
    assert refused.value.details == {"needed_bytes": 64 * MIB + 1, "budget_bytes": 64 * MIB}


def test_what_is_exactly_as_large_as_the_budget_fits(mount: Mounter, arenas: Arenas) -> None:
    """B37, also where the budget is the whole file system."""
    arena = arenas.open(mount(size="8m", huge="always"), 8 * MIB)
    files = mib_files(7)
    segment = load(arena, files)
    assert segment.size_bytes == 8 * MIB
    assert tensors_in(segment) == files.tensors()


def test_what_does_not_fit_now_is_refused_with_the_numbers(arena: Arena) -> None:
    segment = load(arena, mib_files(8))
    kept = arena.reserve(16 * MIB)
    with pytest.raises(ArenaFull) as refused:
        arena.reserve(41 * MIB)
    free = 48 * MIB - segment.size_bytes
    assert refused.value.details == {
        "needed_bytes": 41 * MIB,
        "free_bytes": free,
        "budget_bytes": 64 * MIB,
        "resident_bytes": segment.size_bytes,
        "reserved_bytes": 16 * MIB,
        "unnamed_bytes": 0,
    }
    assert arena.usage().free_bytes == free
    kept.release()
    arena.reserve(41 * MIB).release()


def test_a_reservation_is_given_back_once_however_often_it_is_released(arena: Arena) -> None:
    first, second = arena.reserve(MIB), arena.reserve(2 * MIB)
    first.release()
    first.release()
    assert arena.usage().reserved_bytes == 2 * MIB
    second.release()
    assert arena.usage().free_bytes == 64 * MIB


def test_room_that_the_file_system_does_not_have_is_not_promised(mount: Mounter, arenas: Arenas) -> None:
    path = mount(size="16m")
    arena = arenas.open(path, 16 * MIB)
    (path / "foreign").write_bytes(bytes(10 * MIB))
    assert arena.usage().free_bytes == 6 * MIB
    kept = arena.reserve(4 * MIB)
    with pytest.raises(ArenaFull, match=f"{2 * MIB} of {16 * MIB} bytes are free"):
        arena.reserve(3 * MIB)
    kept.release()


def test_fifty_racing_threads_never_hold_more_than_the_budget(arena: Arena) -> None:
    """B40"""
    held_bytes, over, granted = 0, [], []
    counting = threading.Lock()  # guards the three above
    start = threading.Barrier(50)

    def race(size: int) -> None:
        nonlocal held_bytes
        start.wait()
        for _ in range(40):
            try:
                reservation = arena.reserve(size)
            except ArenaFull:
                continue
            with counting:
                held_bytes += size
                granted.append(size)
                if held_bytes > arena.budget_bytes or arena.usage().reserved_bytes > arena.budget_bytes:
                    over.append(held_bytes)
            with counting:
                held_bytes -= size
            reservation.release()

    threads = [threading.Thread(target=race, args=((3 + i % 7) * MIB,)) for i in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert granted
    assert not over
    assert arena.usage().free_bytes == 64 * MIB


class OnlyFile:
    """A file system on which nothing but the books' own files lies."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken = 0

    def free(self) -> int:
        return self.size - self.taken


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["reserve", "allocate", "seal", "abort", "unlink"]), st.integers(0, 60))))
def test_promises_never_exceed_budget_or_file_system_and_all_come_back(steps: list[tuple[str, int]]) -> None:
    volume = OnlyFile(80)
    books = Books(100, volume.free)
    open_: list[Reservation] = []
    sealed: list[int] = []
    for action, number in steps:
        if action == "reserve":
            if number > books.usage().free_bytes:
                with pytest.raises(ArenaFull):
                    books.reserve(number)
            else:
                open_.append(books.reserve(number))
        elif action == "unlink" and sealed:
            volume.taken -= sealed[-1]
            books.remove_resident(sealed.pop())
        elif open_:
            reservation = open_[number % len(open_)]
            rest = reservation.size - reservation.allocated
            part = min(number, rest) if action == "allocate" else rest if action == "seal" else -reservation.allocated
            volume.taken += part
            if action == "abort":
                reservation.release()
                open_.remove(reservation)
                continue
            reservation.allocate(part)
            if action == "seal":
                reservation.become_resident(reservation.size)
                open_.remove(reservation)
                sealed.append(reservation.size)
        usage = books.usage()
        promised = sum(r.size - r.allocated for r in open_)
        assert usage.free_bytes == min(100 - sum(sealed) - sum(r.size for r in open_), volume.free() - promised) >= 0
    for reservation in open_:
        volume.taken -= reservation.allocated
        reservation.release()
    for size in sealed:
        volume.taken -= size
        books.remove_resident(size)
    assert books.usage().free_bytes == 80
