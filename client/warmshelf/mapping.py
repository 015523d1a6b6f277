"""Maps a sealed segment out of the arena's directory, if this process sees the right one.

A file counts only if everything agrees: name, length, header and the id in it. A
mapping is undone when the last view, array or tensor on it is gone, never before:
nothing here closes one. Knows no daemon; what cannot be mapped is streamed by others.
"""

from __future__ import annotations

import mmap
import os
import stat

from warmshelf.errors import FormatTooNew, Internal, WarmshelfError
from warmshelf.image import SegmentImage
from warmshelf.segment import is_segment_id

FALLBACK_REASONS = frozenset(
    {
        "tcp",  # the daemon may be on another host, and nobody said where its arena would be
        "arena_not_visible",  # no such directory here, or not for this user
        "segment_not_found",  # the directory has no such file: it is another one
        "other_host",  # a file of that name, but another segment
        "format_too_new",  # written by a newer release
        "map_failed",  # the kernel refused, or the bytes are not right
    }
)
"""Every reason for streaming; a fixed list, because the daemon counts by them."""

_MAP_NORESERVE = 0x4000
"""Linux's; ``mmap`` has the name from Python 3.11 on. Without it a private writable mapping
is charged in full at once, though hardly a page of it is ever written."""

_HUGE_PAGE_BYTES = 2 << 20
"""Block size that hugetlbfs reports at least; tmpfs reports 4 KiB even with huge pages."""


class CannotMap(Exception):  # noqa: N818 - says what happened; never leaves the client
    """The segment cannot be mapped here; ``fallback_reason`` is one of FALLBACK_REASONS."""

    def __init__(self, fallback_reason: str, text: str) -> None:
        super().__init__(text)
        self.fallback_reason = fallback_reason


def map_segment(arena_directory: str, segment_id: str, size_bytes: int, *, read_only: bool = False) -> SegmentImage:
    """Return the segment, mapped anew.

    Args:
        arena_directory: the arena as this process sees it.
        segment_id: the segment's name.
        size_bytes: the whole file's length.
        read_only: share the pages and refuse writes. Otherwise writes stay private to
            this mapping, page by page.

    Raises:
        CannotMap: says why, in a word.
    """
    if not is_segment_id(segment_id):
        raise Internal(f"the daemon named a segment {segment_id!r}, which is no segment's name")
    fd = _open(arena_directory, segment_id)
    try:
        _check_file(fd, size_bytes)
        buffer = _map(fd, size_bytes, read_only=read_only)
    finally:
        os.close(fd)
    return _image(buffer, segment_id, size_bytes)


def _open(arena_directory: str, segment_id: str) -> int:
    try:
        directory_fd = os.open(arena_directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise CannotMap("arena_not_visible", f"cannot open the arena: {error}") from error
    try:
        return os.open(segment_id, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory_fd)
    except FileNotFoundError as error:
        raise CannotMap("segment_not_found", f"{arena_directory} has no segment {segment_id}") from error
    except OSError as error:
        raise CannotMap("map_failed", f"cannot open segment {segment_id}: {error}") from error
    finally:
        os.close(directory_fd)


def _check_file(fd: int, size_bytes: int) -> None:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_size != size_bytes or size_bytes == 0:
        raise CannotMap("other_host", f"a file of {found.st_size} bytes, the segment has {size_bytes}")


def _map(fd: int, size_bytes: int, *, read_only: bool) -> mmap.mmap:
    # On hugetlbfs a private mapping reserves a second copy, and kills by SIGBUS what writes without one.
    shared = read_only or os.fstatvfs(fd).f_bsize >= _HUGE_PAGE_BYTES
    flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE | _MAP_NORESERVE
    prot = mmap.PROT_READ if shared else mmap.PROT_READ | mmap.PROT_WRITE
    try:
        return mmap.mmap(fd, size_bytes, flags=flags, prot=prot)
    except (OSError, ValueError) as error:
        raise CannotMap("map_failed", f"cannot map {size_bytes} bytes: {error}") from error


def _image(buffer: mmap.mmap, segment_id: str, size_bytes: int) -> SegmentImage:
    try:
        image = SegmentImage(buffer, size_bytes)
    except FormatTooNew as error:
        raise CannotMap("format_too_new", error.message) from error
    except WarmshelfError as error:
        raise CannotMap("map_failed", error.message) from error
    if image.header.segment_id != segment_id or image.header.size_bytes != size_bytes:
        raise CannotMap("other_host", f"the file {segment_id} holds segment {image.header.segment_id}")
    return image
