"""The threads of loads: those of one kind, from one place, are their own.

A place is what is waited for where a source is read, such as a server. One that hangs
keeps its own threads waiting and nobody else's. Knows nothing of what they do.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from warmshelf.types import ArtifactKind


@dataclass(frozen=True, slots=True)
class LoadThreads:
    """How many loads and inspections run at once from each place, and how many reads each load makes in parallel."""

    bases: int
    adapters: int
    inspections: int
    reads: int


class Pools:
    """A pool for each kind and place, made when it is first wanted. For the event loop's thread.

    There are as many places as the operator has allowed, and no thread before it is needed.
    """

    def __init__(self, threads: LoadThreads) -> None:
        self._threads = threads
        self._pools: dict[tuple[ArtifactKind, str], ThreadPoolExecutor] = {}

    def of(self, kind: ArtifactKind, place: str) -> ThreadPoolExecutor:
        """Return the threads for loads of a kind; of none, for inspections."""
        if (kind, place) not in self._pools:
            self._pools[kind, place] = self._made(kind)
        return self._pools[kind, place]

    def _made(self, kind: ArtifactKind) -> ThreadPoolExecutor:
        if kind is ArtifactKind.BASE:
            return executor(self._threads.bases, "load-base")
        if kind is ArtifactKind.ADAPTER:  # these have their own threads, so they never wait behind a base
            return executor(self._threads.adapters, "load-adapter")
        return executor(self._threads.inspections, "inspect")

    def close(self) -> None:
        """Wait for the threads to end."""
        for pool in self._pools.values():
            pool.shutdown(wait=True)


def executor(threads: int, name: str) -> ThreadPoolExecutor:
    """Return a pool of named threads."""
    return ThreadPoolExecutor(threads, name)
