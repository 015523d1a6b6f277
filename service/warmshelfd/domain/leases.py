"""Who holds what: sessions and the leases that hang on them.

A lease ends when it is released or when its session ends, whatever comes first;
there is no other way and no time limit. The table knows neither streams nor
memory, and makes no IDs: those are random and come from outside.

All of it belongs to the event loop's thread; no lock guards it, and no method
waits.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from warmshelf.errors import Internal, LeaseLost, SessionLost, TooManyLeases, TooManySessions


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """One lease. Its IDs are secrets of its session and not shown.

    Attributes:
        number: rises with every lease granted; listings are in this order.
        lease_id, session_id: as given by whoever granted it.
        holder: who has it, for people.
        artifact_id, generation, segment_id: what it keeps in memory.
        acquire_time: when it was granted.
    """

    number: int
    lease_id: str = field(repr=False)
    session_id: str = field(repr=False)
    holder: str
    artifact_id: str
    generation: int
    segment_id: str
    acquire_time: datetime


@dataclass(frozen=True, slots=True)
class LeasePage:
    """Part of a listing. ``next_after_number`` continues it and is 0 on the last page."""

    leases: tuple[LeaseRecord, ...]
    next_after_number: int


@dataclass(slots=True)
class _Session:
    holder: str
    leases: dict[str, LeaseRecord] = field(default_factory=dict)  # by lease ID, oldest first


class LeaseTable:
    """All sessions and leases of a daemon."""

    def __init__(self, *, sessions_max: int, leases_max: int, leases_per_session_max: int) -> None:
        self._sessions_max = sessions_max
        self._leases_max = leases_max
        self._leases_per_session_max = leases_per_session_max
        self._sessions: dict[str, _Session] = {}
        self._last_number = 0  # the highest handed out
        # The leases of all sessions by number, and the same numbers, rising: all of them,
        # and by artifact. New numbers go to the end, so the lists stay sorted.
        self._by_number: dict[int, LeaseRecord] = {}
        self._numbers: list[int] = []
        self._numbers_of: dict[str, list[int]] = {}
        # How many leases each segment has; no key has 0.
        self._holders: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._by_number)

    def __repr__(self) -> str:
        return f"<LeaseTable {len(self._sessions)} sessions, {len(self)} leases on {len(self._holders)} segments>"

    @property
    def session_count(self) -> int:
        """How many sessions are open."""
        return len(self._sessions)

    def holders(self, segment_id: str) -> int:
        """Return how many leases keep the segment."""
        return self._holders.get(segment_id, 0)

    def of_artifact(self, artifact_id: str) -> list[LeaseRecord]:
        """Return the leases on the artifact, of whatever generation, oldest first."""
        return [self._by_number[number] for number in self._numbers_of.get(artifact_id, ())]

    def open_session(self, session_id: str, holder: str) -> None:
        """Begin a session.

        Raises:
            TooManySessions: as many are open as may be.
            Internal: there is one with this ID.
        """
        if session_id in self._sessions:
            raise Internal("the new session's ID is taken")
        if len(self._sessions) >= self._sessions_max:
            raise TooManySessions(
                f"{len(self._sessions)} sessions are open, at most {self._sessions_max} may be",
                session_count=len(self._sessions),
                session_count_max=self._sessions_max,
            )
        self._sessions[session_id] = _Session(holder)

    def close_session(self, session_id: str) -> list[LeaseRecord]:
        """End a session, and return its leases, which end with it. Ending an unknown one is fine."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return []
        for lease in session.leases.values():
            self._forget(lease)
        return list(session.leases.values())

    def grant(
        self, lease_id: str, session_id: str, *, artifact_id: str, generation: int, segment_id: str, now: datetime
    ) -> LeaseRecord:
        """Begin a lease.

        Raises:
            SessionLost: the session is not open.
            TooManyLeases: the session, or all together, have as many as they may.
            Internal: the session has a lease with this ID.
        """
        session = self._session(session_id)
        if lease_id in session.leases:
            raise Internal("the new lease's ID is taken")
        _check_count("this session holds", len(session.leases), self._leases_per_session_max)
        _check_count("all sessions together hold", len(self), self._leases_max)
        self._last_number += 1
        lease = LeaseRecord(
            self._last_number, lease_id, session_id, session.holder, artifact_id, generation, segment_id, now
        )
        session.leases[lease_id] = lease
        self._by_number[lease.number] = lease
        self._numbers.append(lease.number)
        self._numbers_of.setdefault(artifact_id, []).append(lease.number)
        self._holders[segment_id] += 1
        return lease

    def release(self, session_id: str, lease_id: str) -> LeaseRecord | None:
        """End a lease and return it; None if the session has no such lease, which is fine."""
        session = self._sessions.get(session_id)
        lease = session.leases.pop(lease_id, None) if session else None
        if lease is not None:
            self._forget(lease)
        return lease

    def get(self, session_id: str, lease_id: str) -> LeaseRecord:
        """Return a live lease.

        Raises:
            SessionLost: the session is not open.
            LeaseLost: the session has no such lease.
        """
        lease = self._session(session_id).leases.get(lease_id)
        if lease is None:
            raise LeaseLost("the session has no such lease")
        return lease

    def page(self, after_number: int, page_size: int, artifact_id: str = "") -> LeasePage:
        """Return the next leases after this number, oldest first; ``artifact_id`` leaves only those on it."""
        numbers = self._numbers_of.get(artifact_id, []) if artifact_id else self._numbers
        start = bisect_right(numbers, after_number)
        leases = tuple(self._by_number[number] for number in numbers[start : start + page_size])
        more = bool(leases) and start + page_size < len(numbers)
        return LeasePage(leases, leases[-1].number if more else 0)

    def check(self) -> None:
        """Check every invariant.

        Raises:
            Internal: one is broken; says which.
        """
        leases = [lease for session in self._sessions.values() for lease in session.leases.values()]
        by_artifact: dict[str, list[int]] = {}
        for number in sorted(lease.number for lease in leases):
            by_artifact.setdefault(self._by_number[number].artifact_id, []).append(number)
        same = {
            "leases by number": self._by_number == {lease.number: lease for lease in leases},
            "sorted numbers": self._numbers == sorted(self._by_number),
            "numbers by artifact": self._numbers_of == by_artifact,
            "holders by segment": dict(self._holders) == dict(Counter(lease.segment_id for lease in leases)),
        }
        for name, is_same in same.items():
            if not is_same:
                raise Internal(f"the {name} are not those of the sessions")

    def _session(self, session_id: str) -> _Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionLost("the session is not open: it ended, or the daemon restarted")
        return session

    def _forget(self, lease: LeaseRecord) -> None:
        """Take a lease that its session has lost out of everything else."""
        del self._by_number[lease.number]
        _discard(self._numbers, lease.number)
        numbers = self._numbers_of[lease.artifact_id]
        _discard(numbers, lease.number)
        if not numbers:
            del self._numbers_of[lease.artifact_id]
        self._holders[lease.segment_id] -= 1
        if not self._holders[lease.segment_id]:
            del self._holders[lease.segment_id]


def _check_count(who: str, count: int, count_max: int) -> None:
    if count >= count_max:
        raise TooManyLeases(
            f"{who} {count} leases, at most {count_max} are allowed", lease_count=count, lease_count_max=count_max
        )


def _discard(numbers: list[int], number: int) -> None:
    del numbers[bisect_left(numbers, number)]
