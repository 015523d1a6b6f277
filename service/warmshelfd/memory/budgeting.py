"""How large an arena's budget may be, given its file system and the cgroup's memory limit."""

from __future__ import annotations

from collections.abc import Iterable

from warmshelf._cgroup import memory_limit_bytes
from warmshelf._volume import Volume
from warmshelf.errors import InvalidConfig

BUDGET_BYTES_MIN = 16 << 10
"""Smallest budget: a segment has at least a first page, a page of tensors, their layout and the manifest."""


def default_budget(volume: Volume, room: int | None, sizes_left: Iterable[int]) -> int:
    """Return half of what is free; segments that are there already are the arena's own, so they count as free."""
    half = (volume.free_bytes() + sum(sizes_left)) // 2
    budget = half if room is None else min(half, room)
    return budget // volume.page_size_bytes * volume.page_size_bytes


def cgroup_room(volume: Volume, reserve_bytes: int) -> int | None:
    """Return what the cgroup's memory limit leaves for the arena; None if nothing limits it."""
    limit = None if volume.is_hugetlb else memory_limit_bytes()
    return None if limit is None else limit - reserve_bytes


def check_budget(budget: int, volume: Volume, room: int | None) -> None:
    """Return if there may be such a budget, as far as the cgroup goes.

    Raises:
        InvalidConfig: it holds nothing, or is more than is left.
    """
    least = max(BUDGET_BYTES_MIN, volume.page_size_bytes)
    if budget < least:
        raise InvalidConfig(
            f"a budget of {budget} bytes holds nothing; the smallest segment takes {least}",
            budget_bytes=budget,
            budget_bytes_min=least,
        )
    if room is not None and budget > room:
        raise InvalidConfig(
            f"a budget of {budget} bytes is more than the cgroup's memory limit leaves for it: {room} bytes",
            budget_bytes=budget,
            room_bytes=room,
        )


def check_total(budget: int, volume: Volume, directory: str) -> None:
    """Return if the file system can have so much.

    Raises:
        InvalidConfig: it is smaller.
    """
    total = volume.total_bytes()
    if budget > total:
        raise InvalidConfig(
            f"a budget of {budget} bytes is more than the {total} bytes of the file system of {directory!r}",
            budget_bytes=budget,
            total_bytes=total,
        )
