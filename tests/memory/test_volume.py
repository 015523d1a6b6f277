"""What the file system under an arena is."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.arenas import MIB, Arenas, Mounter, create, fill, load, mib_files, tensors_in
from warmshelf._cgroup import memory_limit_bytes
from warmshelf._volume import Mount, Volume, find_mount, gives_huge_pages
from warmshelf.errors import ArenaFull
from warmshelfd.memory.arena import Arena, PinPolicy

HUGE_PAGE_BYTES = 2 * MIB
HUGE_PAGES = Path("/proc/sys/vm/nr_hugepages")

MOUNTINFO = """\
22 27 0:20 / /proc rw,nosuid - proc proc rw
41 27 0:38 / /mnt/a\\040b rw,relatime shared:5 master:1 - tmpfs none rw,size=1024k,huge=always
42 27 254:1 /sub /data rw - ext4 /dev/vda1 rw
"""


@pytest.mark.parametrize(
    ("device", "mount"),
    [
        (os.makedev(0, 38), Mount("tmpfs", frozenset({"rw", "size=1024k", "huge=always"}))),
        (os.makedev(254, 1), Mount("ext4", frozenset({"rw"}))),
        (os.makedev(9, 9), Mount("unknown", frozenset())),
    ],
)
def test_a_mount_is_found_by_its_device_number(device: int, mount: Mount) -> None:
    assert find_mount(MOUNTINFO, device) == mount


@pytest.mark.parametrize(
    ("mount", "switch", "huge"),
    [
        (Mount("tmpfs", frozenset({"rw", "huge=always"})), "always within_size advise [never] deny force", True),
        (Mount("tmpfs", frozenset({"rw", "huge=always"})), "always within_size advise never [deny] force", False),
        (Mount("tmpfs", frozenset({"rw"})), "always within_size advise never deny [force]", True),
        (Mount("tmpfs", frozenset({"rw"})), "", False),
        (Mount("ext4", frozenset({"huge=always"})), "", False),
    ],
)
def test_the_kernels_switch_overrules_the_mount(mount: Mount, switch: str, huge: bool) -> None:
    assert gives_huge_pages(mount, switch) == huge


@pytest.mark.parametrize(
    ("huge", "page_size"),
    [("never", 4096), ("advise", 4096), ("within_size", HUGE_PAGE_BYTES), ("always", HUGE_PAGE_BYTES)],
)
def test_sizes_are_rounded_to_the_pages_that_the_mount_gives(
    mount: Mounter, arenas: Arenas, huge: str, page_size: int
) -> None:
    arena = arenas.open(mount(size="16m", huge=huge), 8 * MIB)
    segment = load(arena, mib_files(1))
    assert arena.page_size_bytes == page_size
    assert segment.size_bytes % page_size == 0
    assert segment.size_bytes - segment.header.content_size_bytes < page_size + 4096
    assert os.stat(Path(arena.directory, segment.segment_id)).st_blocks * 512 == segment.size_bytes


def test_every_byte_that_a_huge_page_file_system_takes_is_in_the_books(mount: Mounter, arenas: Arenas) -> None:
    """B40: what the books say is what the kernel says."""
    arena = arenas.open(mount(size="16m", huge="always"), 16 * MIB)
    before = arena.usage().free_bytes
    load(arena, mib_files(3))
    stat = os.statvfs(arena.directory)
    assert arena.usage().resident_bytes == (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    assert arena.usage().free_bytes == before - arena.usage().resident_bytes


def test_total_and_free_are_those_of_the_file_system(mount: Mounter) -> None:
    path = mount(size="8m")
    (path / "foreign").write_bytes(bytes(MIB))
    fd = os.open(path, os.O_RDONLY)
    volume = Volume.of(fd)
    assert (volume.type_name, volume.total_bytes(), volume.free_bytes()) == ("tmpfs", 8 * MIB, 7 * MIB)
    os.close(fd)


@pytest.fixture
def huge_pages() -> Iterator[int]:
    """Sixteen huge pages of the node's own set."""
    if not os.access(HUGE_PAGES, os.W_OK):
        pytest.skip("only root can set huge pages aside")
    before = HUGE_PAGES.read_text()
    HUGE_PAGES.write_text("16")
    yield int(HUGE_PAGES.read_text())
    HUGE_PAGES.write_text(before)


def test_hugetlbfs_is_counted_in_the_nodes_pages_and_its_segments_are_pinned(
    mount: Mounter, arenas: Arenas, huge_pages: int
) -> None:
    if huge_pages < 16:
        pytest.skip(f"the node could set only {huge_pages} huge pages aside")
    path = mount("hugetlbfs")
    first = Arena.open(str(path), None, PinPolicy.OFF)
    assert (first.page_size_bytes, first.pinning, first.budget_bytes) == (HUGE_PAGE_BYTES, "hugetlb", 16 * MIB)
    first.close()
    arena = arenas.open(path, 32 * MIB)
    writer = create(arena, mib_files(5))
    assert arena.usage().free_bytes == 26 * MIB
    fill(writer, mib_files(5).read)
    writer.finish(b"")
    segment = writer.publish()
    assert segment.pinned
    assert tensors_in(segment) == mib_files(5).tensors()
    assert arena.usage().resident_bytes == 6 * MIB
    arena.unlink(segment)
    assert arena.usage().free_bytes == 32 * MIB


def test_huge_pages_that_a_mapping_waits_for_are_not_free(mount: Mounter, huge_pages: int) -> None:
    path = mount("hugetlbfs")
    fd = os.open(path, os.O_RDONLY)
    volume = Volume.of(fd)
    before = volume.free_bytes()
    with (path / "foreign").open("w+b") as file:
        file.truncate(2 * HUGE_PAGE_BYTES)
        with mmap.mmap(file.fileno(), 2 * HUGE_PAGE_BYTES):
            assert volume.free_bytes() == before - 2 * HUGE_PAGE_BYTES
    os.close(fd)


def test_huge_pages_that_somebody_else_took_make_the_arena_full(
    mount: Mounter, arenas: Arenas, huge_pages: int
) -> None:
    if huge_pages < 16:
        pytest.skip(f"the node could set only {huge_pages} huge pages aside")
    arena = arenas.open(mount("hugetlbfs"), 32 * MIB)
    HUGE_PAGES.write_text("2")
    with pytest.raises(ArenaFull) as refused:
        arena.reserve(6 * MIB)
    assert refused.value.details["free_bytes"] == 4 * MIB


@pytest.mark.parametrize(
    ("membership", "files", "limit"),
    [
        ("0::/a/b\n", {"memory.max": "max", "a/memory.max": "1000", "a/b/memory.max": "2000"}, 1000),
        ("0::/seen/by/the/host\n", {"memory.max": "3000"}, 3000),
        ("0::/\n", {"memory.max": "max"}, None),
        ("4:memory:/a\n1:cpu:/\n0::/\n", {"memory/a/memory.limit_in_bytes": "4000"}, 4000),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("", {}, None),
    ],
)
def test_the_smallest_limit_of_the_group_and_those_above_counts(
    tmp_path: Path, membership: str, files: dict[str, str], limit: int | None
) -> None:
    (tmp_path / "cgroup").write_text(membership)
    for name, text in files.items():
        file = tmp_path / "root" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    assert memory_limit_bytes(tmp_path / "cgroup", tmp_path / "root") == limit
