"""Checks a node, or a worker's place on it, for real, and says what to do.

``examine`` brings the checks together. Each module beside has one kind of check: it looks,
and it judges what was seen, and the judging is pure. Nothing is changed and nothing is
left behind. Knows no terminal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

from warmshelf._security import Tls
from warmshelf.client import ARENA_VARIABLE, connect
from warmshelf.doctor import daemon, device, kernel, locking, memory, pages, worker
from warmshelf.doctor.daemon import REACH, DaemonSeen
from warmshelf.doctor.finding import Finding, Level, worst

__all__ = ["REACH", "Finding", "Level", "examine", "worst"]


def examine(
    address: str | None = None,
    *,
    arena: str = "",
    budget_bytes: int = 0,
    as_worker: bool = False,
    tls: Tls | None = None,
    token: str | os.PathLike[str] | None = None,
    tenant: str | None = None,
) -> Iterator[Finding]:
    """Yield what is found, check by check.

    Args:
        address: of the daemon, as for ``connect``. Without a daemon the node is checked all the same.
        arena: the directory; by default WARMSHELF_ARENA, else the daemon's, else this user's default.
        budget_bytes: by default the daemon's, else half of what the file system has.
        as_worker: check what a worker needs in this process's place, and not the node.
        tls: as for ``connect``.
        token: as for ``connect``.
        tenant: as for ``connect``.

    Raises:
        InvalidRequest: the address is none, or the token may not go there.
    """
    reach = partial(connect, address, tls=tls, token=token, tenant=tenant, timeout=daemon.ANSWER_SECONDS)
    seen = daemon.look(reach)
    yield from daemon.judge(seen)
    given = arena or os.environ.get(ARENA_VARIABLE, "")
    directory = given or _default_arena(seen)
    if as_worker:
        if seen.capabilities is not None:
            yield from worker.judge(worker.look(reach, directory, given), seen)
    else:
        yield from _node(seen, directory, budget_bytes)
    yield from device.judge(device.look())


def _node(seen: DaemonSeen, directory: str, budget_bytes: int) -> Iterator[Finding]:
    there = nearest(directory)
    found = memory.look(there)
    said = seen.capabilities
    budget = budget_bytes or (said.arena_size_bytes if said else 0) or max(found.free_bytes // 2, 1)
    yield from memory.judge(found, budget)
    if found.is_memory:
        yield from pages.judge(pages.look(there), budget)
    yield locking.judge(locking.look(budget), budget, said.pinning if said else "")
    yield from kernel.judge(kernel.look(there))


def _default_arena(seen: DaemonSeen) -> str:
    said = seen.capabilities.arena_directory if seen.capabilities else ""
    return said or f"/dev/shm/warmshelf-{os.getuid()}"  # noqa: S108 - the daemon's default; only looked at


def nearest(directory: str) -> str:
    """Return the directory, or the nearest above it that is there and can be opened: it has the same file system."""
    path = os.path.abspath(directory)
    while not (os.path.isdir(path) and os.access(path, os.R_OK)) and path != os.sep:
        path = os.path.dirname(path)
    return path
