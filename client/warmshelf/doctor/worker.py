"""Whether this process, as a worker, maps what the daemon serves.

Leases something resident if there is anything, as a worker would. Writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from warmshelf._volume import directory_identity
from warmshelf.client import Shelf
from warmshelf.doctor.daemon import DaemonSeen
from warmshelf.doctor.finding import Finding, Level
from warmshelf.errors import WarmshelfError
from warmshelf.types import ArtifactState

_SAY_WHERE = "mount the arena into this container, and set WARMSHELF_ARENA to where it is there"
_ADVICE = {
    "tcp": "map what is on this node: connect by the daemon's Unix socket, or set WARMSHELF_ARENA",
    "arena_not_visible": _SAY_WHERE,
    "segment_not_found": f"this is another directory: {_SAY_WHERE}",
    "other_host": f"this is another node's directory: {_SAY_WHERE}",
    "format_too_new": "upgrade this client: the daemon writes a newer format of segments",
    "map_failed": "let this user read the segments: same user or group as the daemon, and the same SELinux level",
}
"""What to do for each of a client's reasons to stream."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The arena as this process sees it.

    Attributes:
        directory: where it looked.
        refusal: why it cannot be opened; "" if it can.
        is_writable: whether this process could make and remove files there.
        identity: of the directory, to be compared with the daemon's.
        leased_id: the resident artifact that was leased; "" if there was none.
        fallback_reason: why its bytes had to be streamed; "" if they were mapped.
        lease_refusal: why it could not be leased.
    """

    directory: str
    refusal: str = ""
    is_writable: bool = False
    identity: str = ""
    leased_id: str = ""
    fallback_reason: str = ""
    lease_refusal: str = ""


def look(reach: Callable[..., Shelf], directory: str, arena: str) -> Seen:
    """Look at the arena and lease the smallest of what is resident.

    Args:
        reach: connects to the daemon.
        directory: the arena, as far as it is known.
        arena: what a worker here would tell ``connect``; "" if nothing, and then over TCP nothing is mapped.
    """
    refusal, is_writable, identity = _look_at(directory)
    try:
        leased_id, fallback_reason = _lease(reach, arena)
        return Seen(directory, refusal, is_writable, identity, leased_id, fallback_reason)
    except WarmshelfError as error:
        return Seen(directory, refusal, is_writable, identity, lease_refusal=error.message)


def _look_at(directory: str) -> tuple[str, bool, str]:
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return error.strerror or str(error), False, ""
    try:
        return "", os.access(directory, os.W_OK), directory_identity(fd)
    finally:
        os.close(fd)


def _lease(reach: Callable[..., Shelf], arena: str) -> tuple[str, str]:
    """Return the smallest resident artifact, and why it was not mapped; what cannot be mapped is streamed whole."""
    with reach(arena=arena or None) as shelf:
        resident = [one for one in shelf.list() if one.state is ArtifactState.READY]
        if not resident:
            return "", ""
        smallest = min(resident, key=lambda one: one.size_bytes)
        with shelf.acquire(smallest.artifact_id, resident_only=True, writable=False) as lease:
            return smallest.artifact_id, lease.fallback_reason


# --- judging ------------------------------------------------------------------


def judge(seen: Seen, daemon: DaemonSeen) -> Iterator[Finding]:
    """Yield what there is to say of a worker here."""
    if seen.refusal:
        text = f"this process cannot open the arena {seen.directory}: {seen.refusal}; it streams, and holds a copy"
        yield Finding("worker-arena", Level.PROBLEM, text, _SAY_WHERE)
        return
    yield Finding("worker-arena", Level.OK, f"this process sees {seen.directory}")
    yield _read_only(seen)
    yield _same(seen, daemon)
    yield _mapped(seen)


def _read_only(seen: Seen) -> Finding:
    if not seen.is_writable:
        return Finding("worker-read-only", Level.OK, "this process cannot write into the arena's directory")
    text = "this process may remove and add files in the arena: a broken worker could"
    advice = (
        "mount it read-only into workers (readOnly: true), or run them as another user that may read it through its "
        "group and reaches the daemon over TCP"
    )
    return Finding("worker-read-only", Level.NOTE, text, advice)


def _same(seen: Seen, daemon: DaemonSeen) -> Finding:
    theirs = daemon.capabilities.arena_identity if daemon.capabilities else ""
    if not theirs:
        return Finding("worker-same-arena", Level.NOTE, "the daemon does not say which directory it has")
    if theirs == seen.identity:
        return Finding("worker-same-arena", Level.OK, "it is the daemon's directory")
    if seen.leased_id and not seen.fallback_reason:  # such as a sandbox that numbers devices its own way
        return Finding("worker-same-arena", Level.OK, "it has the daemon's files, under other numbers")
    where = daemon.capabilities.arena_directory if daemon.capabilities else ""
    text = f"{seen.directory} is not the directory that the daemon has as {where}"
    return Finding("worker-same-arena", Level.PROBLEM, text, _SAY_WHERE)


def _mapped(seen: Seen) -> Finding:
    if seen.lease_refusal:
        text = f"nothing could be leased: {seen.lease_refusal}"
        return Finding("worker-mapping", Level.PROBLEM, text, "see what the daemon's log says of the call")
    if not seen.leased_id:
        text = "nothing is resident, so mapping could not be tried"
        return Finding("worker-mapping", Level.NOTE, text, "load something, and ask again")
    if not seen.fallback_reason:
        return Finding("worker-mapping", Level.OK, f"{seen.leased_id} was leased and mapped")
    text = f"{seen.leased_id} was leased, but not mapped: {seen.fallback_reason}"
    level = Level.WARNING if seen.fallback_reason == "tcp" else Level.PROBLEM  # from another node, that is how it is
    return Finding("worker-mapping", level, text, _ADVICE.get(seen.fallback_reason, ""))
