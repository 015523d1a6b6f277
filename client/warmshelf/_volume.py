"""What the file system under the arena is: its page size, its size, what it has free.

Knows tmpfs with and without huge pages, hugetlbfs, and anything else as plain
4 KiB pages. Knows nothing of segments or budgets. The daemon and the doctor look
with the same eyes.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

SMALL_PAGE_BYTES = 4096
"""What a page takes unless the mount says otherwise."""

_MOUNTS = Path("/proc/self/mountinfo")
_TRANSPARENT = Path("/sys/kernel/mm/transparent_hugepage")
_HUGETLB = Path("/sys/kernel/mm/hugepages")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_IDENTITY_BYTES = 16
_MEMORY_TYPES = frozenset({"tmpfs", "ramfs", "hugetlbfs"})
_HUGE_MOUNT_OPTIONS = frozenset({"huge=always", "huge=within_size"})


@dataclass(frozen=True, slots=True)
class Mount:
    """One file system as the kernel lists it."""

    type_name: str
    options: frozenset[str]


def find_mount(mountinfo: str, device: int) -> Mount:
    """Return the mounted file system that has this device number."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, super_fields = left.split(), right.split()
        if len(fields) > 2 and fields[2] == wanted and len(super_fields) > 2:  # noqa: PLR2004
            return Mount(super_fields[0], frozenset(super_fields[2].split(",")))
    return Mount("unknown", frozenset())


def directory_identity(directory_fd: int) -> str:
    """Return what is equal for the same directory under the same kernel, at whatever path it is seen.

    A hash: who is told it learns nothing else of the node.
    """
    status = os.fstat(directory_fd)
    place = f"{_read_text(_BOOT_ID)}/{status.st_dev}/{status.st_ino}"
    return hashlib.blake2s(place.encode(), digest_size=_IDENTITY_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class Volume:
    """The file system that holds a directory.

    Attributes:
        directory_fd: a descriptor of that directory; whoever made the volume closes it.
        type_name: such as ``tmpfs``.
        page_size_bytes: what the size of a file is rounded up to.
        options: of its mount.
    """

    directory_fd: int
    type_name: str
    page_size_bytes: int
    options: frozenset[str] = frozenset()

    @classmethod
    def of(cls, directory_fd: int) -> Volume:
        """Look at the file system that holds the open directory."""
        mount = find_mount(_MOUNTS.read_text(errors="surrogateescape"), os.fstat(directory_fd).st_dev)
        return cls(directory_fd, mount.type_name, _page_size(mount, directory_fd), mount.options)

    @property
    def is_hugetlb(self) -> bool:
        """Whether its pages come from the node's set of huge pages and are never swapped."""
        return self.type_name == "hugetlbfs"

    @property
    def is_memory(self) -> bool:
        """Whether what is written there stays in memory."""
        return self.type_name in _MEMORY_TYPES

    def total_bytes(self) -> int:
        """Return how large the file system can grow; 0 if it does not say."""
        stat = os.statvfs(self.directory_fd)
        return self._within_huge_pages(stat.f_blocks * stat.f_frsize, stat.f_blocks, "nr_hugepages")

    def free_bytes(self) -> int:
        """Return what can be allocated now, read anew."""
        stat = os.statvfs(self.directory_fd)
        taken = self._huge_pages("resv_hugepages") if self.is_hugetlb else 0
        return self._within_huge_pages(stat.f_bavail * stat.f_frsize, stat.f_blocks, "free_hugepages", taken)

    def has_inodes(self) -> bool:
        """Say whether one more file can be made; yes where the file system does not count them."""
        stat = os.statvfs(self.directory_fd)
        return not stat.f_files or stat.f_favail > 0

    def _within_huge_pages(self, said_bytes: int, said_blocks: int, counter: str, taken: int = 0) -> int:
        """Return what statvfs said, for hugetlbfs bounded by the node's pages.

        Mounted without ``size=``, hugetlbfs says 0 blocks and the node's counters
        alone are right.
        """
        if not self.is_hugetlb:
            return said_bytes
        pages_bytes = (self._huge_pages(counter) - taken) * self.page_size_bytes
        return min(said_bytes, pages_bytes) if said_blocks else pages_bytes

    def _huge_pages(self, counter: str) -> int:
        return _read_number(_HUGETLB / f"hugepages-{self.page_size_bytes >> 10}kB" / counter)


def _page_size(mount: Mount, directory_fd: int) -> int:
    if mount.type_name == "hugetlbfs":
        return os.statvfs(directory_fd).f_bsize
    if gives_huge_pages(mount, _read_text(_TRANSPARENT / "shmem_enabled")):
        return _read_number(_TRANSPARENT / "hpage_pmd_size") or SMALL_PAGE_BYTES
    return SMALL_PAGE_BYTES


def gives_huge_pages(mount: Mount, switch: str) -> bool:
    """Say whether a tmpfs gives huge pages; the kernel's own switch can overrule its mount."""
    if mount.type_name != "tmpfs" or "[deny]" in switch:
        return False
    return "[force]" in switch or not _HUGE_MOUNT_OPTIONS.isdisjoint(mount.options)


def gives_huge_pages_at_all() -> bool:
    """Say whether this kernel has transparent huge pages for who asks for them."""
    switch = _read_text(_TRANSPARENT / "enabled")
    return bool(switch) and "[never]" not in switch


def _read_number(path: Path) -> int:
    """Return the number in a file of sysfs; 0 where the kernel has no such file."""
    return int(_read_text(path) or 0)


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
