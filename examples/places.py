"""Directories that a program has for itself, and that do not outlive it for long.

Each is locked for as long as its process lives. The kernel drops the lock however the
process ends, so whoever makes the next one beside it can tell what was left, and removes it.
It does not know what lies in them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "warmshelf-own-"
"""Begins the name of each of them, and of nothing else."""

_FRESH_PREFIX = "warmshelf-new-"
"""Until it is locked: nobody looks for these."""


@contextmanager
def own_directory(parent: Path | None = None) -> Iterator[Path]:
    """Make a directory, there or for temporary files; remove it at the end, and now what dead processes left."""
    parent = (parent or Path(tempfile.gettempdir())).resolve()
    remove_abandoned(parent)
    fresh = Path(tempfile.mkdtemp(prefix=_FRESH_PREFIX, dir=parent))
    held = os.open(fresh, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(held)  # where a directory cannot be locked, none is ever taken for abandoned
        directory = fresh.rename(parent / f"{PREFIX}{fresh.name.removeprefix(_FRESH_PREFIX)}")
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(held)


def remove_abandoned(parent: Path) -> None:
    """Remove the directories of this user whose processes have ended."""
    for directory in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another's, or removed at this moment
            _remove_abandoned(directory)


def _remove_abandoned(directory: Path) -> None:
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(held).st_uid == os.geteuid() and _lock(held):
            shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(held)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
