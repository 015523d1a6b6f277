"""Sealed segments: nobody changes them, and nobody loses what he has mapped."""

from __future__ import annotations

import fcntl
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.arenas import (
    MANIFEST,
    MIB,
    Arenas,
    Files,
    Mounter,
    Process,
    create,
    fill,
    hash_of,
    load,
    mapping_of,
    mib_files,
    tensors_in,
)
from warmshelf.errors import LoadCancelled
from warmshelf.segment import parse_header
from warmshelfd.memory.arena import Arena
from warmshelfd.memory.mapped_file import MappedFile
from warmshelfd.memory.segment import Segment


def path_of(arena: Arena, segment: Segment) -> Path:
    return Path(arena.directory, segment.segment_id)


# --- what a segment is ------------------------------------------------------


def test_a_segment_says_what_it_is(arena: Arena) -> None:
    files = mib_files(2)
    segment = load(arena, files)
    raw = path_of(arena, segment).read_bytes()
    assert parse_header(raw, len(raw)) == segment.header
    assert (segment.segment_id, segment.size_bytes) == (segment.header.segment_id, len(raw))
    assert segment.read(0, segment.size_bytes) == raw
    assert segment.manifest.SerializeToString() == MANIFEST
    (spec,) = segment.layout.segments
    assert (spec.segment_id, spec.size_bytes) == (segment.segment_id, len(raw))
    assert spec.content_size_bytes == segment.header.content_size_bytes
    assert not any(raw[spec.content_size_bytes :])
    assert segment.layout_bytes == raw[segment.header.layout.offset : segment.header.layout.end]


def test_a_file_has_its_name_only_when_it_is_whole(arena: Arena) -> None:
    files = mib_files(1)
    writer = create(arena, files)
    fill(writer, files.read)
    writer.finish(MANIFEST)
    assert arena.segment_ids() == []
    segment = writer.publish()
    assert arena.segment_ids() == [segment.segment_id]
    assert sorted(os.listdir(arena.directory)) == sorted([segment.segment_id, "arena.lock"])


def test_nobody_can_write_and_the_group_can_read(arena: Arena) -> None:
    """B45"""
    segment = load(arena, mib_files(1))
    assert os.stat(path_of(arena, segment)).st_mode & 0o777 == 0o440
    with pytest.raises(TypeError):
        mapping_of(segment)[5000] = 1


def test_the_daemon_maps_a_sealed_segment_for_reading_only(arena: Arena) -> None:
    """B45"""
    segment = load(arena, mib_files(1))
    assert mapping_of(segment).readonly
    assert mapping_of(segment)[4096:].readonly
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if segment.segment_id in line]
    assert [re.split(" +", line)[1] for line in maps] == ["r--s"]


def test_checking_stops_when_told_and_says_so(arena: Arena) -> None:
    segment = load(arena, mib_files(3))
    segment.checked = False
    with pytest.raises(LoadCancelled):
        segment.check_blocks(2, lambda: True)
    assert not segment.checked
    segment.check_blocks(2, lambda: False)
    assert segment.checked


def test_a_segment_closes_more_than_once_and_views_stay_valid(arena: Arena) -> None:
    files = Files([[100]])
    segment = load(arena, files)
    tensor = segment.layout.tensors[0]
    view = mapping_of(segment)[tensor.offset_bytes : tensor.end_bytes]
    segment.close()
    segment.close()
    assert bytes(view) == files.tensors()["t0.0"]
    with pytest.raises(ValueError, match="closed"):
        segment.read(0, 1)


# --- unlinking --------------------------------------------------------------


def test_an_unlinked_segment_gives_its_bytes_back_at_once(mount: Mounter, arenas: Arenas) -> None:
    arena = arenas.open(mount(size="16m"), 16 * MIB)
    before = arena.usage()
    segment = load(arena, mib_files(3))
    arena.unlink(segment)
    assert arena.usage() == before
    assert os.listdir(arena.directory) == ["arena.lock"]


def test_bytes_that_somebody_maps_stay_right_and_count_until_he_ends(mount: Mounter, arenas: Arenas) -> None:
    """B35, B43"""
    arena = arenas.open(mount(size="16m"), 16 * MIB)
    segment = load(arena, mib_files(3))
    with Process("map", path_of(arena, segment)) as worker:
        assert worker.line() == "mapped"
        expected = hash_of(mapping_of(segment))
        arena.unlink(segment)
        other = load(arena, mib_files(5))
        usage = arena.usage()
        assert usage.unnamed_bytes == segment.size_bytes
        assert usage.free_bytes == 16 * MIB - segment.size_bytes - other.size_bytes
        assert worker.ask() == expected
        assert worker.end() == 0
    usage = arena.usage()
    assert (usage.unnamed_bytes, usage.free_bytes) == (0, 16 * MIB - other.size_bytes)


def test_room_comes_back_for_the_next_load_without_anybody_asking_for_usage(mount: Mounter, arenas: Arenas) -> None:
    arena = arenas.open(mount(size="16m"), 16 * MIB)
    segment = load(arena, mib_files(9))
    with Process("map", path_of(arena, segment)) as worker:
        assert worker.line() == "mapped"
        arena.unlink(segment)
        worker.kill()
    assert tensors_in(load(arena, mib_files(10))) == mib_files(10).tensors()


def test_bytes_count_while_a_stream_of_our_own_has_a_view_of_them(arena: Arena) -> None:
    segment = load(arena, mib_files(1))
    with mapping_of(segment) as view:
        chunk = view[: 1 << 16]
        arena.unlink(segment)
        assert arena.usage().unnamed_bytes == segment.size_bytes
        assert bytes(chunk[:8]) == b"WARMSHLF"
    chunk.release()
    assert arena.usage().unnamed_bytes == 0


def test_a_segment_whose_name_is_gone_already_can_be_unlinked(arena: Arena) -> None:
    segment = load(arena, mib_files(1))
    path_of(arena, segment).unlink()
    arena.unlink(segment)
    assert arena.usage().free_bytes == arena.budget_bytes


def test_two_hundred_cycles_leave_memory_and_descriptors_flat(arena: Arena) -> None:
    """B35"""
    files = Files([[100_000]])
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(200):
        arena.unlink(load(arena, files))
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert arena.usage().free_bytes == arena.budget_bytes


# --- who uses it ------------------------------------------------------------


def test_a_segment_is_in_use_exactly_while_another_process_has_it(arena: Arena) -> None:
    segment = load(arena, mib_files(1))
    assert not arena.in_use(segment)
    with Process("map", path_of(arena, segment)) as worker:
        assert worker.line() == "mapped"
        assert arena.in_use(segment)
        worker.kill()
    assert not arena.in_use(segment)


def test_asking_takes_nothing_away(arena: Arena) -> None:
    segment = load(arena, mib_files(1))
    with mapping_of(segment) as view:
        assert not arena.in_use(segment)
        assert bytes(view[:8]) == b"WARMSHLF"


class OpenedWhileAsking:
    """A worker opens the file in the very moment in which the daemon asks who uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.workers: list[Process] = []
        self.fcntl = fcntl.fcntl

    def __call__(self, fd: int, command: int, argument: int = 0) -> int:
        if (command, argument) == (fcntl.F_SETLEASE, fcntl.F_UNLCK):
            self.workers.append(Process("map", self.path))
            while self.fcntl(fd, fcntl.F_GETLEASE) == fcntl.F_WRLCK:
                pass  # the lease changes when the worker's open has begun
        return self.fcntl(fd, command, argument)


def test_a_worker_that_opens_the_file_while_we_ask_harms_nobody(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel signals whoever has a lease that is broken, by default with a signal that kills."""
    segment = load(arena, mib_files(1))
    race = OpenedWhileAsking(path_of(arena, segment))
    monkeypatch.setattr(fcntl, "fcntl", race)
    assert not arena.in_use(segment)
    (worker,) = race.workers
    with worker:
        assert worker.line() == "mapped"
        assert arena.in_use(segment)


def test_a_segment_that_is_let_go_while_its_users_are_asked_about_has_none(tmp_path: Path) -> None:
    """A load and a smaller budget may want the same room: each asks, and one of them is first to let it go."""
    (tmp_path / "segment").write_bytes(b"x" * 4096)
    with ThreadPoolExecutor(4) as askers:
        for _ in range(300):
            file = MappedFile(os.open(tmp_path / "segment", os.O_RDONLY))
            asked = [askers.submit(file.is_used_elsewhere) for _ in range(8)]
            file.close()
            for one in asked:
                one.result()  # yes where another of the threads has it open, else no; never a failure
