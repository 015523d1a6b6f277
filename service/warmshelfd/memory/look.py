"""How a file looks from outside, by which a change of a sealed one is noticed without reading it.

The kernel keeps the time of the last change of a file's bytes or of anything that is known of it, and
nobody can set that time. What it does not see is a store through a shared mapping into a page that was
mapped for reading before. Knows neither segments nor what follows.
"""

from __future__ import annotations

import os
from typing import NamedTuple


class Look(NamedTuple):
    """What the kernel says of a file. The names of the fields stand in errors."""

    device: int
    inode: int
    size_bytes: int
    link_count: int
    mode: int
    user: int
    group: int
    modify_time_ns: int
    change_time_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> Look:
        """Return how a file looks."""
        return cls(
            stat.st_dev,
            stat.st_ino,
            stat.st_size,
            stat.st_nlink,
            stat.st_mode,
            stat.st_uid,
            stat.st_gid,
            stat.st_mtime_ns,
            stat.st_ctime_ns,
        )

    def differences(self, other: Look) -> list[str]:
        """Return the names of what differs."""
        return [name for name, mine, its in zip(self._fields, self, other, strict=True) if mine != its]
