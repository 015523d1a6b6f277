"""Which pages the arena has, what huge ones would gain here, and what page tables cost.

The gain is measured: memory is filled a few times as a load fills it, with small pages
and with huge ones, and in the arena itself if this process may write there.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from warmshelf._cgroup import memory_left_bytes
from warmshelf._sizes import show_size
from warmshelf._volume import Volume, gives_huge_pages_at_all
from warmshelf.doctor.finding import Finding, Level

FILL_BYTES = 64 << 20
"""Filled in some 30 ms with small pages; large enough that the cache of a core does not hold it."""

LEFT_BYTES_MIN = 4 * FILL_BYTES
"""With less left in the control group nothing is measured: what fills it gets somebody killed, perhaps the daemon."""

FILL_COUNT = 3
"""The best of them counts: a busy node only ever slows one down."""

GAIN_MIN = 1.2
"""Below it, other pages are not worth a mount of one's own."""

TABLE_BYTES_MAX = 256 << 20
"""More than this for each worker is worth a warning: it is memory that no limit of ours counts."""

_BLOCK = bytes(range(256)) * 4096
_ENTRY_BYTES = 8
"""What the kernel keeps for each page that a process maps."""

_POPULATE_WRITE = 23
"""``MADV_POPULATE_WRITE`` of Linux 5.14, which has no name in Python."""

_SHMEM_SWITCH = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


@dataclass(frozen=True, slots=True)
class Pages:
    """The arena's pages, and how fast memory is filled.

    Attributes:
        type_name: of the arena's file system.
        page_size_bytes: in force there.
        shmem_switch: the kernel's own, which overrules mounts; "" where it has none.
        arena_rate: bytes a second into the arena; None if this process may not write there.
        small_rate: into small pages; None if nothing was measured, because too little memory is left for it.
        huge_rate: into huge ones; None where the kernel gives none.
    """

    type_name: str
    page_size_bytes: int
    shmem_switch: str
    arena_rate: float | None
    small_rate: float | None
    huge_rate: float | None


def look(directory: str) -> Pages:
    """Look at the pages of a directory that is there, and measure."""
    directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        volume, left = Volume.of(directory_fd), memory_left_bytes()
        may_fill = left is None or left >= LEFT_BYTES_MIN
        return Pages(
            type_name=volume.type_name,
            page_size_bytes=volume.page_size_bytes,
            shmem_switch=_read(_SHMEM_SWITCH),
            arena_rate=_arena_rate(volume) if volume.is_memory and may_fill else None,
            small_rate=fill_rate(lambda: _anonymous(mmap.MADV_NOHUGEPAGE)) if may_fill else None,
            huge_rate=_huge_rate() if may_fill else None,
        )
    finally:
        os.close(directory_fd)


# --- measuring ----------------------------------------------------------------


def fill_rate(make: Callable[[], mmap.mmap], count: int = FILL_COUNT) -> float:
    """Return bytes a second of filling fresh memory, the best of a few times."""
    return max(_fill_once(make) for _ in range(count))


def _fill_once(make: Callable[[], mmap.mmap]) -> float:
    begun = time.perf_counter()
    with make() as memory:
        with suppress(OSError):  # an older kernel brings pages in one by one
            memory.madvise(_POPULATE_WRITE)
        for start in range(0, FILL_BYTES, len(_BLOCK)):
            memory[start : start + len(_BLOCK)] = _BLOCK
        return FILL_BYTES / (time.perf_counter() - begun)


def _anonymous(advice: int) -> mmap.mmap:
    memory = mmap.mmap(-1, FILL_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages has only small ones
        memory.madvise(advice)
    return memory


def _huge_rate() -> float | None:
    return fill_rate(lambda: _anonymous(mmap.MADV_HUGEPAGE)) if gives_huge_pages_at_all() else None


def _arena_rate(volume: Volume) -> float | None:
    if volume.free_bytes() < 2 * FILL_BYTES:  # what is left belongs to loads
        return None
    try:
        return fill_rate(lambda: _in(volume.directory_fd))
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS, errno.EOPNOTSUPP, errno.ENOSPC}:
            return None
        raise


def _in(directory_fd: int) -> mmap.mmap:
    """Return memory of a file without a name: nothing is left, whatever happens."""
    path = f"/proc/self/fd/{directory_fd}"
    fd = os.open(path, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, FILL_BYTES)
        return mmap.mmap(fd, FILL_BYTES)
    finally:
        os.close(fd)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


# --- judging ------------------------------------------------------------------


def judge(pages: Pages, budget_bytes: int) -> Iterator[Finding]:
    """Yield what there is to say of the arena's pages, for a budget."""
    yield _page_size(pages)
    yield _tables(pages.page_size_bytes, budget_bytes)


def gain(pages: Pages) -> float | None:
    """Return how many times faster a fill with huge pages is than one with small ones; None if there are none."""
    return pages.huge_rate / pages.small_rate if pages.huge_rate and pages.small_rate else None


def _page_size(pages: Pages) -> Finding:
    found, numbers = gain(pages), _numbers(pages)
    if pages.page_size_bytes > mmap.PAGESIZE:
        text = f"pages of {show_size(pages.page_size_bytes)} are in force" + _said(pages)
        return Finding("huge-pages", Level.OK, text, numbers=numbers)
    text = f"pages of {show_size(pages.page_size_bytes)} are in force"
    if found is None:
        why = (
            "and this kernel gives no huge ones"
            if pages.small_rate
            else "and too little memory is left to measure others"
        )
        return Finding("huge-pages", Level.NOTE, f"{text}, {why}", numbers=numbers)
    text += f"{_said(pages)}; huge pages fill {found:.1f} times as fast here"
    if found < GAIN_MIN:
        return Finding("huge-pages", Level.NOTE, text, numbers=numbers)
    if "[deny]" in pages.shmem_switch:
        advice = f"the kernel forbids them: echo never > {_SHMEM_SWITCH} leaves it to the mount"
    else:
        advice = "mount the arena's tmpfs with huge=within_size"
    return Finding("huge-pages", Level.WARNING, text, advice, numbers)


def _said(pages: Pages) -> str:
    return "" if pages.arena_rate is None else f", a fill runs at {show_size(pages.arena_rate)}/s"


def _numbers(pages: Pages) -> dict[str, int | float | str]:
    rates = {"arena": pages.arena_rate, "small": pages.small_rate, "huge": pages.huge_rate}
    measured = {f"{name}_bytes_per_second": round(rate) for name, rate in rates.items() if rate is not None}
    found = gain(pages)
    times = {} if found is None else {"gain_ratio": round(found, 2)}
    return {"page_size_bytes": pages.page_size_bytes, **measured, **times}


def _tables(page_size_bytes: int, budget_bytes: int) -> Finding:
    cost = table_bytes(page_size_bytes, budget_bytes)
    numbers = {"page_table_bytes": cost, "page_size_bytes": page_size_bytes}
    text = f"each process that maps the whole budget has {show_size(cost)} of page tables"
    if cost > TABLE_BYTES_MAX:
        return Finding("page-tables", Level.WARNING, text, "huge pages need a 512th of it", numbers)
    return Finding("page-tables", Level.OK, text, numbers=numbers)


def table_bytes(page_size_bytes: int, mapped_bytes: int) -> int:
    """Return what the kernel keeps for one process that maps so much."""
    return -(-mapped_bytes // page_size_bytes) * _ENTRY_BYTES
