"""The arena: a directory of segments on a memory file system, and its byte budget.

Room is reserved before a file is made; a file is filled, sealed and named once; to
evict is to unlink. Knows segments and files; does not know which artifacts there
are, nor who should make room for whom.

All of it blocks and may be called from several threads.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from stat import S_ISREG

from warmshelf._volume import Volume
from warmshelf.errors import DaemonInUse, InvalidConfig, PinningFailed
from warmshelf.segment import MAGIC, is_segment_id
from warmshelfd import failpoints
from warmshelfd.domain.extents import SegmentPlan
from warmshelfd.holders import describe, lock_holder
from warmshelfd.memory.books import ArenaUsage, Books, Claim, Reservation
from warmshelfd.memory.budgeting import cgroup_room, check_budget, check_total, default_budget
from warmshelfd.memory.looking import LOADING_NAME, directories, sizes_left
from warmshelfd.memory.mapped_file import MappedFile
from warmshelfd.memory.pinning import PinPolicy, choose_pinning, lock_pages
from warmshelfd.memory.segment import Home, Segment, SegmentWriter, loading_name, outline, room_error
from warmshelfd.memory.unnamed import UnnamedFiles

__all__ = ["Arena", "ArenaUsage", "PinPolicy", "Reservation"]

LOCK_NAME = "arena.lock"
"""Held by the one daemon of the directory. Always empty: a byte in it would take a huge page."""

DIRECTORY_MODE = 0o700
LOCK_MODE = 0o600
LOADING_MODE = 0o400
"""While it is written, through a descriptor that was opened when it was made. Nobody can open it for writing by its
name, and so not cut it under the daemon's mapping, but root, or its owner after a chmod."""
_PIN_THREADS = 2
"""How many lock a segment's pages: on 4 KiB pages it is a tenth of a load, and two share it."""

_NO_INODE = ", not for want of bytes: the file system has no inode left for one more file (nr_inodes of its mount)"


class Arena:
    """The segments of one directory."""

    def __init__(
        self,
        directory: str,
        volume: Volume,
        books: Books,
        policy: PinPolicy,
        pinning: str,
        reserve_bytes: int,
    ) -> None:
        """Use ``open``, or ``open_within``."""
        self.directory = directory
        self.pinning = pinning
        self.volume = volume
        self.lacking_bytes = 0  # what of the budget that was asked for the file system had not at the start
        self._policy = policy
        self._reserve_bytes = reserve_bytes
        self._books = books
        self._unnamed = UnnamedFiles(self._books)
        has_small_pages = volume.page_size_bytes == mmap.PAGESIZE
        self._home = Home(volume.directory_fd, self._pin, self._unnamed, has_small_pages)
        self._open_files = ExitStack()  # the directory and its lock; touched by open and close only

    @classmethod
    def open(cls, directory: str, budget_bytes: int | None, pin: PinPolicy, reserve_bytes: int = 0) -> Arena:
        """Take possession of a directory, making it if need be.

        Args:
            directory: on a memory file system.
            budget_bytes: None means half of what the file system has free, not counting segments left there. Where
                the file system has less in all, that is the budget, and ``lacking_bytes`` says so.
            pin: whether segments are to be page-locked.
            reserve_bytes: memory that the daemon needs beside the arena, for comparison with the cgroup's limit.

        Raises:
            DaemonInUse: another daemon has it.
            InvalidConfig: the directory or the budget cannot be used.
            PinningFailed: the budget must be page-locked and cannot be.
        """
        directory = os.path.abspath(directory)
        with ExitStack() as opened:
            directory_fd = _open_directory(directory)
            opened.callback(os.close, directory_fd)
            opened.callback(os.close, _take_lock(directory_fd, directory))
            volume = Volume.of(directory_fd)
            room = cgroup_room(volume, reserve_bytes)
            asked = default_budget(volume, room, sizes_left(volume)) if budget_bytes is None else budget_bytes
            check_budget(asked, volume, room)
            budget = min(asked, volume.total_bytes())
            pinning = choose_pinning(pin, budget, is_hugetlb=volume.is_hugetlb)
            arena = cls(directory, volume, Books(budget, volume.free_bytes), pin, pinning, reserve_bytes)
            arena.lacking_bytes = asked - budget
            arena._open_files = opened.pop_all()
            return arena

    def open_within(self, name: str, most: Callable[[int], int]) -> Arena:
        """Take possession of a directory in this one, for an arena that spends of the same budget.

        ``most`` gives what it may spend of a budget. Errors as ``open``.
        """
        directory = os.path.join(self.directory, name)
        with ExitStack() as opened:
            directory_fd = _open_directory(directory)
            opened.callback(os.close, directory_fd)
            opened.callback(os.close, _take_lock(directory_fd, directory))
            volume = Volume.of(directory_fd)
            books = self._books.beside(volume.free_bytes, most)
            arena = Arena(directory, volume, books, self._policy, self.pinning, self._reserve_bytes)
            arena._open_files = opened.pop_all()
            return arena

    def names_within(self) -> list[str]:
        """Return the names of the directories in this one that are ours."""
        return sorted(entry.name for entry in directories(self.volume.directory_fd))

    def limit(self, most: Callable[[int], int]) -> None:
        """Spend no more than ``most`` gives for a budget."""
        self._books.limit(most)

    @property
    def page_size_bytes(self) -> int:
        """What sizes are rounded up to."""
        return self.volume.page_size_bytes

    @property
    def budget_bytes(self) -> int:
        """What all of it may take."""
        return self._books.budget_bytes

    @property
    def whole_budget_bytes(self) -> int:
        """The budget, of which others may spend too."""
        return self._books.whole_budget_bytes

    def whole_free_bytes(self) -> int:
        """Return what nobody has spent of it; negative while a claim is not met."""
        return self._books.whole_free_bytes()

    def grow(self, budget_bytes: int) -> None:
        """Have a larger budget from now on.

        Raises:
            InvalidConfig: the file system or the cgroup does not allow it.
            PinningFailed: it must be page-locked and cannot be.
        """
        check_total(budget_bytes, self.volume, self.directory)
        check_budget(budget_bytes, self.volume, cgroup_room(self.volume, self._reserve_bytes))
        choose_pinning(self._policy, budget_bytes, is_hugetlb=self.volume.is_hugetlb)
        self._books.grow(budget_bytes - self.whole_budget_bytes)

    def books_of_all(self) -> Books:
        """Return books beside those of this arena, for claims of what is anybody's."""
        return self._books.beside(self.volume.free_bytes, lambda budget: budget)

    def claim(self, size: int) -> Claim:
        """Take room out of use that is to leave the budget."""
        return self._books.claim(size)

    def unspent_bytes(self) -> int:
        """Return what of the budget is neither used nor promised, whatever the file system has."""
        self._unnamed.sweep()
        return self._books.unspent_bytes()

    def usage(self) -> ArenaUsage:
        """Return what the budget is spent on, after letting go of unnamed files that nobody maps any more."""
        self._unnamed.sweep()
        return self._books.usage()

    # --- a new segment ------------------------------------------------------

    def new_segment_id(self) -> str:
        """Return a random name."""
        return secrets.token_hex(16)

    def segment_size(self, plan: SegmentPlan, layout: bytes, manifest_bytes_max: int) -> int:
        """Return how large the file of a segment will be."""
        return outline(plan, len(layout), manifest_bytes_max, self.page_size_bytes).size_bytes

    def reserve(self, size: int) -> Reservation:
        """Promise room in the books; there is no file yet.

        Raises:
            LargerThanArena: it can never fit.
            ArenaFull: it does not fit now.
        """
        self._unnamed.sweep()
        return self._books.reserve(size)

    def create(
        self, reservation: Reservation, plan: SegmentPlan, layout: bytes, manifest_bytes_max: int, segment_id: str
    ) -> SegmentWriter:
        """Make the file of a segment for which there is room.

        ``layout`` names the segment; its sizes may be missing there, the header has them.

        Raises:
            ArenaFull: the file system has no room for one more file; says whether it is for want of inodes.
        """
        sections = outline(plan, len(layout), manifest_bytes_max, self.page_size_bytes)
        try:
            file = _create(self.volume.directory_fd, loading_name(segment_id), sections.size_bytes)
        except OSError as error:
            if error.errno == errno.ENOSPC and not self.volume.has_inodes():
                raise reservation.not_given(sections.size_bytes, _NO_INODE) from error
            raise room_error(error, reservation, sections.size_bytes) from error
        if self.volume.is_hugetlb:  # there, mapping a file takes its pages from what is free
            reservation.allocate(sections.size_bytes)
        writer = SegmentWriter(self._home, reservation, file, segment_id, plan, layout, sections)
        try:
            failpoints.hit("load.created")
        except BaseException:
            writer.abort()
            raise
        return writer

    # --- sealed segments ----------------------------------------------------

    def unlink(self, segment: Segment) -> None:
        """Take away a segment's name and our mapping; its bytes count until nobody maps them."""
        file = segment.detach()
        with suppress(FileNotFoundError, IsADirectoryError):  # what somebody else has put there may be anything
            os.unlink(segment.segment_id, dir_fd=self.volume.directory_fd)
        self._books.remove_resident(segment.size_bytes, unnamed_bytes=segment.size_bytes)
        self._unnamed.add(file)

    def in_use(self, segment: Segment) -> bool:
        """Say whether another process has the segment open or mapped.

        Neither our own mapping nor views of it that this process holds count, and
        neither is disturbed. Where the kernel cannot tell, the answer is no.
        """
        return segment.file.is_used_elsewhere()

    def check_look(self, segment: Segment) -> None:
        """Look whether a segment's file is as it was sealed, without reading it: some 3 us on a memory file system.

        Raises:
            SegmentCorrupt: it is not.
        """
        segment.file.check_look(self.volume.directory_fd, segment.segment_id)

    def segment_ids(self) -> list[str]:
        """Return the names of all sealed segments in the directory."""
        return sorted(name for name in os.listdir(self.volume.directory_fd) if is_segment_id(name))

    # --- what a dead daemon left --------------------------------------------

    def remove_orphans(self, keep: Collection[str]) -> list[str]:
        """Remove unfinished files, and segments not in ``keep``; return their names. Before any load.

        Whatever does not look like ours, by name, owner and content, is left alone.
        """
        orphans = [name for name in sorted(os.listdir(self.volume.directory_fd)) if self._is_ours(name)]
        orphans = [name for name in orphans if name not in keep]
        for name in orphans:
            self.discard(name)
        return orphans

    def adopt(self, segment_id: str) -> Segment:
        """Take in a segment that was sealed before this daemon started. Its blocks are not checked yet.

        Raises:
            SegmentCorrupt: it is not as it was sealed.
            FormatTooNew: a newer release wrote it.
            LargerThanArena, ArenaFull: the budget does not allow it.
            PinningFailed: it must be page-locked and cannot be.
        """
        segment = Segment.open(self.volume.directory_fd, segment_id, segment_id, checked=False)
        try:
            _ = segment.layout, segment.manifest  # decoded to see that they can be
            self._books.add_resident(segment.size_bytes)
        except BaseException:
            segment.close()
            raise
        try:
            segment.pinned = self._pin(segment.file)
        except BaseException:
            self._books.remove_resident(segment.size_bytes)
            segment.close()
            raise
        return segment

    def discard(self, name: str) -> None:
        """Remove a file that no Segment stands for; if somebody maps it, its bytes count until they do not."""
        file = None
        with suppress(OSError):  # a link, or gone: then there are no bytes of ours
            file = MappedFile.open(self.volume.directory_fd, name)
        with suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(name, dir_fd=self.volume.directory_fd)
        if file is not None:
            self._books.add_unnamed(file.size_bytes)
            self._unnamed.add(file)

    def purge(self) -> int:
        """Remove every segment and unfinished file of ours; return how many. Only while none is in use here."""
        return len(self.remove_orphans(()))

    def close(self) -> None:
        """Let the directory go. Segments stay for the next start."""
        self._unnamed.close()
        self._open_files.close()

    def _pin(self, file: MappedFile) -> bool:
        if self.pinning != "mlock":
            return self.pinning == "hugetlb"
        try:
            lock_pages(file.map, _PIN_THREADS)
        except PinningFailed:
            if self._policy is PinPolicy.REQUIRE:
                raise
            return False
        return True

    def _is_ours(self, name: str) -> bool:
        loading = bool(LOADING_NAME.fullmatch(name))
        if not loading and not is_segment_id(name):
            return False
        try:
            stat = os.stat(name, dir_fd=self.volume.directory_fd, follow_symlinks=False)
            if not S_ISREG(stat.st_mode) or stat.st_uid != os.geteuid():
                return False
            return loading or self._has_magic(name)
        except OSError:  # somebody else removed it meanwhile, or forbids us to look
            return False

    def _has_magic(self, name: str) -> bool:
        file = MappedFile.open(self.volume.directory_fd, name)
        try:
            return os.pread(file.fd, len(MAGIC), 0) == MAGIC  # not through the mapping: it may be a hole
        finally:
            file.close()


def _open_directory(directory: str) -> int:
    try:
        os.makedirs(directory, mode=DIRECTORY_MODE, exist_ok=True)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidConfig(f"arena {directory!r} cannot be used: {error.strerror}", directory=directory) from error
    owner = os.fstat(fd).st_uid
    if owner not in {os.geteuid(), 0}:  # whoever owns it could put other files under our names
        os.close(fd)
        raise InvalidConfig(f"arena {directory!r} belongs to user {owner}, not to us or root", directory=directory)
    return fd


def _take_lock(directory_fd: int, directory: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(LOCK_NAME, flags, LOCK_MODE, dir_fd=directory_fd)
    except OSError as error:
        raise InvalidConfig(f"arena {directory!r} cannot be locked: {error.strerror}", directory=directory) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        pid = lock_holder(os.fstat(fd))
        os.close(fd)
        text = f"arena {directory!r} is in use by {describe(pid)}"
        raise DaemonInUse(text, directory=directory, pid_number=pid) from error
    return fd


def _create(directory_fd: int, name: str, size: int) -> MappedFile:
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, LOADING_MODE, dir_fd=directory_fd)
    try:
        os.ftruncate(fd, size)
        return MappedFile(fd, writable=True)
    except BaseException:
        os.close(fd)
        os.unlink(name, dir_fd=directory_fd)
        raise
