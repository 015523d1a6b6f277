"""Reads little-endian numbers and counted fields one after the other, and never past the end.

Also says in one voice what is wrong with a ``.tensors`` file. Knows nothing of what
the fields mean.
"""

from __future__ import annotations

from warmshelf.errors import MalformedArtifact, SourceTruncated


class Fields:
    """A place in some bytes of a file, moving forward.

    Every method raises MalformedArtifact, naming the file and the byte, if the bytes
    end before the field does.
    """

    __slots__ = ("_data", "_file", "_what", "at")

    def __init__(self, data: bytes, file: str, what: str) -> None:
        """Start at the first byte of ``data``, which is ``what`` in the file."""
        self._data = data
        self._file = file
        self._what = what
        self.at = 0  # the next byte to read; a reader belongs to one thread

    def take(self, size: int) -> bytes:
        """Read so many bytes."""
        end = self.at + size
        if end > len(self._data):
            raise malformed(
                self._file,
                f"{self._what} has {len(self._data)} bytes, its field at byte {self.at} would end at byte {end}",
                size_bytes=len(self._data),
                expected_bytes=end,
            )
        field = self._data[self.at : end]
        self.at = end
        return field

    def number(self, size: int) -> int:
        """Read a natural number of so many bytes."""
        return int.from_bytes(self.take(size), "little")

    def counted(self, size: int) -> bytes:
        """Read a number of so many bytes, then as many bytes as it says."""
        return self.take(self.number(size))

    def is_at_end(self) -> bool:
        """Say whether all has been read."""
        return self.at == len(self._data)

    def only_zeros_follow(self) -> bool:
        """Say whether all the rest is zeros."""
        return self._data.count(0, self.at) == len(self._data) - self.at


def malformed(file: str, what: str, **details: str | int) -> MalformedArtifact:
    """Return the error that names the file and what is wrong with it."""
    return MalformedArtifact(f"{file}: {what}", file=file, **details)


def truncated(file: str, size: int, expected: int) -> SourceTruncated:
    """Return the error for a file that is shorter than it says, with both sizes."""
    return SourceTruncated(
        f"{file}: has {size} bytes, needs at least {expected}", file=file, size_bytes=size, expected_bytes=expected
    )
