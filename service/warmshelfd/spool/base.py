"""What a spool can do: take the files of a push piece by piece, and keep them for good.

A spool knows pushes by their number and files by their place in an announcement. It does
not know who pushes, how much room there may be, or which pushes are still wanted. All of
it is blocking; of one push one thread at a time calls it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from warmshelf.errors import InvalidRequest

NAME_BYTES_MAX = 255
"""Longest name of a file; what Linux file systems take."""

_PUSH_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class PushedFile:
    """One file of a push."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a client says it will push, and what for."""

    artifact_id: str
    base_id: str
    files: tuple[PushedFile, ...]
    replace: bool = False
    keep_resident: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Held:
    """A push that the spool has: unfinished, or kept."""

    push_id: str
    announcement: Announcement
    received_bytes: tuple[int, ...]
    is_kept: bool


class Spool(ABC):
    """Keeps the files of pushes.

    Every method may raise SpoolUnavailable, or SpoolFull where it writes.
    """

    is_remote = False
    """Whether what is kept lies elsewhere than what is unfinished, so that it takes no room here and may be slow."""

    @abstractmethod
    def open(self) -> None:
        """Make the spool ready for this daemon alone.

        Raises:
            DaemonInUse: another daemon has it.
        """

    @abstractmethod
    def held(self) -> Iterator[Held]:
        """Return what a daemon before this one left, and clean up what is of no use."""

    @abstractmethod
    def free_bytes(self) -> int:
        """Return how many bytes more could be written now."""

    @abstractmethod
    def begin(self, push_id: str, announcement: Announcement) -> None:
        """Begin a push: its files are there, and empty."""

    @abstractmethod
    def append(self, push_id: str, file: PushedFile, offset: int, data: bytes) -> None:
        """Write data at the end of a file.

        Raises:
            ChunkCorrupt: the file does not end at ``offset``.
        """

    @abstractmethod
    def hash(self, push_id: str, files: Sequence[PushedFile], cancelled: Callable[[], bool]) -> list[bytes]:
        """Make the files durable, read them again, and return the SHA-256 of each."""

    def store(  # noqa: B027 - for those that keep files elsewhere
        self, push_id: str, files: Sequence[PushedFile], hashes: Sequence[bytes], cancelled: Callable[[], bool]
    ) -> None:
        """Bring proven files to where they will be kept, durably, and see that they are the same there."""

    @abstractmethod
    def keep(self, push_id: str) -> str:
        """Make the push one that is kept, durably and all at once; return the URI of its files as a source."""

    @abstractmethod
    def uri(self, push_id: str) -> str:
        """Return the URI that a kept push has as a source."""

    @abstractmethod
    def push_of(self, uri: str) -> str:
        """Return the number of the push that has this URI, whoever pushed it; "" if none has."""

    @abstractmethod
    def owns(self, uri: str) -> bool:
        """Say whether what a canonical URI names belongs to the spool, so that nobody may register it."""

    @abstractmethod
    def orphan_seconds(self, push_id: str) -> float:
        """Return since when this has been asked of a kept push that no artifact uses; also over restarts."""

    @abstractmethod
    def discard(self, push_id: str) -> None:
        """Give up a push and its bytes, unfinished or kept. Idempotent."""

    def stop(self) -> None:  # noqa: B027 - what is never waited for long need not be stopped
        """Have ``store`` and ``discard`` that wait for a server end soon with LoadCancelled. For any thread."""

    @abstractmethod
    def close(self) -> None:
        """Let another daemon have it. Idempotent."""


def check_push_id(push_id: str) -> str:
    """Return the number of a push unchanged if it is one.

    Raises:
        InvalidRequest: it is not 32 lower-case hexadecimal digits.
    """
    if not is_push_id(push_id):
        raise InvalidRequest("push_id is not 32 lower-case hexadecimal digits", field="push_id")
    return push_id


def is_push_id(text: str) -> bool:
    """Say whether a text is the number of a push."""
    return _PUSH_ID.fullmatch(text) is not None


def check_files(files: Sequence[PushedFile], count_max: int) -> None:
    """Check names and sizes before anything is made of them.

    Raises:
        InvalidRequest: there are none, too many, two of one name, or one that is no file of an artifact.
    """
    if not 0 < len(files) <= count_max:
        raise InvalidRequest(
            f"{len(files)} files are announced, from 1 to {count_max} are allowed", file_count=len(files)
        )
    if len({file.name for file in files}) < len(files):
        raise InvalidRequest("two files have the same name", field="files")
    for file in files:
        why = _name_fault(file.name) or ("has a negative size" if file.size_bytes < 0 else "")
        if why:
            raise InvalidRequest(f"file {file.name[:64]!a} {why}", field="files")


def _name_fault(name: str) -> str:
    if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
        return f"has no name of 1 to {NAME_BYTES_MAX} bytes"
    if name.startswith("."):
        return "begins with a dot"
    if "/" in name or not name.isprintable():
        return "has a name that is not one path part of printable characters"
    return ""
