"""Named places where a test may make the daemon die, stop, fail or wait.

Nothing happens unless ``WARMSHELF_FAILPOINTS`` is set when the daemon starts, such as
``load.part=3*kill;registry.put=error``: at the third hit of the first, kill the
process; at the first hit of the second, raise. Actions: ``kill`` (SIGKILL),
``stop`` (SIGSTOP), ``error`` (raise Internal), ``delay(MS)`` (sleep, at that hit and
each later one).
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from dataclasses import dataclass, field

from warmshelf.errors import Internal, InvalidConfig

NAMES = frozenset(
    {
        "load.started",  # the load has begun, nothing is reserved
        "load.reserved",  # space is promised in the books
        "load.created",  # the segment's file exists, empty
        "load.part",  # before each part is allocated and read
        "load.read",  # all data are in, nothing is checked
        "load.verified",  # digest and source have been checked
        "load.sealed",  # header and manifest are written, the registry does not know the segment
        "load.recorded",  # the registry knows the segment, its file has no name yet
        "load.published",  # renamed, the thread that did it has not returned
        "load.ready",  # about to become READY in memory
        "register.inspected",  # headers are read, nothing is kept
        "register.recorded",  # in the registry, the caller has not been told
        "evict.chosen",  # about to unlink
        "evict.unlinked",  # unlinked, not yet REGISTERED in memory
        "remove.recorded",  # gone from the registry, the file still has its name
        "adopt.segment",  # before each segment is adopted at start
        "stream.chunk",  # before each chunk is sent
        "push.chunk",  # before each pushed chunk is written
        "push.proven",  # every file is on the disk and as it was sent, nothing is kept
        "push.stored",  # a store of its own, if there is one, has every file too
        "push.kept",  # renamed to be kept, the registry does not know it
    }
)
"""Every failpoint there is; a test shows that each is hit."""

_ACTION = re.compile(r"(?:(\d+)\*)?(kill|stop|error|delay\((\d+)\))")


@dataclass
class _Armed:
    action: str
    at_hit: int
    delay_ms: int
    hits: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)  # guards hits


def _parse(text: str) -> dict[str, _Armed]:
    armed = {}
    for item in filter(None, text.split(";")):
        name, _, action = item.partition("=")
        match = _ACTION.fullmatch(action)
        if name not in NAMES or match is None:
            raise InvalidConfig(f"WARMSHELF_FAILPOINTS: cannot use {item!r}")
        armed[name] = _Armed(match[2], int(match[1] or 1), int(match[3] or 0))
    return armed


_ARMED = _parse(os.environ.get("WARMSHELF_FAILPOINTS", ""))


def hit(name: str) -> None:
    """Pass the failpoint; returns at once unless it is armed."""
    if _ARMED and name in _ARMED:
        _fire(name, _ARMED[name])


def _fire(name: str, armed: _Armed) -> None:
    with armed.lock:
        armed.hits += 1
        hits = armed.hits
    if armed.delay_ms and hits >= armed.at_hit:
        time.sleep(armed.delay_ms / 1000)
    elif hits == armed.at_hit:
        if armed.action == "error":
            raise Internal(f"failpoint {name}")
        os.kill(os.getpid(), signal.SIGKILL if armed.action == "kill" else signal.SIGSTOP)
