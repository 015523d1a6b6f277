"""Reads what stands before each tensor's data and holds it against the index.

Header and index say the same twice. Only the index has been checked before; a header
that says anything else is refused, so nothing depends on which of them a reader
believes. What a header has more is the hashes.

A header is its own length (8), the number of its module (2), the tensor's kind (1),
counted name (2) and dtype (1), its number of dimensions (1) and each of them, the
counted hashes (2), and how long the data is (8). The hashes are their number (1), and
for each of them a type (1) and the counted hash (1). Every writer writes two: CRC32,
of type 0, and SHA-256, of type 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from warmshelfd.domain.extents import TensorEntry
from warmshelfd.formats.base import Files
from warmshelfd.formats.tensorizer_fields import malformed
from warmshelfd.formats.tensorizer_hashes import HashedTensors
from warmshelfd.formats.tensorizer_index import END_BYTES, Index, Row

_WINDOW_BYTES = 256 << 10
"""Longest read. Of the smallest tensors, 2,000 headers are in it."""

_GAP_BYTES = 64 << 10
"""Data of at most this length is read along with the headers around it: cheaper than one more read."""


def read_hashes(files: Files, index: Index, entries: Sequence[TensorEntry]) -> HashedTensors:
    """Return the hashes of every entry, in their order.

    The number of reads is bounded by the file's size and by the number of tensors.

    Raises:
        MalformedArtifact: a header contradicts the index, or the file does not end well.
    """
    headers = bytearray()
    for group in _groups(zip(entries, index.rows(), strict=True)):
        start = group[0][1].header_offset
        window = files.read(index.file, start, group[-1][1].data_offset - start)
        for entry, row in group:
            header = window[row.header_offset - start : row.data_offset - start]
            _check_header(index.file, entry.name, row, header)
            headers += header
    _check_ending(files, index.file)
    return HashedTensors(entries, bytes(headers))


_Pair = tuple[TensorEntry, Row]


def _groups(pairs: Iterable[_Pair]) -> Iterator[list[_Pair]]:
    """Group tensors whose headers are brought in by one read."""
    group: list[_Pair] = []
    for pair in pairs:
        row = pair[1]
        if group and (
            row.header_offset - group[-1][1].data_offset > _GAP_BYTES
            or row.data_offset - group[0][1].header_offset > _WINDOW_BYTES
        ):
            yield group
            group = []
        group.append(pair)
    if group:
        yield group


def _check_header(file: str, name: str, row: Row, header: bytes) -> None:
    start = 0
    for what, field in _expected(row):
        end = start + len(field)
        if header[start:end] != field:
            raise malformed(file, f"the header of tensor {name!r} has not the {what} that it should", tensor=name)
        start = end + _UNKNOWN_BYTES.get(what, 0)


def _expected(row: Row) -> Iterator[tuple[str, bytes]]:
    """Yield each field of a header that the index tells or that is the same in all, under what an error calls it."""
    yield "length", row.header_bytes.to_bytes(8, "little")
    yield "kind", row.kind.to_bytes(1, "little")
    yield "name", len(row.name).to_bytes(2, "little") + row.name
    yield "dtype", len(row.dtype).to_bytes(1, "little") + row.dtype
    yield "shape", (len(row.dims) // row.dim_bytes).to_bytes(1, "little") + row.dims
    yield "CRC32", b"\x29\x00\x02\x00\x04"
    yield "SHA-256", b"\x01\x20"
    yield "data's length", row.size_bytes.to_bytes(8, "little")


_UNKNOWN_BYTES = {"length": 2, "CRC32": 4, "SHA-256": 32}
"""What follows a field that nothing here tells: the number of the module, and the hashes."""


def _check_ending(files: Files, file: str) -> None:
    if any(files.read(file, files.files()[file] - END_BYTES, END_BYTES)):
        raise malformed(file, f"does not end with {END_BYTES} zeros")
