"""How long remote servers may take, and how much is asked of them at once."""

from __future__ import annotations

from dataclasses import dataclass

GAP_BYTES = 64 << 10
"""What lies between two wanted ranges is read along up to here: a round trip to a store takes longer."""


@dataclass(frozen=True, slots=True)
class RemoteLimits:
    """What every remote source keeps to.

    Attributes:
        connect_seconds: to take a connection.
        stall_seconds: between two pieces of an answer.
        retry_seconds: from the first try of a request to the last.
        reads_at_once: parallel reads of one load.
    """

    connect_seconds: float = 5.0
    stall_seconds: float = 15.0
    retry_seconds: float = 30.0
    reads_at_once: int = 8

    @property
    def request_seconds(self) -> float:
        """How long one try of a request may take: it is for some MiB, or for a page of a listing."""
        return 4 * self.stall_seconds
