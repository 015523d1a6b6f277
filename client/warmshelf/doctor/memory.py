"""Whether the arena's file system is memory, and whether the budget fits into all that limits it.

Judges what was looked at; measures nothing and knows no daemon.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from warmshelf._cgroup import memory_limit_bytes
from warmshelf._sizes import show_size
from warmshelf._volume import Volume
from warmshelf.doctor.finding import Finding, Level
from warmshelf.segment import is_segment_id

RESERVE_BYTES = 512 << 20
"""What a daemon keeps beside the arena by default: its setting ``reserve_bytes``."""

SMALL_TOTAL_BYTES = 256 << 20
"""No model fits: containers get a /dev/shm of 64 MiB unless somebody says otherwise."""

_MEMINFO = Path("/proc/meminfo")
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Memory:
    """The arena's file system and what bounds it.

    Attributes:
        directory: the arena, or the nearest directory above it that is there.
        type_name: of the file system.
        options: of its mount.
        total_bytes: how large it can grow; 0 if it does not say.
        free_bytes: what is free, with what the arena's own segments take.
        limit_bytes: the least of the control groups' limits on this process; None without one.
        node_bytes: the node's memory.
        swap_bytes: the node's swap.
    """

    directory: str
    type_name: str
    options: frozenset[str]
    total_bytes: int
    free_bytes: int
    limit_bytes: int | None
    node_bytes: int
    swap_bytes: int

    @property
    def is_memory(self) -> bool:
        """Whether what is written there stays in memory."""
        return Volume(-1, self.type_name, 0).is_memory


def look(directory: str) -> Memory:
    """Look at the file system of a directory that is there, and at what bounds this process."""
    directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        volume, meminfo = Volume.of(directory_fd), _MEMINFO.read_text()
        return Memory(
            directory=directory,
            type_name=volume.type_name,
            options=volume.options,
            total_bytes=volume.total_bytes(),
            free_bytes=volume.free_bytes() + _segment_bytes(directory_fd),
            limit_bytes=None if volume.is_hugetlb else memory_limit_bytes(),
            node_bytes=meminfo_bytes(meminfo, "MemTotal"),
            swap_bytes=meminfo_bytes(meminfo, "SwapTotal"),
        )
    finally:
        os.close(directory_fd)


def _segment_bytes(directory_fd: int) -> int:
    """Return what the segments there take: it is the arena's own."""
    total = 0
    with suppress(OSError):  # somebody else's directory does not say
        for name in os.listdir(directory_fd):
            if is_segment_id(name):
                with suppress(FileNotFoundError):  # evicted meanwhile
                    total += os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_size
    return total


def meminfo_bytes(meminfo: str, name: str) -> int:
    """Return an amount from the kernel's table; 0 if it is not there."""
    for line in meminfo.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * _KIB
    return 0


# --- judging ------------------------------------------------------------------


def judge(memory: Memory, budget_bytes: int, reserve_bytes: int = RESERVE_BYTES) -> Iterator[Finding]:
    """Yield what there is to say of the arena's memory, for a budget."""
    yield _file_system(memory)
    yield _size(memory, budget_bytes)
    yield _limits(memory, budget_bytes, reserve_bytes)
    if memory.is_memory and memory.type_name != "hugetlbfs":
        yield _swap(memory)


def _file_system(memory: Memory) -> Finding:
    if memory.is_memory:
        return Finding("arena-memory", Level.OK, f"{memory.directory} is on {memory.type_name}")
    return Finding(
        "arena-memory",
        Level.PROBLEM,
        f"{memory.directory} is on {memory.type_name}, which is no memory: reads wait for a device",
        "use a directory under /dev/shm, or mount one: "
        "mount -t tmpfs -o size=SIZE,huge=within_size,noswap,mode=0700 tmpfs DIR",
        {"file_system": memory.type_name},
    )


def _size(memory: Memory, budget_bytes: int) -> Finding:
    total, free = memory.total_bytes, memory.free_bytes
    numbers = {"budget_bytes": budget_bytes, "total_bytes": total, "free_bytes": free}
    what = f"a budget of {show_size(budget_bytes)}"
    grow = f"mount -o remount,size={budget_bytes} {memory.directory}, or a memory volume with that sizeLimit"
    if total and budget_bytes > total:
        text = f"{what} is more than the {show_size(total)} of the file system: the daemon will not start"
        return Finding("arena-size", Level.PROBLEM, text, f"{grow}; or a smaller --budget", numbers)
    if budget_bytes > free:
        text = f"{what} does not fit: others left {show_size(free)} of the file system's {show_size(total)}"
        return Finding(
            "arena-size", Level.WARNING, text, "remove what others put there, or a smaller --budget", numbers
        )
    if total and total < SMALL_TOTAL_BYTES:
        text = (
            f"the file system has only {show_size(total)}, as /dev/shm of a container by default: hardly a model fits"
        )
        return Finding("arena-size", Level.WARNING, text, grow.replace(f"={budget_bytes}", "=SIZE"), numbers)
    return Finding("arena-size", Level.OK, f"{what} fits into {show_size(free)} free", numbers=numbers)


def _limits(memory: Memory, budget_bytes: int, reserve_bytes: int) -> Finding:
    needed = budget_bytes + reserve_bytes
    limit = memory.node_bytes if memory.limit_bytes is None else min(memory.limit_bytes, memory.node_bytes)
    whose = "this control group may have" if memory.limit_bytes == limit else "the node has"
    numbers = {"needed_bytes": needed, "limit_bytes": limit, "reserve_bytes": reserve_bytes}
    text = f"budget and reserve are {show_size(needed)}, {whose} {show_size(limit)}"
    if needed <= limit:
        return Finding("memory-limit", Level.OK, text, numbers=numbers)
    advice = (
        f"raise the memory limit to {show_size(needed)} or more, or use a budget of {max(limit - reserve_bytes, 0)}"
    )
    return Finding("memory-limit", Level.PROBLEM, f"{text}: a full arena would be killed", advice, numbers)


def _swap(memory: Memory) -> Finding:
    numbers = {"swap_bytes": memory.swap_bytes}
    if not memory.swap_bytes:
        return Finding("swap", Level.OK, "the node has no swap", numbers=numbers)
    if "noswap" in memory.options:
        return Finding("swap", Level.OK, "the arena's file system is mounted noswap", numbers=numbers)
    text = f"the node has {show_size(memory.swap_bytes)} of swap, and weights that are not page-locked may go there"
    advice = "mount the arena with noswap (Linux 6.4 and newer), let the daemon lock pages, or use no swap"
    return Finding("swap", Level.NOTE, text, advice, numbers)
