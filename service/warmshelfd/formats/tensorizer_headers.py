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

import struct
from collections.abc import Iterable, Iterator, Sequence

from warmshelfd.domain.extents import TensorEntry
from warmshelfd.formats.base import Files, Range, expect
from warmshelfd.formats.tensorizer_fields import malformed
from warmshelfd.formats.tensorizer_hashes import HashedTensor
from warmshelfd.formats.tensorizer_index import END_BYTES, Index, Row

_WINDOW_BYTES = 256 << 10
"""Longest read. Of the smallest tensors, 2,000 headers are in it."""

_GAP_BYTES = 64 << 10
"""Data of at most this length is read along with the headers around it: cheaper than one more read."""

_OWN = struct.Struct("<2sI32s")
"""What only a header tells: the number of the module, the CRC32 and the SHA-256."""

_MODULE = slice(8, 10)


class HashedTensors:
    """The hashes of a file's tensors, one after the other.

    Made anew by each iteration, since a hundred thousand tensors would take more
    memory for objects than for bytes.
    """

    def __init__(self, index: Index, entries: Sequence[TensorEntry], own: bytes | bytearray) -> None:
        """Take what only the headers tell, joined in the order of the entries."""
        self._index = index
        self._entries = entries
        self._own = own

    def __iter__(self) -> Iterator[HashedTensor]:
        own = _OWN.iter_unpack(self._own)
        for entry, row, (module, crc32, sha256) in zip(self._entries, self._index.rows(), own, strict=True):
            yield HashedTensor(entry.name, crc32, sha256, _prefix(row, module))


def read_hashes(files: Files, index: Index, entries: Sequence[TensorEntry]) -> HashedTensors:
    """Return the hashes of every entry, in their order.

    The number of reads is bounded by the file's size and by the number of tensors.

    Raises:
        MalformedArtifact: a header contradicts the index, or the file does not end well.
    """
    own = bytearray()
    expect(files, _windows(files, index, entries))
    for group in _groups(zip(entries, index.rows(), strict=True)):
        start = group[0][1].header_offset
        window = files.read(index.file, start, group[-1][1].data_offset - start)
        for entry, row in group:
            own += _read_header(
                index.file, entry.name, row, window[row.header_offset - start : row.data_offset - start]
            )
    _check_ending(files, index.file)
    return HashedTensors(index, entries, own)


def _windows(files: Files, index: Index, entries: Sequence[TensorEntry]) -> Iterator[Range]:
    """Yield every read that is coming, the file's end among them."""
    for group in _groups(zip(entries, index.rows(), strict=True)):
        start = group[0][1].header_offset
        yield index.file, start, group[-1][1].data_offset - start
    yield index.file, files.files()[index.file] - END_BYTES, END_BYTES


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


def _read_header(file: str, name: str, row: Row, header: bytes) -> bytes:
    """Return what only the header tells, if the rest is as the index says."""
    own = b""
    start = 0
    for what, field, own_bytes in _fields(row):
        end = start + len(field)
        if header[start:end] != field:
            raise malformed(file, f"the header of tensor {name!r} has not the {what} that it should", tensor=name)
        start = end + own_bytes
        own += header[end:start]
    return own


def _prefix(row: Row, module: bytes) -> bytes:
    """Return the header with its hashes zeroed."""
    prefix = bytearray().join(field + bytes(own_bytes) for _, field, own_bytes in _fields(row))
    prefix[_MODULE] = module
    return bytes(prefix)


def _fields(row: Row) -> Iterator[tuple[str, bytes, int]]:
    """Yield what a header must hold, piece by piece, and how many bytes of its own follow each."""
    yield "length", row.header_bytes.to_bytes(8, "little"), 2
    yield "kind", row.kind.to_bytes(1, "little"), 0
    yield "name", len(row.name).to_bytes(2, "little") + row.name, 0
    yield "dtype", len(row.dtype).to_bytes(1, "little") + row.dtype, 0
    yield "shape", (len(row.dims) // row.dim_bytes).to_bytes(1, "little") + row.dims, 0
    yield "CRC32", b"\x29\x00\x02\x00\x04", 4
    yield "SHA-256", b"\x01\x20", 32
    yield "data's length", row.size_bytes.to_bytes(8, "little"), 0


def _check_ending(files: Files, file: str) -> None:
    if any(files.read(file, files.files()[file] - END_BYTES, END_BYTES)):
        raise malformed(file, f"does not end with {END_BYTES} zeros")
