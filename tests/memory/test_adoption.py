"""What a dead daemon left: taken in if it is whole, removed if it is ours, left alone if it is not."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import crc32c
import pytest

from kit.arenas import (
    MIB,
    NOBODY,
    SEGMENT_ID,
    Arenas,
    Files,
    Process,
    hash_of,
    load,
    mib_files,
    tensors_in,
)
from warmshelf.errors import ArenaFull, FormatTooNew, LargerThanArena, SegmentCorrupt, WarmshelfError
from warmshelf.segment import SegmentHeader, pack_header, parse_header
from warmshelf.v1 import artifact_pb2
from warmshelfd.memory.adoption import adopt
from warmshelfd.memory.arena import Arena, PinPolicy
from warmshelfd.memory.segment import Segment

OTHER_ID = "f" * 32

# --- killed at each step ----------------------------------------------------


@pytest.mark.parametrize("point", ["load.created", "load.part", "load.part=2", "load.sealed"])
def test_a_daemon_killed_before_publishing_leaves_nothing_behind(arenas: Arenas, shm: Path, point: str) -> None:
    """B39 (c), B42"""
    name, _, hit = point.partition("=")
    with Process("load", shm, env={"WARMSHELF_FAILPOINTS": f"{name}={hit or 1}*kill"}) as daemon:
        assert daemon.end() == -signal.SIGKILL
    assert f".{SEGMENT_ID}.loading" in os.listdir(shm)
    arena = arenas.open(shm)
    assert list(adopt(arena, [SEGMENT_ID])) == []
    assert os.listdir(shm) == ["arena.lock"]
    assert arena.usage().free_bytes == arena.budget_bytes


def test_a_daemon_killed_after_publishing_loses_nothing(arenas: Arenas, shm: Path) -> None:
    with Process("load", shm, env={"WARMSHELF_FAILPOINTS": "load.published=kill"}) as daemon:
        assert daemon.end() == -signal.SIGKILL
    arena = arenas.open(shm)
    ((segment_id, segment),) = adopt(arena, [SEGMENT_ID])
    assert isinstance(segment, Segment)
    assert (segment_id, segment.checked) == (SEGMENT_ID, False)
    segment.check_blocks(2, lambda: False)
    assert segment.checked
    assert tensors_in(segment) == mib_files(40).tensors()
    assert arena.usage().resident_bytes == segment.size_bytes


def test_a_daemon_killed_while_it_adopts_loses_nothing(arenas: Arenas, shm: Path) -> None:
    with Process("load", shm) as daemon:
        assert daemon.line() == "loaded"
    with Process("adopt", shm, env={"WARMSHELF_FAILPOINTS": "adopt.segment=kill"}) as daemon:
        assert daemon.end() == -signal.SIGKILL
    assert len(list(adopt(arenas.open(shm), [SEGMENT_ID]))) == 1


@pytest.mark.parametrize("name", ["load.created", "load.part", "load.sealed", "load.published"])
def test_an_error_at_any_step_gives_everything_back(shm: Path, name: str) -> None:
    with Process("load-and-abort", shm, env={"WARMSHELF_FAILPOINTS": f"{name}=error"}) as daemon:
        assert daemon.line() == f"INTERNAL: failpoint {name}"
        assert daemon.line() == str(64 * MIB)
        assert daemon.end() == 0
    assert os.listdir(shm) == ["arena.lock"]


def test_workers_of_a_dead_daemon_keep_their_bytes(arenas: Arenas, shm: Path) -> None:
    """B43: also when its segment is not adopted again."""
    with Process("load", shm) as daemon:
        assert daemon.line() == "loaded"
    with Process("map", shm / SEGMENT_ID) as worker:
        assert worker.line() == "mapped"
        expected = hash_of((shm / SEGMENT_ID).read_bytes())
        arena = arenas.open(shm)
        assert arena.remove_orphans([]) == [SEGMENT_ID]
        assert arena.usage().unnamed_bytes > 40 * MIB
        assert worker.ask() == expected
        worker.kill()
    assert arena.usage().unnamed_bytes == 0


# --- what stays and what goes -----------------------------------------------


@pytest.fixture
def left(shm: Path) -> Path:
    """A directory in which an earlier daemon left a segment of 3 MiB under SEGMENT_ID."""
    arena = Arena.open(str(shm), 64 * MIB, PinPolicy.OFF)
    load(arena, mib_files(3), SEGMENT_ID).close()
    arena.close()
    return shm


@pytest.mark.parametrize(("restored_mib", "found"), [(2, "somebody has cut it"), (4, "another CRC than stored")])
def test_a_file_that_is_cut_after_it_was_adopted_is_an_error_and_no_signal(
    left: Path, restored_mib: int, found: str
) -> None:
    with Process("adopt-cut", left, restored_mib) as daemon:
        line = daemon.line()
        assert line.startswith("SEGMENT_CORRUPT: ")
        assert found in line
        assert daemon.end() == 0


def test_a_segment_that_nobody_registered_is_removed(arenas: Arenas, left: Path) -> None:
    arena = arenas.open(left)
    assert list(adopt(arena, [])) == []
    assert arena.segment_ids() == []
    assert arena.usage().free_bytes == arena.budget_bytes


def test_what_is_registered_but_evicted_is_no_error(arenas: Arenas, left: Path) -> None:
    arena = arenas.open(left)
    assert [segment_id for segment_id, _ in adopt(arena, [OTHER_ID, SEGMENT_ID])] == [SEGMENT_ID]


def test_foreign_files_are_left_alone(arenas: Arenas, left: Path) -> None:
    """B42"""
    foreign = {
        "notes.txt": b"hello",
        "a" * 32: b"named like a segment, but is none",
        "b" * 31: (left / SEGMENT_ID).read_bytes(),
        ".something.loading": b"",
        f".{'C' * 32}.loading": b"",
    }
    for name, data in foreign.items():
        (left / name).write_bytes(data)
    (left / ("d" * 32)).mkdir()
    (left / ("e" * 32)).symlink_to("notes.txt")
    os.mkfifo(left / f".{'1' * 32}.loading")
    before = sorted(os.listdir(left))
    arena = arenas.open(left)
    assert len(list(adopt(arena, [SEGMENT_ID]))) == 1
    assert sorted(os.listdir(left)) == sorted({*before, "arena.lock"})
    assert all((left / name).read_bytes() == data for name, data in foreign.items())
    os.unlink(left / f".{'1' * 32}.loading")  # for the fixture, which looks for unfinished loads


def test_files_of_another_user_are_left_alone(arenas: Arenas, left: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(left / SEGMENT_ID, NOBODY, NOBODY)
    assert arenas.open(left).remove_orphans([]) == []


def test_purging_removes_all_of_ours(arenas: Arenas, left: Path) -> None:
    (left / f".{OTHER_ID}.loading").write_bytes(b"unfinished")
    (left / "notes.txt").touch()
    assert arenas.open(left).purge() == 2
    assert sorted(os.listdir(left)) == ["arena.lock", "notes.txt"]


def test_with_a_smaller_budget_the_first_ones_win(arenas: Arenas, left: Path) -> None:
    arena = Arena.open(str(left), 64 * MIB, PinPolicy.OFF)
    load(arena, mib_files(2), OTHER_ID).close()
    arena.close()
    arena = arenas.open(left, 4 * MIB)
    outcomes = dict(adopt(arena, [OTHER_ID, SEGMENT_ID]))
    assert isinstance(outcomes[OTHER_ID], Segment)
    assert isinstance(outcomes[SEGMENT_ID], ArenaFull)
    assert arena.segment_ids() == [OTHER_ID]
    assert arena.usage().unnamed_bytes == 0


def test_what_is_larger_than_the_new_budget_is_not_adopted(arenas: Arenas, left: Path) -> None:
    ((_, outcome),) = adopt(arenas.open(left, 2 * MIB), [SEGMENT_ID])
    assert isinstance(outcome, LargerThanArena)


# --- tampered segments ------------------------------------------------------


def rewritten(path: Path, change: Callable[[bytearray], object]) -> None:
    """Change a sealed file's bytes in place and seal it again."""
    raw = bytearray(path.read_bytes())
    change(raw)
    path.chmod(0o600)
    path.write_bytes(raw)
    path.chmod(0o440)


class Flipped:
    """One byte of a section is another."""

    def __init__(self, section: str) -> None:
        self.section = section

    def __call__(self, path: Path) -> None:
        def flip(raw: bytearray) -> None:
            header = parse_header(bytes(raw), len(raw))
            raw[60 if self.section == "header" else getattr(header, self.section).offset] ^= 1

        rewritten(path, flip)


def cut(path: Path) -> None:
    rewritten(path, lambda raw: raw.__delitem__(slice(len(raw) - 4096, None)))


def cut_to_nothing(path: Path) -> None:
    rewritten(path, bytearray.clear)


def longer(path: Path) -> None:
    rewritten(path, lambda raw: raw.extend(bytes(4096)))


def made_sparse(path: Path) -> None:
    path.chmod(0o600)
    with path.open("r+b") as file:
        size = path.stat().st_size
        file.truncate(2 * MIB)
        file.truncate(size)
    path.chmod(0o440)


def a_symbolic_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def a_second_name(path: Path) -> None:
    os.link(path, path.with_name("elsewhere"))


def writable(path: Path) -> None:
    path.chmod(0o640)


def of_another_user(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(path, NOBODY, NOBODY)


def a_directory(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.mkdir()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def with_another_id(path: Path) -> None:
    rewritten(path, lambda raw: with_header(raw, segment_id=OTHER_ID))


def with_header(raw: bytearray, **changes: object) -> None:
    """Write another header, with a CRC that is right."""
    h = parse_header(bytes(raw), len(raw))
    fields = {"segment_id": h.segment_id, "size_bytes": h.size_bytes, "data": h.data, "layout": h.layout}
    fields |= {"blocks": h.blocks, "manifest": h.manifest} | changes
    raw[:4096] = pack_header(SegmentHeader(**fields))  # type: ignore[arg-type]


class WithLayout:
    """The layout is another, with a CRC that is right."""

    def __init__(self, change: Callable[[artifact_pb2.Layout], object]) -> None:
        self.change = change

    def __call__(self, path: Path) -> None:
        def rewrite(raw: bytearray) -> None:
            section = parse_header(bytes(raw), len(raw)).layout
            layout = artifact_pb2.Layout.FromString(bytes(raw[section.offset : section.end]))
            self.change(layout)
            encoded = layout.SerializeToString()
            raw[section.offset : section.offset + len(encoded)] = encoded
            with_header(raw, layout=type(section)(section.offset, len(encoded), crc32c.crc32c(encoded)))

        rewritten(path, rewrite)


def half_a_byte(layout: artifact_pb2.Layout) -> None:
    layout.tensors[0].dtype = "F4"
    layout.tensors[0].shape[0] = 1


def without_a_decodable_manifest(path: Path) -> None:
    def rewrite(raw: bytearray) -> None:
        section = parse_header(bytes(raw), len(raw)).manifest
        raw[section.offset : section.end] = b"\xff" * section.size
        with_header(raw, manifest=type(section)(section.offset, section.size, crc32c.crc32c(b"\xff" * section.size)))

    rewritten(path, rewrite)


TAMPERED: dict[str, tuple[Callable[[Path], None], str]] = {
    "header byte": (Flipped("header"), "header has another CRC"),
    "layout byte": (Flipped("layout"), "layout section .* another CRC"),
    "block CRC": (Flipped("blocks"), "blocks section .* another CRC"),
    "manifest byte": (Flipped("manifest"), "manifest section .* another CRC"),
    "cut": (cut, "bytes"),
    "cut to nothing": (cut_to_nothing, "less than a header"),
    "longer": (longer, "bytes"),
    "sparse": (made_sparse, "has holes"),
    "symbolic link": (a_symbolic_link, "cannot be opened"),
    "hard link": (a_second_name, "more than one name"),
    "writable": (writable, "can be written to"),
    "another user's": (of_another_user, "another user"),
    "directory": (a_directory, "cannot be opened|not a regular file"),
    "pipe": (a_pipe, "not a regular file"),
    "another's header": (with_another_id, f"holds segment {OTHER_ID}"),
    "another's layout": (WithLayout(lambda it: it.segments[0].ClearField("segment_id")), "of other segments"),
    "tensor of another segment": (WithLayout(lambda it: setattr(it.tensors[0], "segment_index", 1)), "other segments"),
    "tensor outside": (WithLayout(lambda it: setattr(it.tensors[0], "offset_bytes", 8)), "outside the segment's data"),
    "half a byte": (WithLayout(half_a_byte), "cannot have shape"),
    "unknown dtype": (WithLayout(lambda it: setattr(it.tensors[0], "dtype", "X9")), "unknown dtype 'X9'"),
    "broken manifest": (without_a_decodable_manifest, "manifest cannot be decoded"),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_tampered_segment_is_refused_and_its_room_is_free_again(arenas: Arenas, left: Path, how: str) -> None:
    tamper, text = TAMPERED[how]
    tamper(left / SEGMENT_ID)
    arena = arenas.open(left)
    with pytest.raises(SegmentCorrupt, match=text):
        arena.adopt(SEGMENT_ID)
    ((_, outcome),) = adopt(arena, [SEGMENT_ID])
    assert isinstance(outcome, SegmentCorrupt)
    assert arena.usage().free_bytes == arena.budget_bytes
    if how != "directory":
        assert arena.segment_ids() == []
    assert isinstance(load(arena, mib_files(1)), Segment)


def test_a_segment_of_a_newer_release_is_refused_as_such(arenas: Arenas, left: Path) -> None:
    rewritten(left / SEGMENT_ID, lambda raw: struct.pack_into("<I", raw, 8, 2))
    ((_, outcome),) = adopt(arenas.open(left), [SEGMENT_ID])
    assert isinstance(outcome, FormatTooNew)


@pytest.mark.parametrize("place", [4096, MIB, 3 * MIB + 4095])
def test_a_flipped_data_byte_is_found_and_its_block_named(arenas: Arenas, left: Path, place: int) -> None:
    rewritten(left / SEGMENT_ID, lambda raw: raw.__setitem__(place, raw[place] ^ 1))
    segment = arenas.open(left).adopt(SEGMENT_ID)
    with pytest.raises(SegmentCorrupt) as refused:
        segment.check_blocks(2, lambda: False)
    assert refused.value.details["block_index"] == place // MIB
    assert not segment.checked


def test_a_segment_that_is_not_there_cannot_be_adopted(arena: Arena) -> None:
    with pytest.raises(WarmshelfError, match="No such file"):
        arena.adopt(SEGMENT_ID)


def test_an_adopted_segment_is_unlinked_like_any_other(arenas: Arenas, left: Path) -> None:
    arena = arenas.open(left)
    arena.unlink(arena.adopt(SEGMENT_ID))
    assert os.listdir(left) == ["arena.lock"]
    assert arena.usage().free_bytes == arena.budget_bytes


def test_files_with_nothing_in_them_are_adopted_too(arenas: Arenas, shm: Path) -> None:
    """B25"""
    arena = Arena.open(str(shm), MIB, PinPolicy.OFF)
    load(arena, Files([[0]]), SEGMENT_ID).close()
    arena.close()
    segment = arenas.open(shm).adopt(SEGMENT_ID)
    segment.check_blocks(2, lambda: False)
    assert tensors_in(segment) == {"t0.0": b""}
