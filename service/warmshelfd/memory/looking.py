"""What lies in an arena's directory, by name and size alone: nothing is opened."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress

from warmshelf._volume import Volume
from warmshelf.segment import is_segment_id

LOADING_NAME = re.compile(r"\.[0-9a-f]{32}\.loading")


def sizes_left(volume: Volume) -> Iterator[int]:
    """Yield the size of each segment that is here, or in a directory within."""
    for place in (".", *(entry.name for entry in directories(volume.directory_fd))):
        fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=volume.directory_fd)
        try:
            for name in os.listdir(fd):
                if is_segment_id(name) or LOADING_NAME.fullmatch(name):
                    with suppress(FileNotFoundError):
                        yield os.stat(name, dir_fd=fd, follow_symlinks=False).st_size
        finally:
            os.close(fd)


def directories(directory_fd: int) -> Iterator[os.DirEntry[str]]:
    """Yield the directories in one that are ours, and no links to any."""
    with os.scandir(directory_fd) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                yield entry
