"""Which of the kernel's abilities are there, each tried and not read from a version.

Knows what warmshelf does without each of them, and nothing of an arena's content.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from warmshelf.doctor.finding import Finding, Level

RELEASE_MIN = (5, 10)
"""What warmshelf is made for."""

_POPULATE_WRITE = 23
_DONTCACHE = 0x80
"""``RWF_DONTCACHE`` of Linux 6.14; neither it nor the one above has a name in Python."""

_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_STRICT = "2"


@dataclass(frozen=True, slots=True)
class Ability:
    """Something that a kernel may have.

    Attributes:
        try_it: does it on a file of the arena's file system; an OSError is a no.
        needed: how bad it is without.
        without: what is so then.
        advice: what helps.
    """

    try_it: Callable[[int], object]
    needed: Level
    without: str
    advice: str


def _lease(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)


def _populate(fd: int) -> None:
    with mmap.mmap(fd, mmap.PAGESIZE) as memory:
        memory.madvise(_POPULATE_WRITE)


def _dontcache(_: int) -> None:
    """Read a file of a disk, as those of sources are."""
    with open(__file__, "rb") as file:
        os.preadv(file.fileno(), [bytearray(1)], 0, _DONTCACHE)


def _allocate(fd: int) -> None:
    os.posix_fallocate(fd, 0, mmap.PAGESIZE)


ABILITIES: Mapping[str, Ability] = {
    "fallocate": Ability(
        _allocate, Level.PROBLEM, "room cannot be promised before it is used", "use a tmpfs of Linux for the arena"
    ),
    "F_SETLEASE": Ability(
        _lease,
        Level.WARNING,
        "who maps a segment cannot be asked of the kernel: only leases keep one from being evicted",
        "use a tmpfs of a Linux kernel for the arena; sandboxes such as gVisor have no such lease",
    ),
    "MADV_POPULATE_WRITE": Ability(
        _populate, Level.NOTE, "pages come one by one, and loads are slower", "Linux 5.14 or newer"
    ),
    "RWF_DONTCACHE": Ability(
        _dontcache,
        Level.NOTE,
        f"reads from the file system of {os.path.dirname(__file__)} pass by the page cache otherwise",
        "Linux 6.14 or newer, with sources on ext4, xfs or btrfs; nothing has to be done",
    ),
}
"""By the name that the kernel's documentation has."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """What was found.

    Attributes:
        release: as the kernel says.
        refusals: of each ability, why not; "" if it is there.
        overcommit: the kernel's policy on memory that is promised and not used.
    """

    release: str
    refusals: Mapping[str, str]
    overcommit: str


def look(directory: str) -> Kernel:
    """Try each ability on a file without a name in a directory, or else in memory."""
    fd = _scratch(directory)
    try:
        refusals = {name: _try(ability, fd) for name, ability in ABILITIES.items()}
    finally:
        os.close(fd)
    return Kernel(platform.release(), refusals, _OVERCOMMIT.read_text().strip())


def _scratch(directory: str) -> int:
    try:
        fd = os.open(directory, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError:  # no right to write there, or hugetlbfs
        fd = os.memfd_create("warmshelf-doctor", os.MFD_CLOEXEC)
    os.ftruncate(fd, mmap.PAGESIZE)
    return fd


def _try(ability: Ability, fd: int) -> str:
    try:
        ability.try_it(fd)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return ""


# --- judging ------------------------------------------------------------------


def judge(kernel: Kernel) -> Iterator[Finding]:
    """Yield what there is to say of the kernel."""
    yield _release(kernel.release)
    for name, ability in ABILITIES.items():
        refusal = kernel.refusals[name]
        if refusal:
            text = f"no {name} ({refusal}): {ability.without}"
            yield Finding(f"kernel-{name}", ability.needed, text, ability.advice, {"errno": refusal})
        else:
            yield Finding(f"kernel-{name}", Level.OK, f"{name} works")
    if kernel.overcommit == _STRICT:
        text = (
            "the kernel promises no memory that it may not have (vm.overcommit_memory=2): each mapping counts in full"
        )
        yield Finding("kernel-overcommit", Level.WARNING, text, "sysctl vm.overcommit_memory=0, or map read-only")


def _release(release: str) -> Finding:
    numbers = tuple(int(part) for part in release.partition("-")[0].split(".")[:2] if part.isdigit())
    if numbers >= RELEASE_MIN:
        return Finding("kernel-release", Level.OK, f"Linux {release}")
    needed = ".".join(map(str, RELEASE_MIN))
    return Finding("kernel-release", Level.PROBLEM, f"Linux {release} is older than {needed}", f"use {needed} or newer")
