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
        "load.examined",  # the source is open, its headers are read
        "load.reserved",  # space is promised in the books
        "load.created",  # the segment's file exists, empty
        "load.part",  # before each part is allocated and read
        "load.allocated",  # a part has its memory, nothing of it is read
        "load.read",  # all data are in, nothing is checked
        "load.verified",  # digest and source have been checked
        "load.shared",  # equal content is resident: the registry knows, memory does not
        "load.described",  # layout, CRCs and manifest are written, the header is not
        "load.frozen",  # the header is written and the mapping read-only, the file's mode is not
        "load.sealed",  # header and manifest are written, the registry does not know the segment
        "load.recorded",  # the registry knows the segment, its file has no name yet
        "load.pinned",  # checked as any reader would and locked, about to be renamed
        "load.published",  # renamed, the thread that did it has not returned
        "load.ready",  # about to become READY in memory
        "load.landed",  # READY in memory
        "load.aborted",  # the load has failed, its file is still there
        "register.inspected",  # headers are read, nothing is kept
        "register.recorded",  # in the registry, the caller has not been told
        "replace.begun",  # the old bytes have lost their name in memory, the registry does not know
        "replace.recorded",  # the registry knows the next generation, the old file has its name
        "move.recorded",  # the registry knows where an alias points, memory does not
        "commit.begun",  # changes of the registry are made, not yet committed
        "commit.done",  # committed, nobody has been told
        "digest.computed",  # of resident bytes, the registry does not know
        "digest.recorded",  # the registry knows it
        "evict.chosen",  # about to unlink
        "evict.unlinked",  # unlinked, not yet REGISTERED in memory
        "remove.recorded",  # gone from the registry, the file still has its name
        "remove.unlinked",  # its bytes are let go, the caller has not been told
        "adopt.cleaned",  # what the dead one left unfinished is gone, nothing is adopted
        "adopt.segment",  # before each segment is adopted at start
        "adopt.taken",  # after each segment was adopted
        "adopt.checked",  # the blocks of an adopted segment have been checked
        "claim.opened",  # a session is open, the worker does not know
        "claim.granted",  # a lease is granted, the worker does not know
        "claim.ended",  # a lease has ended
        "claim.closed",  # a session has ended, with its leases
        "stream.chunk",  # before each chunk is sent
        "stream.sent",  # after the last chunk, before the stream's end
        "push.begun",  # its place in the spool is made
        "push.chunk",  # before each pushed chunk is written
        "push.written",  # after each, before it is counted
        "push.proven",  # every file is on the disk and as it was sent, nothing is kept
        "push.stored",  # a store of its own, if there is one, has every file too
        "push.kept",  # renamed to be kept, the registry does not know it
        "push.registered",  # the registry knows it, the client does not
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
