"""How many bytes of chunks may be under way at once, over all streams.

A stream that stalls keeps its one chunk. So that stalled streams can never starve
the others, each stream has a small chunk of its own that it may always send;
larger ones come from what is left of a common bound.
"""

from __future__ import annotations

from collections import Counter

from warmshelf.errors import TooManyStreams


class FlightBudget:
    """The bound. Event loop only.

    At most ``bytes_max + streams_max * small_chunk_bytes`` are under way.
    """

    def __init__(
        self,
        *,
        bytes_max: int,
        chunk_bytes: int,
        small_chunk_bytes: int,
        streams_max: int,
        streams_per_session_max: int,
    ) -> None:
        self.chunk_bytes = chunk_bytes
        self.small_chunk_bytes = small_chunk_bytes
        self._free_bytes = bytes_max
        self._streams_max = streams_max
        self._streams_per_session_max = streams_per_session_max
        self._streams = 0
        self._streams_of: Counter[str] = Counter()  # by session, of those that have any

    def __repr__(self) -> str:
        return f"<FlightBudget {self._streams} streams, {self._free_bytes} bytes free>"

    def open_stream(self, session_id: str) -> None:
        """Count a stream of a session in.

        Raises:
            TooManyStreams: as many are open as may be, of all sessions or of this one.
        """
        mine = self._streams_of.get(session_id, 0)
        if mine >= self._streams_per_session_max:
            raise TooManyStreams(f"{mine} reads of this session are streaming", stream_count=mine)
        if self._streams >= self._streams_max:
            raise TooManyStreams(f"{self._streams} reads are streaming", stream_count=self._streams)
        self._streams += 1
        self._streams_of[session_id] = mine + 1

    def close_stream(self, session_id: str) -> None:
        """Count a stream out."""
        self._streams -= 1
        self._streams_of[session_id] -= 1
        if not self._streams_of[session_id]:
            del self._streams_of[session_id]

    def take(self) -> int:
        """Return how large the stream's next chunk may be; ``give`` it back when it is sent."""
        if self._free_bytes >= self.chunk_bytes:
            self._free_bytes -= self.chunk_bytes
            return self.chunk_bytes
        return self.small_chunk_bytes

    def give(self, size: int) -> None:
        """Return what ``take`` gave."""
        if size != self.small_chunk_bytes:
            self._free_bytes += size


def next_end(offset: int, end: int, step: int) -> int:
    """Return where a chunk from ``offset`` ends: at the next multiple of its size, so that blocks match."""
    return min(end, (offset // step + 1) * step)
