"""The pushes that the spool has, and what may be written to them.

Event loop only. Decides and counts; touches no spool, and knows no artifact.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from warmshelf.errors import (
    ChunkCorrupt,
    InvalidRequest,
    LargerThanSpool,
    OffsetOutOfRange,
    PushNotFound,
    SpoolFull,
    TooManyPushes,
)
from warmshelfd.spool.base import Announcement, check_push_id

SHA256_BYTES = 32


@dataclass(frozen=True, slots=True)
class PushLimits:
    """What pushes may take; the settings of these names have the reasons."""

    spool_bytes_max: int | None
    pushes_max: int
    push_files_max: int
    push_chunk_bytes: int
    push_idle_seconds: float
    spool_orphan_seconds: float


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a file, as it came."""

    file_index: int
    offset_bytes: int
    crc32c: int
    data: bytes


@dataclass(slots=True, eq=False)
class Push:
    """A push that the spool has. Who changes it, or its files, holds ``lock``.

    Attributes:
        push_id: its number, a secret of its sender until it is kept.
        announcement: what is pushed, and what for.
        received: how many bytes of each file there are.
        is_kept: whether the spool keeps it for good; else it is unfinished.
        is_dropped: whether it is given up; who waited for ``lock`` must look.
        last_byte: when it last got one, by the monotonic clock.
        writer: the task that has it to itself now.
        is_taken_over: that task is to end for another one's sake.
    """

    push_id: str
    announcement: Announcement
    received: list[int]
    is_kept: bool = False
    is_dropped: bool = False
    last_byte: float = field(default_factory=time.monotonic)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    writer: asyncio.Task[object] | None = None
    is_taken_over: bool = False

    @property
    def missing_bytes(self) -> int:
        """Bytes that are still to come."""
        return self.announcement.size_bytes - sum(self.received)

    def took(self, chunk: Chunk) -> None:
        """Count a chunk that was written."""
        self.received[chunk.file_index] += len(chunk.data)
        self.last_byte = time.monotonic()


class PushBook:
    """All pushes by their number, and how much they take."""

    def __init__(self, limits: PushLimits, *, counts_kept: bool = True) -> None:
        """``counts_kept``: whether pushes that are kept take the same room as unfinished ones."""
        self._limits = limits
        self._counts_kept = counts_kept
        self._pushes: dict[str, Push] = {}
        self._used_bytes = 0  # announced, of all that count
        self._unfinished: set[str] = set()
        self.bytes_max = limits.spool_bytes_max or 0

    def __iter__(self) -> Iterator[Push]:
        return iter(list(self._pushes.values()))

    def share_disk(self, free_bytes: int) -> None:
        """Take half of what the disk has, with what is here already, unless the settings say otherwise."""
        self.bytes_max = self._limits.spool_bytes_max or (free_bytes + self._used_bytes) // 2

    def add(self, push: Push) -> None:
        """Count a push in."""
        self._pushes[push.push_id] = push
        self._used_bytes += self._counted_bytes(push)
        if not push.is_kept:
            self._unfinished.add(push.push_id)

    def drop(self, push: Push) -> None:
        """Count a push out. Idempotent."""
        push.is_dropped = True
        if self._pushes.get(push.push_id) is push:
            del self._pushes[push.push_id]
            self._used_bytes -= self._counted_bytes(push)
            self._unfinished.discard(push.push_id)

    def keep(self, push: Push) -> None:
        """Note that the spool keeps a push for good."""
        self._used_bytes -= self._counted_bytes(push)
        push.is_kept = True
        self._used_bytes += self._counted_bytes(push)
        self._unfinished.discard(push.push_id)

    def find(self, push_id: str) -> Push | None:
        """Return a push, if there is one of this number."""
        return self._pushes.get(check_push_id(push_id))

    def get(self, push_id: str) -> Push:
        """Return a push.

        Raises:
            PushNotFound: there is none of this number.
        """
        push = self.find(push_id)
        if push is None:
            raise not_found(push_id)
        return push

    def _counted_bytes(self, push: Push) -> int:
        return push.announcement.size_bytes if self._counts_kept or not push.is_kept else 0

    def missing_bytes(self) -> int:
        """Return how many bytes are still to come, of all pushes."""
        return sum(self._pushes[push_id].missing_bytes for push_id in self._unfinished)

    def check_room(self, size: int) -> None:
        """Refuse one push more if there is no room for it.

        Raises:
            TooManyPushes: as many are unfinished as may be.
            LargerThanSpool, SpoolFull: its bytes are too many, for good or now.
        """
        unfinished, used = len(self._unfinished), self._used_bytes
        if unfinished >= self._limits.pushes_max:
            raise TooManyPushes(f"{unfinished} pushes are unfinished", push_count=unfinished)
        if used + size > self.bytes_max:
            raise (LargerThanSpool if size > self.bytes_max else SpoolFull)(
                f"{size} bytes are to be pushed, {used} of the spool's {self.bytes_max} are in use",
                needed_bytes=size,
                used_bytes=used,
                spool_bytes_max=self.bytes_max,
            )


def check_chunk(push: Push, chunk: Chunk, bytes_max: int) -> None:
    """Check that a chunk may be written where it says; its CRC is for the thread that writes it.

    Raises:
        InvalidRequest: there is no such file, or the chunk is empty or too long.
        OffsetOutOfRange: it reaches beyond its file.
        ChunkCorrupt: it is not the next one.
    """
    files = push.announcement.files
    if push.is_kept or not 0 <= chunk.file_index < len(files):
        raise InvalidRequest(f"there is no file {chunk.file_index} to be written", field="file_index")
    offset, size, file_size = chunk.offset_bytes, len(chunk.data), files[chunk.file_index].size_bytes
    if not 0 < size <= bytes_max:
        raise InvalidRequest(f"a chunk has 1 to {bytes_max} bytes, not {size}", size_bytes=size, limit_bytes=bytes_max)
    if not 0 <= offset <= file_size - size:
        raise OffsetOutOfRange(
            f"{size} bytes at {offset} are not within a file of {file_size} bytes",
            offset_bytes=offset,
            size_bytes=file_size,
        )
    expected = push.received[chunk.file_index]
    if offset != expected:
        raise ChunkCorrupt(
            f"a chunk at {offset}, expected at {expected} of file {chunk.file_index}",
            offset_bytes=offset,
            expected_bytes=expected,
        )


def check_whole(push: Push, hashes: Sequence[bytes]) -> None:
    """Check that nothing is missing.

    Raises:
        InvalidRequest: it is.
    """
    missing = push.missing_bytes
    if missing:
        raise InvalidRequest(f"{missing} bytes of the push are missing", missing_bytes=missing)
    if [len(one) for one in hashes] != [SHA256_BYTES] * len(push.announcement.files):
        raise InvalidRequest(f"file_sha256 has not {SHA256_BYTES} bytes for each file", field="file_sha256")


def not_found(push_id: str) -> PushNotFound:
    """Return the error of a call that names no push; of the number, which may be a secret, it has a part."""
    return PushNotFound(f"no push {push_id[:8]}... is under way here; begin anew")
