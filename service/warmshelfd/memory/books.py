"""The arena's books: what of the budget is resident, promised, or still mapped without a name.

Arithmetic under one lock. Several books may spend of one budget, each up to a most of its own.
Knows neither files nor mappings, nor who shares with whom and why; the caller says what the
file system has free.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from warmshelf.errors import ArenaFull, LargerThanArena


@dataclass(frozen=True, slots=True)
class ArenaUsage:
    """The budget and what it is spent on, at one moment.

    Attributes:
        budget_bytes: what the arena may take in all.
        resident_bytes: sealed segments that have a name.
        reserved_bytes: promised to loads under way.
        unnamed_bytes: files without a name that somebody still maps.
        free_bytes: what could be reserved now; also bounded by the file system.
    """

    budget_bytes: int
    resident_bytes: int
    reserved_bytes: int
    unnamed_bytes: int
    free_bytes: int


class Reservation:
    """Room that is promised to one load, until it is released or has become a segment."""

    def __init__(self, books: Books, size: int) -> None:
        self.size = size
        self._books = books
        # The part of ``size`` that the file system has already given; the books' lock guards it.
        self.allocated = 0

    def allocate(self, size: int) -> None:
        """Note that the file system has given so much of it."""
        self._books.allocate(self, size)

    def release(self) -> None:
        """Give the room back. Idempotent, and without effect once something has become of it."""
        self._books.end(self)

    def become_resident(self, size: int) -> None:
        """Turn the room into that of a segment with a name. Once."""
        self._books.end(self, resident_bytes=size)

    def become_unnamed(self, size: int) -> None:
        """Turn the room into that of a file that has lost its name. Once."""
        self._books.end(self, unnamed_bytes=size)

    def not_given(self, size: int, why: str) -> ArenaFull:
        """Return the error for room that was promised here and that the file system did not give."""
        return _arena_full(size, self._books.usage(), why)


class Claim(Reservation):
    """Room that is to leave the budget. It needs no bytes of the file system, so all of it counts as given."""

    def __init__(self, books: Books, size: int) -> None:
        super().__init__(books, size)
        self.allocated = size

    def leave(self) -> bool:
        """Make the budget so much smaller, if all of the room is there; say whether it was. Once."""
        return self._books.shrink(self)


class _Whole:
    """A budget, and all the books that spend of it. Its lock guards them too."""

    def __init__(self, budget_bytes: int) -> None:
        self.lock = threading.Lock()
        # Guarded by the lock.
        self.budget = budget_bytes
        self.books: list[Books] = []

    def unspent(self) -> int:
        return self.budget - sum(one.spent() for one in self.books)

    def pending(self) -> int:
        """Return what is promised and not given yet by the file system."""
        return sum(one.pending() for one in self.books)


def _all_of_it(budget_bytes: int) -> int:
    return budget_bytes


class Books:
    """Who has what of the budget.

    Every figure errs on the side of "taken" while something moves: a file is
    allocated before that is noted, and freed before that is noted.
    """

    def __init__(self, budget_bytes: int, volume_free: Callable[[], int], whole: _Whole | None = None) -> None:
        """Begin; ``beside`` makes further books of the same budget."""
        self._volume_free = volume_free
        self._whole = whole or _Whole(budget_bytes)
        self._lock = self._whole.lock
        # Guarded by the lock. ``_most`` gives what these may spend of a budget.
        self._most: Callable[[int], int] = _all_of_it
        self._resident = 0
        self._unnamed = 0
        self._reservations: set[Reservation] = set()
        with self._lock:
            self._whole.books.append(self)

    def beside(self, volume_free: Callable[[], int], most: Callable[[int], int]) -> Books:
        """Return empty books that spend of the same budget; ``most`` as for ``limit``."""
        books = Books(0, volume_free, self._whole)
        books.limit(most)
        return books

    def limit(self, most: Callable[[int], int]) -> None:
        """Spend from now on no more than ``most`` gives for a budget."""
        with self._lock:
            self._most = most

    @property
    def budget_bytes(self) -> int:
        """What may be spent of the budget."""
        with self._lock:
            return self._most(self._whole.budget)

    @property
    def whole_budget_bytes(self) -> int:
        """The budget, whoever may spend it."""
        with self._lock:
            return self._whole.budget

    def whole_free_bytes(self) -> int:
        """Return what nobody has spent and the file system has; negative while a claim is not met."""
        with self._lock:
            return self._whole_free()

    def grow(self, size: int) -> None:
        """Add to the budget."""
        with self._lock:
            self._whole.budget += size

    def claim(self, size: int) -> Claim:
        """Take room out of use that is to leave the budget, also room that is not free yet.

        Until there is so much, nothing is free for anybody else.
        """
        with self._lock:
            claim = Claim(self, size)
            self._reservations.add(claim)
            return claim

    def unspent_bytes(self) -> int:
        """Return what of the budget is neither used nor promised; negative while a claim is not met."""
        with self._lock:
            return self._unspent()

    def shrink(self, claim: Claim) -> bool:
        """Let claimed room leave the budget, if all of it is there; say whether it was."""
        with self._lock:
            if self._unspent() < 0:
                return False
            self._reservations.discard(claim)
            self._whole.budget -= claim.size
            return True

    def usage(self) -> ArenaUsage:
        """Return all sums; the file system is asked anew."""
        with self._lock:
            return self._usage()

    def reserve(self, size: int) -> Reservation:
        """Promise room.

        Raises:
            LargerThanArena: there can never be so much.
            ArenaFull: there is not so much now.
        """
        with self._lock:
            usage = self._usage()
            _check_fits(size, usage, usage.free_bytes)
            reservation = Reservation(self, size)
            self._reservations.add(reservation)
            return reservation

    def allocate(self, reservation: Reservation, size: int) -> None:
        """Note that the file system has given so much of a reservation."""
        with self._lock:
            reservation.allocated += size

    def end(self, reservation: Reservation, *, resident_bytes: int = 0, unnamed_bytes: int = 0) -> None:
        """End a reservation, if it has not ended; say what has become of it."""
        with self._lock:
            self._reservations.discard(reservation)
            self._resident += resident_bytes
            self._unnamed += unnamed_bytes

    def add_resident(self, size: int) -> None:
        """Count a segment that was there before we were.

        Raises:
            LargerThanArena, ArenaFull: the budget does not allow it.
        """
        with self._lock:
            usage = self._usage()
            _check_fits(size, usage, self._unspent())
            self._resident += size

    def remove_resident(self, size: int, *, unnamed_bytes: int = 0) -> None:
        """Stop counting a segment; say how much of it lives on without a name."""
        with self._lock:
            self._resident -= size
            self._unnamed += unnamed_bytes

    def add_unnamed(self, size: int) -> None:
        """Count a file that has lost its name."""
        with self._lock:
            self._unnamed += size

    def remove_unnamed(self, size: int) -> None:
        """Stop counting a file without a name: it is gone."""
        with self._lock:
            self._unnamed -= size

    # --- under the lock -----------------------------------------------------

    def spent(self) -> int:
        """Return what is used and promised."""
        return self._resident + self._unnamed + sum(r.size for r in self._reservations)

    def pending(self) -> int:
        """Return what is promised and not given yet by the file system."""
        return sum(r.size - min(r.allocated, r.size) for r in self._reservations)

    def _unspent(self) -> int:
        return min(self._most(self._whole.budget) - self.spent(), self._whole.unspent())

    def _whole_free(self) -> int:
        return min(self._whole.unspent(), self._volume_free() - self._whole.pending())

    def _usage(self) -> ArenaUsage:
        reserved = self.spent() - self._resident - self._unnamed
        free = max(min(self._unspent(), self._whole_free()), 0)
        return ArenaUsage(self._most(self._whole.budget), self._resident, reserved, self._unnamed, free)


def _check_fits(size: int, usage: ArenaUsage, free_bytes: int) -> None:
    if size > usage.budget_bytes:
        raise LargerThanArena(
            f"{size} bytes can never fit into an arena of {usage.budget_bytes} bytes",
            needed_bytes=size,
            budget_bytes=usage.budget_bytes,
        )
    if size > free_bytes:
        raise _arena_full(size, usage)


def _arena_full(size: int, usage: ArenaUsage, why: str = "") -> ArenaFull:
    """Return the error that says how much was wanted and what there is."""
    return ArenaFull(
        f"no room for {size} bytes{why}: {usage.free_bytes} of {usage.budget_bytes} bytes are free, "
        f"{usage.resident_bytes} resident, {usage.reserved_bytes} reserved, {usage.unnamed_bytes} still mapped "
        f"without a name",
        needed_bytes=size,
        free_bytes=usage.free_bytes,
        budget_bytes=usage.budget_bytes,
        resident_bytes=usage.resident_bytes,
        reserved_bytes=usage.reserved_bytes,
        unnamed_bytes=usage.unnamed_bytes,
    )
