"""Who has what we cannot have: a lock or a port, as /proc tells.

For the text of a refusal, so it never fails: in a container other processes may not be
visible, and then nobody is named. Of a command only its beginning is shown: the rest may
hold secrets. Knows no lock, port or file by name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

UNSEEN = "a process that cannot be seen from here"

_COMMAND_WORDS_MAX = 3
_LISTENING = "0A"
"""How the kernel's tables of sockets write that state."""


def lock_holder(stat: os.stat_result) -> int:
    """Return which process has locked a file, whatever the kind of lock; 0 if none can be seen."""
    place = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    for fields in _lines("/proc/locks"):
        if "->" not in fields and len(fields) > 5 and fields[5] == place and fields[4].isdigit():  # noqa: PLR2004
            return int(fields[4])
    return 0


def file_holder(path: str) -> int:
    """Return which process has locked the file at a path; 0 if none can be seen."""
    with suppress(OSError):
        return lock_holder(os.stat(path))
    return 0


def port_holder(port: int) -> int:
    """Return which process listens on a TCP port; 0 if none can be seen."""
    wanted = {f"socket:[{inode}]" for inode in _listening(port)}
    for pid in filter(str.isdigit, os.listdir("/proc")) if wanted else ():
        with suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{fd}") in wanted:
                        return int(pid)
    return 0


def describe(pid: int) -> str:
    """Return a process in words: its number, and how its command begins."""
    command = _command(pid) if pid else ""
    if not pid:
        return UNSEEN
    return f"process {pid} ({command})" if command else f"process {pid}"


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(4096).decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    shown: list[str] = []
    for word in words[:_COMMAND_WORDS_MAX]:
        if not word or word.startswith("--") or any(mark in word for mark in ("=", "@", "://")):
            break
        shown.append(os.path.basename(word))
    return "".join(c for c in " ".join(shown) if c.isprintable())


def _listening(port: int) -> Iterator[str]:
    """Yield the inodes of the sockets that listen on a port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for fields in _lines(table):
            if len(fields) > 9 and fields[3] == _LISTENING and fields[1].endswith(f":{port:04X}"):  # noqa: PLR2004
                yield fields[9]


def _lines(path: str) -> Iterator[list[str]]:
    with suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        for line in file:
            yield line.split()
