"""Where the pieces of a ``.tensors`` file lie that are kept apart, told by the file's front alone.

For sources that have no file but its pieces: the front, and of each tensor its header
and its data. What the front says of the tensors beside their places is not looked at:
that is done when the pieces are read as a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warmshelf.errors import UnsupportedFormat
from warmshelfd.formats.base import FormatLimits
from warmshelfd.formats.tensorizer_fields import malformed
from warmshelfd.formats.tensorizer_index import END_BYTES, check_place, read_index


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """One tensor: its name as it stands, where header and data begin, and where the data ends."""

    name: bytes
    header_offset: int
    data_offset: int
    end: int


@dataclass(frozen=True, slots=True)
class _Front:
    """The front as if it were a file: what follows is only known to be at least the end."""

    file: str
    data: bytes

    def files(self) -> Mapping[str, int]:
        return {self.file: len(self.data) + END_BYTES}

    def read(self, name: str, offset: int, size: int) -> bytes:  # noqa: ARG002 - there is one file
        return self.data[offset : offset + size]


def tensor_pieces(file: str, front: bytes, limits: FormatLimits) -> list[TensorPiece]:
    """Return every tensor's pieces, in the file's order and without a hole.

    Raises:
        MalformedArtifact: this is no front, goes on behind the index, or asks for more than the limits.
        SourceTruncated: it ends before its index does.
        UnsupportedFormat: it is encrypted, or of another version.
    """
    index = read_index(_Front(file, front), file, limits)
    if index.end_bytes != len(front):
        raise malformed(file, f"has {len(front)} bytes before its first tensor, its index ends at {index.end_bytes}")
    if index.is_encrypted:
        raise UnsupportedFormat(f"{file} is encrypted, which is read from files only", file=file)
    pieces: list[TensorPiece] = []
    end = len(front)
    for row in index.rows():
        check_place(index, row.name.decode(errors="backslashreplace")[: limits.name_bytes_max], row, end)
        end = row.data_offset + row.size_bytes
        pieces.append(TensorPiece(row.name, row.header_offset, row.data_offset, end))
    return pieces
