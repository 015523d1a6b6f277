"""Bytes in: from a source's files into a segment, or not at all."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import threading
from pathlib import Path

import crc32c
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
    load,
    mib_files,
    tensors_in,
)
from warmshelf.errors import ArenaFull, Internal, LoadCancelled, SourceUnavailable
from warmshelf.segment import BLOCK_BYTES, Section
from warmshelfd.memory.arena import Arena
from warmshelfd.memory.filling import READ_BYTES, Filling

SHAPES = {
    "nothing": Files([]),
    "empty tensors only": Files([[0, 0]]),
    "one byte": Files([[1]]),
    "one block to the byte": Files([[BLOCK_BYTES - 4096]], head=4096),
    "one byte beyond a block": Files([[BLOCK_BYTES - 4095]], head=4096),
    "three files at odd offsets": Files([[5 * MIB + 3, 7], [1, 2 * MIB], [100, 0, 100]], head=4097),
    "small tensors, packed": Files([[300, 7, 0, 65, 2 * MIB, 64]], packed=True),
    "more than one part": Files([[33 * MIB]], head=0),
}


@pytest.mark.parametrize("gap_bytes", [0, 1, 4096])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_byte_arrives_where_the_layout_says(arena: Arena, shape: str, threads: int, gap_bytes: int) -> None:
    segment = load(arena, SHAPES[shape], threads=threads, gap_bytes=gap_bytes)
    assert tensors_in(segment) == SHAPES[shape].tensors()
    assert segment.checked
    segment.check_blocks(threads, lambda: False)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_stored_crcs_are_those_of_one_pass_over_the_file(arena: Arena, shape: str) -> None:
    segment = load(arena, SHAPES[shape])
    raw = Path(arena.directory, segment.segment_id).read_bytes()
    data = segment.header.data
    blocks = [raw[max(at, data.offset) : min(at + BLOCK_BYTES, data.end)] for at in range(0, data.end, BLOCK_BYTES)]
    expected = [crc32c.crc32c(block) for block in blocks if block]
    assert [segment.block_crc(index) for index in range(len(expected))] == expected


def test_what_lies_between_tensors_is_zero(arena: Arena) -> None:
    files = Files([[1, 1], [1]], packed=True)
    segment = load(arena, files)
    data = segment.header.data
    covered = {t.offset_bytes for t in segment.layout.tensors}
    raw = segment.read(0, data.end)
    assert {raw[i] for i in range(data.offset, data.end) if i not in covered} == {0}


def test_progress_rises_to_all_bytes_of_the_source(arena: Arena) -> None:
    told: list[int] = []
    fill(writer := create(arena, mib_files(34, 3)), mib_files(34, 3).read, threads=3, progress=told.append)
    writer.abort()
    assert told == sorted(told)
    assert told[-1] == 37 * MIB


def test_no_read_is_long_or_reaches_beyond_its_file(arena: Arena) -> None:
    files = Files([[9 * MIB + 5], [9]])
    asked: list[tuple[int, int, int]] = []

    def read(file_index: int, offset: int, view: memoryview) -> None:
        asked.append((file_index, offset, len(view)))
        files.read(file_index, offset, view)

    fill(writer := create(arena, files), read)
    writer.abort()
    assert READ_BYTES // 2 < max(size for _, _, size in asked) <= READ_BYTES
    assert all(offset + size <= len(files.data[i]) for i, offset, size in asked)
    assert sum(size for _, _, size in asked) == 9 * MIB + 14


def test_small_tensors_are_read_together_where_a_read_costs_a_round_trip(arena: Arena) -> None:
    files = Files([[10_000] * 1000, [5] * 100], packed=True)
    asked: list[tuple[int, int, int]] = []

    def read(file_index: int, offset: int, view: memoryview) -> None:
        asked.append((file_index, offset, len(view)))
        files.read(file_index, offset, view)

    fill(writer := create(arena, files), read, gap_bytes=1)
    writer.abort()
    assert len(asked) <= 5
    assert sum(size for _, _, size in asked) == 10_000_500


class Unmade(Files):
    """Files whose bytes are made as they are read."""

    def __post_init__(self) -> None:
        pass


def anonymous_bytes() -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def test_a_load_takes_its_segment_and_little_else(arenas: Arenas, shm: Path) -> None:
    """B40: no second copy, at no moment."""
    arena = arenas.open(shm, 256 * MIB)
    one_read = bytes(range(256)) * (READ_BYTES // 256)
    before = anonymous_bytes()
    peak = 0

    def read(file_index: int, offset: int, view: memoryview) -> None:
        nonlocal peak
        view[:] = one_read[: len(view)]
        peak = max(peak, anonymous_bytes())

    writer = create(arena, Unmade([[150 * MIB]]))
    fill(writer, read)
    assert peak - before < 16 * MIB
    writer.abort()


# --- what goes wrong --------------------------------------------------------


class BrokenAfter:
    """A source that fails from the n-th read on."""

    def __init__(self, files: Files, reads: int) -> None:
        self.files = files
        self.left = reads
        self.failed = 0

    def read(self, file_index: int, offset: int, view: memoryview) -> None:
        self.left -= 1
        if self.left < 0:
            self.failed += 1
            raise SourceUnavailable(f"read {self.failed} failed")
        self.files.read(file_index, offset, view)


def test_the_first_error_stops_all_threads_and_is_the_one_raised(arena: Arena) -> None:
    source = BrokenAfter(mib_files(50), 5)
    writer = create(arena, source.files)
    before = set(threading.enumerate())
    with pytest.raises(SourceUnavailable, match="read 1 failed"):
        fill(writer, source.read, threads=2)
    assert source.failed <= 2
    assert set(threading.enumerate()) <= before
    writer.abort()
    assert arena.usage().free_bytes == arena.budget_bytes


def test_a_cancelled_load_stops_before_its_next_read(arena: Arena) -> None:
    source = BrokenAfter(mib_files(20), 1000)
    writer = create(arena, source.files)
    with pytest.raises(LoadCancelled):
        fill(writer, source.read, threads=1, cancelled=lambda: source.left <= 997)
    assert source.left == 997
    writer.abort()


def test_an_aborted_load_leaves_nothing_however_often_it_is_aborted(arena: Arena) -> None:
    writer = create(arena, mib_files(3))
    fill(writer, mib_files(3).read)
    writer.abort()
    writer.abort()
    assert os.listdir(arena.directory) == ["arena.lock"]
    assert arena.usage().free_bytes == arena.budget_bytes


def test_a_published_segment_cannot_be_aborted_any_more(arena: Arena) -> None:
    writer = create(arena, mib_files(1))
    fill(writer, mib_files(1).read)
    writer.finish(MANIFEST)
    segment = writer.publish()
    writer.abort()
    assert arena.segment_ids() == [segment.segment_id]
    assert arena.usage().resident_bytes == segment.size_bytes


def test_bytes_of_an_aborted_load_count_while_a_view_of_them_is_held(arena: Arena) -> None:
    """A source that failed may still have a view in its traceback."""
    kept: list[memoryview] = []

    def read(file_index: int, offset: int, view: memoryview) -> None:
        kept.append(view[1:])
        raise SourceUnavailable("gone")

    writer = create(arena, mib_files(1))
    with pytest.raises(SourceUnavailable):
        fill(writer, read)
    writer.abort()
    assert arena.usage().unnamed_bytes == writer.size_bytes
    kept.clear()
    assert arena.usage().unnamed_bytes == 0


def test_a_caught_error_does_not_keep_the_bytes_in_memory(arena: Arena) -> None:
    writer = create(arena, mib_files(1))
    gc.disable()
    try:
        fill(writer, BrokenAfter(mib_files(1), 0).read)
    except SourceUnavailable as error:
        caught = error
        writer.abort()
    assert caught.__traceback__ is not None
    assert arena.usage().unnamed_bytes == 0
    gc.enable()


class ViewInTraceback:
    """A source that fails with a part of its view in a local variable."""

    def read(self, file_index: int, offset: int, view: memoryview) -> None:
        rest = view[1:]
        raise SourceUnavailable(f"{len(rest)} bytes are missing")


def test_an_error_that_is_gone_keeps_no_bytes_in_memory(arena: Arena) -> None:
    gc.disable()
    writer = create(arena, mib_files(1))
    with contextlib.suppress(SourceUnavailable):
        fill(writer, ViewInTraceback().read)
    writer.abort()
    assert arena.usage().unnamed_bytes == 0
    gc.enable()


def test_what_a_load_under_way_has_taken_is_counted_once(mount: Mounter, arenas: Arenas) -> None:
    arena = arenas.open(mount(size="16m"), 16 * MIB)
    writer = create(arena, mib_files(5))
    for _ in range(2):
        assert arena.usage().free_bytes == 16 * MIB - writer.size_bytes
        fill(writer, mib_files(5).read)
    writer.abort()


def test_a_full_file_system_is_arena_full_before_any_byte_is_read(mount: Mounter, arenas: Arenas) -> None:
    """B42: the room was promised, then another process took it. No SIGBUS."""
    path = mount(size="64m")
    arena = arenas.open(path)
    writer = create(arena, mib_files(40))
    source = BrokenAfter(mib_files(40), 1000)
    with Process("fill-up", path) as filler:
        assert filler.line() == "full"
        with pytest.raises(ArenaFull, match="No space left on device") as refused:
            fill(writer, source.read)
        assert 0 < refused.value.details["needed_bytes"] < writer.size_bytes  # what one thread takes at a time
        assert source.left == 1000
        filler.end()
    writer.abort()
    assert tensors_in(load(arena, mib_files(40))) == mib_files(40).tensors()


class FullDuringRead:
    """A source during whose first read another process takes all room of the file system."""

    def __init__(self, files: Files, directory: Path) -> None:
        self.files = files
        self.directory = directory
        self.filler: Process | None = None

    def read(self, file_index: int, offset: int, view: memoryview) -> None:
        if self.filler is None:
            self.filler = Process("fill-up", self.directory)
            assert self.filler.line() == "full"
        self.files.read(file_index, offset, view)


def test_a_file_system_that_fills_up_during_the_load_is_arena_full(mount: Mounter, arenas: Arenas) -> None:
    """B42"""
    path = mount(size="64m")
    arena = arenas.open(path)
    source = FullDuringRead(mib_files(40), path)
    writer = create(arena, source.files)
    with pytest.raises(ArenaFull, match="No space left on device"):
        fill(writer, source.read, threads=1)
    assert source.filler is not None
    assert source.filler.end() == 0
    writer.abort()
    assert arena.usage().free_bytes == 64 * MIB


def test_a_file_system_without_room_for_one_more_file_is_arena_full(mount: Mounter, arenas: Arenas) -> None:
    path = mount(size="8m", nr_inodes=3)  # the root, the lock, one more
    arena = arenas.open(path, 4 * MIB)
    (path / "foreign").touch()
    plan = mib_files(1).plan()
    reservation = arena.reserve(2 * MIB)
    with pytest.raises(ArenaFull, match="no inode left for one more file"):
        arena.create(reservation, plan, b"", 0, arena.new_segment_id())
    reservation.release()


def test_a_part_is_left_when_another_thread_has_failed() -> None:
    source = BrokenAfter(mib_files(2), 0)
    plan = source.files.plan()
    with memoryview(bytearray(plan.data_end)) as view:
        data = Section(4096, plan.data_end - 4096)
        filling = Filling(view, plan, data, lambda *_: None, source.read, lambda: False, lambda _: None)
        filling.fill_part((0, plan.data_end), lambda: True)
    assert source.failed == 0


# --- misuse by our own code is loud -----------------------------------------


def test_data_that_are_not_all_in_can_neither_be_read_nor_sealed(arena: Arena) -> None:
    writer = create(arena, mib_files(1))
    with pytest.raises(Internal, match="not filled"):
        writer.read(0, 1)
    with pytest.raises(Internal, match="cannot be sealed"):
        writer.finish(MANIFEST)
    writer.abort()


def test_a_manifest_beyond_its_room_is_refused(arena: Arena) -> None:
    writer = create(arena, mib_files(1))
    fill(writer, mib_files(1).read)
    with pytest.raises(Internal, match="4097 bytes, room for 4096"):
        writer.finish(bytes(4097))
    writer.abort()


def test_nothing_is_sealed_while_somebody_could_still_write(arena: Arena) -> None:
    writer = create(arena, mib_files(1))
    fill(writer, mib_files(1).read)
    data = writer.read(0, 1)
    with pytest.raises(Internal, match="while a view of it is in use"):
        writer.finish(MANIFEST)
    data.release()
    writer.abort()


def test_data_before_sealing_are_read_only_and_at_the_layouts_offsets(arena: Arena) -> None:
    files = Files([[10, 20]])
    writer = create(arena, files)
    fill(writer, files.read)
    with writer.read(0, writer.size_bytes) as data:
        assert data.readonly
        assert {t.name: bytes(data[t.offset_bytes : t.end_bytes]) for t in writer.tensors} == files.tensors()
    writer.abort()
