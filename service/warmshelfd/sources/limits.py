"""How long remote sources may take, and how often they are tried."""

from __future__ import annotations

from dataclasses import dataclass

GAP_BYTES = 64 << 10
"""What lies between two wanted ranges is read along up to here: a round trip to a store takes longer."""


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """How often and for how long."""

    attempts_max: int = 8
    """Most tries; with waits that double they span some 10 s, in which a server restarts."""
    total_seconds: float = 60.0
    """No try begins later than this after the first: callers would rather know."""
    wait_first_seconds: float = 0.1
    """The first wait is at most this; each further one at most twice as long as the one before."""
    wait_max_seconds: float = 10.0
    """Longest wait. A server that asks for a longer one is not asked again."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """How long a server may take."""

    connect_seconds: float = 5.0
    """To accept a connection, for each of its addresses; from the far side of the world it takes 0.3 s."""
    answer_seconds: float = 15.0
    """From a request to the head of its answer, the TLS handshake included."""
    stall_seconds: float = 30.0
    """Longest silence between two parts of an answer."""
    bytes_per_second_min: int = 64 << 10
    """What an answer must bring on average, or one that drips would hold a load for days."""
    retry: RetryLimits = RetryLimits()

    def seconds_for(self, size_bytes: int) -> float:
        """Return the longest that a request for so many bytes may take in all."""
        return self.connect_seconds + self.answer_seconds + size_bytes / self.bytes_per_second_min
