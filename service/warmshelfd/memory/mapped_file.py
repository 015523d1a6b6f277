"""One file of the arena, open and mapped, and the question whether anybody else uses it.

Knows nothing of what is in the file, nor of budgets.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import threading
from stat import S_ISREG

import crc32c

from warmshelf.errors import SegmentCorrupt
from warmshelfd.memory.look import Look
from warmshelfd.memory.pages import forbid_writing

_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Neither a link planted under a segment's name is followed, nor a pipe waited for."""

_ASKING = threading.Lock()  # held while we have a lease, which two threads would take from each other, and to close

_WRITE_BITS = 0o222
_CRC_STEP_BYTES = 1 << 20
_STAT_BLOCK_BYTES = 512


class MappedFile:
    """A file that is open, and mapped as a whole until ``unmap``.

    Descriptor and mapping share one open file. So the kernel's answer to
    ``is_used_elsewhere`` is about everybody but us, and asking takes neither the
    mapping nor its page locks away. One mapping serves a file from its first byte to
    its last reader: to map again costs more than a third of a load on 4 KiB pages.

    Not for several threads at once, except for reading the mapping, and for asking who uses it while it is closed.
    """

    def __init__(self, fd: int, *, writable: bool = False) -> None:
        """Take over the descriptor and map the file, unless it is empty."""
        self._fd = fd
        self.size_bytes = os.fstat(fd).st_size
        self._is_writable = writable  # until forbid_writing
        self._look = Look.of(os.fstat(fd))  # renewed when a file that we made has its name
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._map = mmap.mmap(fd, self.size_bytes, access=access) if self.size_bytes else None

    @classmethod
    def open(cls, directory_fd: int, name: str) -> MappedFile:
        """Open an existing file for reading and map it.

        Raises:
            OSError: there is none, or it is a symbolic link.
        """
        fd = os.open(name, _READ_FLAGS, dir_fd=directory_fd)
        try:
            return cls(fd)
        except BaseException:
            os.close(fd)
            raise

    @property
    def fd(self) -> int:
        """The open descriptor."""
        return self._fd

    @property
    def map(self) -> mmap.mmap:
        """The mapping.

        Raises:
            ValueError: there is none any more.
        """
        if self._map is None:
            raise ValueError("the file is not mapped")
        return self._map

    def read(self, start: int, end: int) -> bytes:
        """Return a range of the file. Works while it is open, mapped or not.

        Raises:
            SegmentCorrupt: the file ends before the range does, as somebody has cut it, or its memory is broken.
        """
        part = self._read_some(end - start, start)
        if len(part) == end - start:  # so it is, but for ranges of gigabytes
            return part
        parts, at = [part], start + len(part)
        while at < end:
            part = self._read_some(end - at, at)
            if not part:
                raise SegmentCorrupt(
                    f"the file of a segment ends at byte {at}, byte {end - 1} is to be read: somebody has cut it",
                    size_bytes=at,
                    expected_bytes=end,
                )
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    def _read_some(self, size: int, start: int) -> bytes:
        try:
            return os.pread(self._fd, size, start)
        except OSError as error:  # so the kernel tells of memory that failed
            raise SegmentCorrupt(
                f"the file of a segment cannot be read at byte {start}: {error.strerror}", offset_bytes=start
            ) from error

    def crc(self, start: int, end: int) -> int:
        """Return the CRC32C of a range; errors as ``read``."""
        crc = 0
        for at in range(start, end, _CRC_STEP_BYTES):
            crc = crc32c.crc32c(self.read(at, min(at + _CRC_STEP_BYTES, end)), crc)
        return crc

    def view(self) -> memoryview:
        """Return a view of the whole file; its holder can write while the file is being written.

        Raises:
            ValueError: the file is not mapped.
        """
        view = memoryview(self.map)
        return view if self._is_writable else view.toreadonly()

    def forbid_writing(self) -> bool:
        """Take away the right to write, for good; say False, and leave it, while somebody here has a view."""
        try:
            self.map.resize(self.size_bytes)  # to what it is: only asks whether there are views
        except BufferError:
            return False
        forbid_writing(self.map)
        self._is_writable = False
        return True

    def check_sealed(self, name: str) -> None:
        """Check that the file is one that only a daemon of this user can have sealed.

        A file with holes is refused too: on a full file system reading a hole is a SIGBUS.

        Raises:
            SegmentCorrupt: it is not.
        """
        stat = os.fstat(self._fd)
        faults = {
            "is not a regular file": not S_ISREG(stat.st_mode),
            "belongs to another user": stat.st_uid != os.geteuid(),
            "has more than one name": stat.st_nlink != 1,
            "can be written to": bool(stat.st_mode & _WRITE_BITS),
            "has holes": stat.st_blocks * _STAT_BLOCK_BYTES < stat.st_size,
        }
        for fault, found in faults.items():
            if found:
                raise SegmentCorrupt(f"file {name!r} {fault}", segment=name, size_bytes=stat.st_size)

    def note_look(self) -> None:
        """Take how the file looks now for how it looks for as long as nobody changes it."""
        self._look = Look.of(os.fstat(self._fd))

    def check_look(self, directory_fd: int, name: str) -> None:
        """Check that a name still means this file, and that nobody has changed it. Reads no byte of it.

        Raises:
            SegmentCorrupt: somebody has changed, replaced or taken it away; says what differs.
        """
        try:
            found = Look.of(os.stat(name, dir_fd=directory_fd, follow_symlinks=False))
        except OSError as error:
            raise SegmentCorrupt(f"file {name!r} cannot be seen any more: {error.strerror}", segment=name) from error
        if found != self._look:
            differences = ", ".join(self._look.differences(found))
            raise SegmentCorrupt(f"file {name!r} is not as it was sealed: {differences}", segment=name)

    def is_used_elsewhere(self) -> bool:
        """Say whether anybody else has the file open or mapped.

        The kernel grants a write lease exactly when nobody has; it is given back at
        once. Where the kernel offers none, the answer is no.
        """
        with _ASKING:
            if self._fd < 0:  # closed by who let it go while others were asked about
                return False
            # Who opens the file while we have the lease makes the kernel send us a signal: one
            # that is ignored by default, not SIGIO, which kills. Giving a lease back forgets it.
            fcntl.fcntl(self._fd, fcntl.F_SETSIG, signal.SIGURG)
            try:
                fcntl.fcntl(self._fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            except BlockingIOError:
                return True
            except OSError:
                return False
            fcntl.fcntl(self._fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            return False

    def unmap(self) -> bool:
        """Drop the mapping; say False, and keep it, while somebody here still has a view of it."""
        try:
            if self._map is not None:
                self._map.close()
        except BufferError:
            return False
        self._map = None
        return True

    def close(self) -> None:
        """Close the descriptor and drop the mapping, now or with the last view of it. Idempotent."""
        self.unmap()
        self._map = None
        with _ASKING:  # else the question may be about another file, which has the number by then
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
