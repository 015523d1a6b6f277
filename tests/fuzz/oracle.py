"""What a target is, and what must hold of every input, whatever it is.

Nothing but typed errors gets out; the memory that it takes is bounded by its size; so
is the time. Knows no target.
"""

from __future__ import annotations

import resource
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from warmshelf.errors import WarmshelfError

MEMORY_FACTOR = 2
MEMORY_BYTES = 16 << 20
"""Reading an input may take twice its size and this much."""

CPU_SECONDS_MAX = 1.0
"""Of this thread, so that a busy machine makes nothing fail."""

Run = Callable[[bytes], object]


@dataclass(frozen=True)
class Target:
    """One kind of bytes, what reads them, and the errors with which it may refuse."""

    run: Run
    seeds: Callable[[], Sequence[bytes]]
    typed: tuple[type[BaseException], ...] = (WarmshelfError,)
    seeds_are_good: bool = True  # none of them is refused
    mutator: Callable[[bytes, int, int], bytes] | None = None  # gets the most bytes there may be, and a seed


class TookTooMuch(AssertionError):  # noqa: N818 - it names what happened
    """An input took more memory or time than its size allows."""


class Oracle:
    """Runs a target and checks what each input takes.

    Args:
        run: the target.
        typed: the errors with which it may refuse.
    """

    def __init__(self, run: Run, typed: tuple[type[BaseException], ...]) -> None:
        self._run = run
        self._typed = typed
        self._peak_bytes: int | None = None  # before the first input: the fuzzer itself grows until then

    def __call__(self, data: bytes) -> None:
        """Run one input: cheap, so memory is seen as the process's own peak."""
        start = time.thread_time()
        self._refusing(data)
        seconds, peak = time.thread_time() - start, _peak_bytes()
        grown = 0 if self._peak_bytes is None else peak - self._peak_bytes
        self._peak_bytes = peak
        if grown > MEMORY_FACTOR * len(data) + MEMORY_BYTES:
            raise TookTooMuch(f"{len(data)} bytes made the process grow by {grown}")
        if seconds > CPU_SECONDS_MAX:
            raise TookTooMuch(f"{len(data)} bytes took {seconds:.1f} s")

    def measure(self, inputs: Iterable[bytes]) -> None:
        """Run inputs with every allocation counted: exact, and several times slower."""
        tracemalloc.start()
        try:
            for data in inputs:
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                self._refusing(data)
                _, peak = tracemalloc.get_traced_memory()
                if peak - before > MEMORY_FACTOR * len(data) + MEMORY_BYTES:
                    raise TookTooMuch(f"{len(data)} bytes took {peak - before} at once")
        finally:
            tracemalloc.stop()

    def _refusing(self, data: bytes) -> None:
        with suppress(*self._typed):
            self._run(data)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
