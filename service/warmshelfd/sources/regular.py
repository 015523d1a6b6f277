"""What a file on disk is and how it looks: regular or not, made by the kernel or not, changed or not.

Also reads it so that no page cache is left behind. Works on descriptors: knows no
paths, and nothing of what is allowed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from dataclasses import dataclass

RWF_DONTCACHE = 0x80
"""preadv2: drop the pages that this read brought in. Linux 6.14, by file system."""

READ_AHEAD_BYTES_MIN = 1 << 20
"""Shorter reads are of headers and small files: what lies behind them would be read ahead in vain, and stay."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_KERNEL_MADE = frozenset(
    {
        0x9FA0,  # proc
        0x62656572,  # sysfs
        0x27E0EB,  # cgroup
        0x63677270,  # cgroup2
        0x64626720,  # debugfs
        0x74726163,  # tracefs
        0x73636673,  # securityfs
        0xCAFE4A11,  # bpf
        0x62656570,  # configfs
    }
)
"""File systems whose files are windows into the kernel: their sizes mean nothing, and reading may act."""

_libc = ctypes.CDLL(None, use_errno=True)
_STATFS_BYTES = 256  # struct statfs has 120; f_type is its first word


@dataclass(frozen=True, slots=True)
class FileState:
    """How a file looks. It differs after every write, and after another file has taken its place."""

    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int


def regular_state(fd: int) -> FileState | None:
    """Return how the file behind the descriptor looks, or None if it is no regular file on a disk."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or _file_system(fd) in _KERNEL_MADE:
        return None
    return state_of(status)


def state_of(status: os.stat_result) -> FileState:
    """Return what of a stat result shows that a file has changed."""
    return FileState(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def is_directory(fd: int) -> bool:
    """Say whether the descriptor is a directory whose files are on a disk."""
    return stat.S_ISDIR(os.fstat(fd).st_mode) and _file_system(fd) not in _KERNEL_MADE


def _file_system(fd: int) -> int:
    """Return what kind of file system the descriptor is on, which ``os.statvfs`` does not tell."""
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(fd, buffer):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return ctypes.c_ulong.from_buffer(buffer).value


class UncachedReader:
    """Reads ranges of a descriptor, which it owns, and leaves none of it in the page cache."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # Both change once, and any thread may find out that they must.
        self._flags = RWF_DONTCACHE if hasattr(os, "RWF_NOWAIT") else 0  # 0: the file system refuses it
        self._reads_ahead = False
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def read_into(self, offset: int, view: memoryview) -> int:
        """Fill the view; return how many bytes there were before the file ended."""
        if len(view) >= READ_AHEAD_BYTES_MIN and not self._reads_ahead:
            self._reads_ahead = True
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_NORMAL)
        done = 0
        while done < len(view):
            count = self._read_some(offset + done, view[done:])
            if count == 0:
                break
            done += count
        return done

    def state(self) -> FileState | None:
        """Return how the file looks now."""
        return regular_state(self._fd)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)

    def _read_some(self, offset: int, view: memoryview) -> int:
        if self._flags:
            try:
                return os.preadv(self._fd, [view], offset, self._flags)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    raise
                self._flags = 0
        count = os.preadv(self._fd, [view], offset)
        self._drop(offset, offset + count)
        return count

    def _drop(self, start: int, stop: int) -> None:
        """Have every page that the range touches dropped; others' pages go too, no call tells them apart."""
        start -= start % _PAGE_BYTES
        stop += -stop % _PAGE_BYTES
        os.posix_fadvise(self._fd, start, stop - start, os.POSIX_FADV_DONTNEED)
