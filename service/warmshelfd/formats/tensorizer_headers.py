"""Reads what stands before each tensor's data and holds it against the index.

Header and index say the same twice. Only the index has been checked before; a header
that says anything else is refused, so nothing depends on which of them a reader
believes. What a header has more is the hashes.

A header is its own length (8), the number of its module (2), the tensor's kind (1),
counted name (2) and dtype (1), its number of dimensions (1) and each of them, the
counted hashes (2), in an encrypted file how the data are encrypted, and how long the
data is (8). The hashes are their number (1), and for each of them a type (1) and the
counted hash (1). Every writer writes two: CRC32, of type 0, and SHA-256, of type 1;
of encrypted data only the latter.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

from warmshelf.errors import MalformedArtifact
from warmshelfd.domain.extents import TensorEntry
from warmshelfd.formats.base import Boxes, Encryption, Files, FormatLimits, Range, expect
from warmshelfd.formats.tensorizer_boxes import CryptParser
from warmshelfd.formats.tensorizer_fields import Fields, malformed
from warmshelfd.formats.tensorizer_hashes import HashedTensor
from warmshelfd.formats.tensorizer_index import END_BYTES, Index, Row

_WINDOW_BYTES = 256 << 10
"""Longest read. Of the smallest tensors, 2,000 headers are in it."""

_GAP_BYTES = 64 << 10
"""Data of at most this length is read along with the headers around it: cheaper than one more read."""

_OWN = struct.Struct("<2sI32s")
"""What only a header tells: the number of the module, the CRC32 and the SHA-256."""

_MODULE = slice(8, 10)
_NO_CRC32 = bytes(4)


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
            has_crc32 = _has_crc32(self._index, row)
            yield HashedTensor(entry.name, crc32 if has_crc32 else None, sha256, _prefix(row, module, has_crc32))


def read_headers(
    files: Files, index: Index, entries: Sequence[TensorEntry], limits: FormatLimits
) -> tuple[HashedTensors, Encryption | None]:
    """Return the hashes of every entry, in their order, and how the data are encrypted.

    The number of reads is bounded by the file's size and by the number of tensors.

    Raises:
        MalformedArtifact: a header contradicts the index, or the file does not end well.
        UnsupportedFormat: a tensor is encrypted in a way that is not read.
    """
    own = bytearray()
    parser = CryptParser(index.file, limits)
    boxes: list[Boxes] = []
    expect(files, _windows(files, index, entries))
    for group in _groups(zip(entries, index.rows(), strict=True)):
        start = group[0][1].header_offset
        window = files.read(index.file, start, group[-1][1].data_offset - start)
        for entry, row in group:
            header = window[row.header_offset - start : row.data_offset - start]
            record, crypt = _read_header(index, entry.name, row, header)
            own += record
            if index.is_encrypted:
                boxes.append(parser.boxes(entry.name, row.size_bytes, crypt))
    _check_ending(files, index.file)
    encryption = Encryption(parser.box_bytes, boxes, parser.derivation) if index.is_encrypted else None
    return HashedTensors(index, entries, own), encryption


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


def _read_header(index: Index, name: str, row: Row, header: bytes) -> tuple[bytes, bytes]:
    """Return what only the header tells, if the rest is as the index says; and how the data are encrypted."""
    own = b""
    start = 0
    has_crc32 = _has_crc32(index, row)
    for what, field, own_bytes in _described(row, has_crc32):
        end = start + len(field)
        if header[start:end] != field:
            raise _not_as_it_should(index.file, name, what)
        start = end + own_bytes
        own += header[end:start]
    fields = Fields(header[start:], index.file, f"the header of tensor {name!r}")
    crypt = fields.counted(8) if index.is_encrypted else b""
    if fields.take(8) != _data_length(row) or not fields.is_at_end():
        raise _not_as_it_should(index.file, name, "data's length")
    return own if has_crc32 else own[:2] + _NO_CRC32 + own[2:], crypt


def _not_as_it_should(file: str, name: str, what: str) -> MalformedArtifact:
    return malformed(file, f"the header of tensor {name!r} has not the {what} that it should", tensor=name)


def _has_crc32(index: Index, row: Row) -> bool:
    """Say whether there is a CRC32: of encrypted bytes there is a MAC instead."""
    return not (index.is_encrypted and row.size_bytes)


def _prefix(row: Row, module: bytes, has_crc32: bool) -> bytes:
    """Return the header with its hashes zeroed, without what tells how the data are encrypted."""
    described = _described(row, has_crc32)
    prefix = bytearray().join(field + bytes(own_bytes) for _, field, own_bytes in described) + _data_length(row)
    prefix[_MODULE] = module
    return bytes(prefix)


def _described(row: Row, has_crc32: bool) -> Iterator[tuple[str, bytes, int]]:
    """Yield what a header must begin with, piece by piece, and how many bytes of its own follow each."""
    yield "length", row.header_bytes.to_bytes(8, "little"), 2
    yield "kind", row.kind.to_bytes(1, "little"), 0
    yield "name", len(row.name).to_bytes(2, "little") + row.name, 0
    yield "dtype", len(row.dtype).to_bytes(1, "little") + row.dtype, 0
    yield "shape", (len(row.dims) // row.dim_bytes).to_bytes(1, "little") + row.dims, 0
    if has_crc32:
        yield "CRC32", b"\x29\x00\x02\x00\x04", 4
        yield "SHA-256", b"\x01\x20", 32
    else:
        yield "SHA-256", b"\x23\x00\x01\x01\x20", 32


def _data_length(row: Row) -> bytes:
    return row.size_bytes.to_bytes(8, "little")


def _check_ending(files: Files, file: str) -> None:
    if any(files.read(file, files.files()[file] - END_BYTES, END_BYTES)):
        raise malformed(file, f"does not end with {END_BYTES} zeros")
