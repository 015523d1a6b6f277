"""Reading files: exactly, noticing changes, and without filling the page cache."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from warmshelf.errors import Internal, SourceChangedDuringLoad, SourceNotFound, SourceTruncated, SourceUnavailable
from warmshelfd.sources.file import FileOpener
from warmshelfd.sources.regular import RWF_DONTCACHE, FileState, state_of

DATA = bytes(i * 7 % 251 for i in range(100_000))
LATER_NS = 1_000_000_000

real_preadv = os.preadv


@pytest.fixture
def file(root: Path) -> Path:
    path = root / "x"
    path.write_bytes(DATA)
    return path


# --- bytes -----------------------------------------------------------------------


def test_a_single_file_is_listed_under_its_own_name(opener: FileOpener, file: Path) -> None:
    with opener.open(str(file)) as source:
        assert source.uri == f"file://{file}"
        assert source.files() == {"x": len(DATA)}
        assert source.read("x", 0, len(DATA)) == DATA


@pytest.mark.parametrize(("offset", "size"), [(0, 0), (0, 1), (99_999, 1), (4095, 2), (12_345, 54_321), (100_000, 0)])
def test_a_range_is_read_exactly(offset: int, size: int, opener: FileOpener, file: Path) -> None:
    with opener.open(str(file)) as source:
        assert source.read("x", offset, size) == DATA[offset : offset + size]


@pytest.mark.parametrize(("offset", "size"), [(99_999, 2), (100_000, 1), (0, 100_001), (1 << 40, 1)])
def test_a_range_past_the_end_is_refused_with_both_sizes(
    offset: int, size: int, opener: FileOpener, file: Path
) -> None:
    with opener.open(str(file)) as source, pytest.raises(SourceTruncated) as caught:
        source.read("x", offset, size)
    assert caught.value.details["size_bytes"] == len(DATA)
    assert caught.value.details["expected_bytes"] == offset + size


def test_a_sparse_file_is_read_as_zeros(opener: FileOpener, root: Path) -> None:
    """S15."""
    (root / "sparse").touch()
    os.truncate(root / "sparse", 1 << 30)
    with opener.open(str(root / "sparse")) as source:
        assert source.read("sparse", (1 << 30) - 5, 5) == bytes(5)


class Reads:
    """A kernel whose preadv does something else; the calls that it saw."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(os, "preadv", self.preadv)

    def preadv(self, fd: int, views: list[memoryview], offset: int, flags: int = 0) -> int:
        self.count += 1
        return self.read(fd, views[0], offset, flags)

    def read(self, fd: int, view: memoryview, offset: int, flags: int) -> int:
        return real_preadv(fd, [view], offset, flags)


class ShortReads(Reads):
    """Gives one to three bytes at a time."""

    def read(self, fd: int, view: memoryview, offset: int, flags: int) -> int:
        return real_preadv(fd, [view[: 1 + self.count % 3]], offset, flags)


class BrokenDisk(Reads):
    """Fails from the third read on."""

    def read(self, fd: int, view: memoryview, offset: int, flags: int) -> int:
        if self.count >= 3:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real_preadv(fd, [view[:10]], offset, flags)


class OldKernel(Reads):
    """Knows no flags."""

    flagged = 0

    def read(self, fd: int, view: memoryview, offset: int, flags: int) -> int:
        if flags:
            self.flagged += 1
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real_preadv(fd, [view], offset)


def test_short_reads_are_continued(opener: FileOpener, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S17, B48."""
    with opener.open(str(file)) as source:
        reads = ShortReads(monkeypatch)
        assert source.read("x", 17, 1000) == DATA[17:1017]
        assert reads.count > 333


def test_an_io_error_is_reported_as_unavailable(
    opener: FileOpener, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S17: it may pass, and the text says what the disk said."""
    BrokenDisk(monkeypatch)
    with opener.open(str(file)) as source, pytest.raises(SourceUnavailable, match="Input/output error") as caught:
        source.read("x", 0, 1000)
    assert caught.value.retryable


def test_a_file_that_may_not_be_read_is_unavailable(
    opener: FileOpener, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S15; root may read anything, so the kernel's answer is given for it."""

    def refuse(path: str, *rest: Any, **more: Any) -> int:
        if path.startswith("/proc/self/fd/"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real_open(path, *rest, **more)

    real_open = os.open
    with opener.open(str(file)) as source:
        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(SourceUnavailable, match="Permission denied"):
            source.read("x", 0, 1)


def test_an_unknown_name_is_not_found(opener: FileOpener, file: Path, root: Path) -> None:
    with opener.open(str(root)) as source:
        for name in ("y", "../x", "", "/etc/passwd"):
            with pytest.raises(SourceNotFound):
                source.read(name, 0, 1)
            with pytest.raises(SourceNotFound):
                source.fingerprint([name])


def test_a_closed_source_reads_nothing(opener: FileOpener, file: Path) -> None:
    source = opener.open(str(file))
    source.read("x", 0, 1)
    source.close()
    source.close()
    with pytest.raises(Internal, match="is closed"):
        source.read("x", 0, 1)


def test_several_threads_may_read_at_once(opener: FileOpener, file: Path) -> None:
    ranges = [(at, min(997, len(DATA) - at)) for at in range(0, len(DATA), 997)]
    with opener.open(str(file)) as source, ThreadPoolExecutor(8) as threads:
        parts = list(threads.map(lambda one: source.read("x", *one), ranges))
    assert b"".join(parts) == DATA


# --- changes while it is read ------------------------------------------------------


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def cut(path: Path) -> None:
    os.truncate(path, 10)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def touch_later(path: Path) -> None:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + LATER_NS))


def rewrite_and_restore_the_time(path: Path) -> None:
    status = path.stat()
    path.write_bytes(DATA[::-1])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES = [append, cut, empty, touch_later, rewrite_and_restore_the_time]


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_change_after_the_first_read_is_noticed(
    change: Callable[[Path], None], opener: FileOpener, file: Path
) -> None:
    """S2, S18, promise 4: by an error, also where the bytes are gone; never by a signal."""
    with opener.open(str(file)) as source:
        source.read("x", 0, 10)
        change(file)
        with pytest.raises(SourceChangedDuringLoad) as caught:
            source.read("x", 50_000, 10)
    assert caught.value.details == {"uri": f"file://{file}"}


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_change_before_the_first_read_is_noticed(
    change: Callable[[Path], None], opener: FileOpener, file: Path
) -> None:
    with opener.open(str(file)) as source:
        change(file)
        with pytest.raises(SourceChangedDuringLoad):
            source.read("x", 0, 1)


def test_another_file_under_the_name_is_noticed_at_the_first_read(opener: FileOpener, file: Path, root: Path) -> None:
    with opener.open(str(file)) as source:
        (root / "other").write_bytes(DATA)
        os.replace(root / "other", file)
        with pytest.raises(SourceChangedDuringLoad):
            source.read("x", 0, 1)


def test_a_pipe_under_the_name_is_never_opened(opener: FileOpener, file: Path) -> None:
    """S15."""
    with opener.open(str(file)) as source:
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(SourceChangedDuringLoad):
            source.read("x", 0, 1)


def test_a_removed_file_is_not_found(opener: FileOpener, file: Path) -> None:
    with opener.open(str(file)) as source:
        file.unlink()
        with pytest.raises(SourceNotFound):
            source.read("x", 0, 1)
        with pytest.raises(SourceNotFound):
            source.fingerprint(["x"])


# --- fingerprints -------------------------------------------------------------------


def test_a_fingerprint_is_equal_while_nothing_changes(opener: FileOpener, file: Path, root: Path) -> None:
    (root / "y").write_bytes(b"y")
    with opener.open(str(root)) as one, FileOpener([str(root)]).open(f"file://{root}/") as two:
        fingerprint = one.fingerprint(["x", "y"])
        one.read("x", 0, 1)
        assert two.fingerprint(["y", "x"]) == one.fingerprint(["x", "y"]) == fingerprint
        assert one.fingerprint(["x"]) != one.fingerprint(["y"]) != fingerprint


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_fingerprint_shows_a_change(change: Callable[[Path], None], opener: FileOpener, file: Path) -> None:
    """Promise 4: size, mtime and ctime."""
    with opener.open(str(file)) as source:
        before = source.fingerprint(["x"])
        change(file)
        assert source.fingerprint(["x"]) != before


def test_a_fingerprint_shows_another_file_under_the_name(opener: FileOpener, file: Path, root: Path) -> None:
    """Promise 4: also while the old file is still open, and if only the place on the disk differs."""
    (root / "other").write_bytes(DATA)
    os.utime(root / "other", ns=(0, file.stat().st_mtime_ns))
    with opener.open(str(file)) as source:
        before = source.fingerprint(["x"])
        source.read("x", 0, 1)
        os.replace(root / "other", file)
        assert source.fingerprint(["x"]) != before


def test_a_fingerprint_shows_where_a_link_leads(opener: FileOpener, root: Path) -> None:
    """Promise 4: also where the link is on the way to the directory."""
    for version in ("v1", "v2"):
        (root / version).mkdir()
        (root / version / "x").write_bytes(DATA)
        os.utime(root / version / "x", ns=(0, LATER_NS))
    (root / "current").symlink_to("v1")
    (root / "spare").symlink_to("v2")
    with opener.open(str(root / "current")) as source:
        before = source.fingerprint(["x"])
        os.replace(root / "spare", root / "current")
        assert source.fingerprint(["x"]) != before


def look(**fields: int) -> FileState:
    """Return the state of a file of which everything is 1, but for these fields."""
    numbers = [fields.get(f"st_{name}", 1) for name in ("mode", "ino", "dev", "nlink", "uid", "gid", "size")]
    times = {f"st_{name}_ns": fields.get(f"st_{name}_ns", 1) for name in ("atime", "mtime", "ctime")}
    return state_of(os.stat_result((*numbers, 1, 1, 1), times))


@pytest.mark.parametrize("field", ["st_size", "st_mtime_ns", "st_ctime_ns", "st_ino"])
def test_a_state_differs_with_each_of_its_parts(field: str) -> None:
    """Each alone; on a disk they mostly change together."""
    assert look(**{field: 2}) != look()


def test_a_state_does_not_differ_because_the_file_was_read() -> None:
    assert look(st_atime_ns=2) == look()


# --- the page cache ------------------------------------------------------------------


def resident_pages(path: Path) -> int:
    """Return how many pages of the file are in the page cache."""
    size = path.stat().st_size
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE) as mapping:
        flags = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
        first = ctypes.c_char.from_buffer(mapping)
        try:
            failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), flags)
        finally:
            del first
    assert not failed
    return sum(flag & 1 for flag in flags)


def flagged_reads_work(directory: Path) -> bool:
    path = directory / "probe"
    path.write_bytes(b"x")
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(fd, [bytearray(1)], 0, RWF_DONTCACHE) == 1
    except OSError:
        return False
    finally:
        os.close(fd)


@pytest.fixture
def cold_file(root: Path) -> Path:
    path = root / "cold"
    path.write_bytes(DATA * 60)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    if resident_pages(path):
        pytest.skip("this file system lives in the page cache")
    return path


def test_reading_leaves_no_page_cache_behind(opener: FileOpener, cold_file: Path) -> None:
    """Promise 8."""
    with opener.open(str(cold_file)) as source:
        source.read("cold", 0, 50_000)
        assert resident_pages(cold_file) == 0
        for at in range(50_000, 6_000_000, 1_190_000):
            source.read("cold", at, 1_190_000)
    assert resident_pages(cold_file) == 0


def test_an_older_kernel_leaves_no_page_cache_behind_either(
    opener: FileOpener, cold_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = OldKernel(monkeypatch)
    with opener.open(str(cold_file)) as source:
        for at in range(0, 6_000_000, 1_500_000):
            source.read("cold", at, 1_500_000)
    assert resident_pages(cold_file) == 0
    assert kernel.flagged <= 1  # asked once, remembered


def test_what_others_have_cached_stays_cached(opener: FileOpener, cold_file: Path) -> None:
    if not flagged_reads_work(cold_file.parent):
        pytest.skip("needs RWF_DONTCACHE: Linux 6.14 and a file system that has it")
    cold_file.read_bytes()
    cached = resident_pages(cold_file)
    assert cached == -(-6_000_000 // mmap.PAGESIZE)
    with opener.open(str(cold_file)) as source:
        source.read("cold", 0, 50_000)
        source.read("cold", 50_000, 5_950_000)
    assert resident_pages(cold_file) == cached
