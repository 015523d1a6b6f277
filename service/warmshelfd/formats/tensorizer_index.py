"""Reads the front of one ``.tensors`` file: which tensors it holds, and where.

A file is, with every number little-endian:

- 73 bytes: the magic ``|TZR|``; the version (4); flags (32); two sizes (8 each), which
  no reader uses; how many tensors there are (8); how long the index is (8);
- the index: a row for each tensor, then zeros (writers reserve 256 KiB, always);
- for each tensor, in the index's order and without a hole, its header and its data;
- eight zeros, where another header's length would stand.

A row of the index is a counted name (2), a kind (1), a counted dtype (1), the number
of dimensions (1) and each of them (4), and where header (8) and data (8) begin and how
long the data is (8). In version 5 a row begins with its own version (4), and in rows
of version 5 dimensions have 8 bytes.

The versions that tensorizer 2.0 to 2.12 write, whichever a file needs: 1; 2 for dtypes
that numpy has not; 3 for encryption, since 2.7; 4 for tensors without bytes, since 2.8;
5 for dimensions beyond 32 bits, since 2.12. Version 3 is always encrypted. From 4 on
the flags may say so, and in 5 they always say that rows have versions. Encrypted is
only the tensors' data.

Refused besides what is wrong: tensors without bytes. Reads no header of a tensor and
no data.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from warmshelf.dtypes import Dtype, size_bytes
from warmshelf.errors import MalformedArtifact, UnsupportedDtype, UnsupportedFormat
from warmshelfd import stopping
from warmshelfd.domain.extents import TensorEntry
from warmshelfd.formats.base import Files, FormatLimits
from warmshelfd.formats.pickled import refuse_pickled
from warmshelfd.formats.tensorizer_fields import Fields, malformed, truncated
from warmshelfd.formats.tensorizer_names import DTYPE_BY_SPELLING, is_path, shown_dtype, tensor_name

_MAGIC = b"|TZR|"
_FRONT = struct.Struct("<5sI32s16xQQ")

END_BYTES = 8
"""Zeros that end the file."""

_ENCRYPTED, _ROWS_HAVE_VERSIONS = 1, 2
_ENCRYPTED_VERSION = 3
_FLAGS_SINCE_VERSION = 4
_FLAGS = {1: 0, 2: 0, 3: 0, 4: 0, 5: _ROWS_HAVE_VERSIONS}
"""The flags of each version, but "encrypted". Before version 4 their place is for a hash, and zero."""

_DIM_BYTES = {1: 4, 5: 8}
"""How long dimensions are, by the version of their row."""

_STATE_DICT = 2
_KINDS = (0, 1, _STATE_DICT)
"""A parameter or a buffer of a module, or a value of a state dict; only that may have a path for a name."""

_HEADER_BYTES_MIN = 8 + 2 + 1 + 2 + 1 + 1 + 2 + 41 + 8
"""A header's length, module, kind, counts of name, dtype, shape and hashes, the hashes, the data's length."""

_CRC32_BYTES = 6
"""What is left out of the hashes where the data are encrypted."""

_CRYPT_BYTES_MIN = 8 + 2
"""How long that is which says how the data are encrypted: its length and the number of its parts."""

_PLACE = struct.Struct("<QQQ")

_SHARED_SHAPES_MAX = 1024
"""Models have fewer; where every tensor has a shape of its own, remembering them takes more than it saves."""


@dataclass(frozen=True, slots=True)
class Row:
    """What the index says of one tensor, as it stands there."""

    name: bytes
    kind: int
    dtype: bytes
    dim_bytes: int
    dims: bytes
    header_offset: int
    data_offset: int
    size_bytes: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions."""
        step = self.dim_bytes
        return tuple(int.from_bytes(self.dims[i : i + step], "little") for i in range(0, len(self.dims), step))

    @property
    def header_bytes(self) -> int:
        """How long the tensor's header is."""
        return self.data_offset - self.header_offset

    @property
    def plain_header_bytes(self) -> int:
        """How long it is where the data are not encrypted."""
        return _HEADER_BYTES_MIN + len(self.name) + len(self.dtype) + len(self.dims)


@dataclass(frozen=True, slots=True)
class Index:
    """The index of one file, of which only the length has been checked."""

    file: str
    tensor_count: int
    is_encrypted: bool
    rows_have_versions: bool
    data: bytes

    @property
    def end_bytes(self) -> int:
        """Where it ends in the file, and the first tensor begins."""
        return _FRONT.size + len(self.data)

    def rows(self) -> Iterator[Row]:
        """Yield the rows anew, with nothing kept: there may be a million.

        Raises:
            MalformedArtifact: there are fewer than there are tensors, or more.
        """
        fields = Fields(self.data, self.file, "its index")
        for _ in range(self.tensor_count):
            stopping.check()
            yield self._row(fields)
        if not fields.only_zeros_follow():
            raise malformed(
                self.file, f"its index goes on after its {self.tensor_count} tensors", tensor_count=self.tensor_count
            )

    def _row(self, fields: Fields) -> Row:
        version = fields.number(4) if self.rows_have_versions else 1
        if version not in _DIM_BYTES:
            raise malformed(self.file, f"its index has a row of version {version} before byte {fields.at}")
        dim_bytes = _DIM_BYTES[version]
        name, kind, dtype = fields.counted(2), fields.number(1), fields.counted(1)
        dims = fields.take(fields.number(1) * dim_bytes)
        return Row(name, kind, dtype, dim_bytes, dims, *_PLACE.unpack(fields.take(_PLACE.size)))


def read_index(files: Files, file: str, limits: FormatLimits) -> Index:
    """Read the front of a file and its index, which the file and the limits have room for.

    Raises:
        MalformedArtifact: it is no such file, or asks for more than the limits.
        SourceTruncated: it is shorter than that.
        UnsupportedFormat: it is of another version, or a pickle.
    """
    size = files.files()[file]
    head = files.read(file, 0, min(size, _FRONT.size))
    if not _MAGIC.startswith(head[: len(_MAGIC)]):
        refuse_pickled(file, head)
        raise malformed(file, "does not begin as a .tensors file does")
    if size < _FRONT.size:
        raise truncated(file, size, _FRONT.size)
    _, version, flag_bytes, tensor_count, index_bytes = _FRONT.unpack(head)
    flags = int.from_bytes(flag_bytes, "little")
    _check_version(file, version, flags)
    if tensor_count > limits.tensor_count_max:
        raise malformed(
            file,
            f"says that it has {tensor_count} tensors, at most {limits.tensor_count_max} are allowed",
            tensor_count=tensor_count,
        )
    if index_bytes > limits.header_bytes_max:
        raise malformed(
            file,
            f"says that its index has {index_bytes} bytes, at most {limits.header_bytes_max} are allowed",
            index_bytes=index_bytes,
        )
    if size < _FRONT.size + index_bytes + END_BYTES:
        raise truncated(file, size, _FRONT.size + index_bytes + END_BYTES)
    is_encrypted = version == _ENCRYPTED_VERSION or bool(flags & _ENCRYPTED)
    data = files.read(file, _FRONT.size, index_bytes)
    return Index(file, tensor_count, is_encrypted, bool(flags & _ROWS_HAVE_VERSIONS), data)


def _check_version(file: str, version: int, flags: int) -> None:
    if version not in _FLAGS:
        known = ", ".join(map(str, _FLAGS))
        raise UnsupportedFormat(f"{file} is a .tensors file of version {version}; read are {known}", file=file)
    own = flags & ~_ENCRYPTED if version >= _FLAGS_SINCE_VERSION else flags
    if own != _FLAGS[version]:
        raise malformed(file, f"has flags {flags:#x}, in version {version} they are {_FLAGS[version]:#x}")


def check_rows(index: Index, file_size: int, limits: FormatLimits) -> list[TensorEntry]:
    """Return the tensors in the file's order, if each is sound and together they are the whole file.

    Raises:
        MalformedArtifact: a row breaks the format or a limit, or two contradict each other.
        SourceTruncated: the file ends before the tensors do.
        UnsupportedDtype: a tensor has a dtype that is not known.
        UnsupportedFormat: a tensor has a shape but no bytes.
    """
    entries: list[TensorEntry] = []
    names: set[str] = set()
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}  # one object per shape, while they are few: most share theirs
    end, headers_bytes = index.end_bytes, 0
    for row in index.rows():
        name = _name(index.file, row, len(entries), limits)
        if name in names:
            raise malformed(index.file, f"has two tensors {name!r}", tensor=name)
        names.add(name)
        dtype = _dtype(index.file, name, row)
        shape = _shape(index.file, name, dtype, row, limits)
        _check_size(index.file, name, dtype, shape, row.size_bytes)
        check_place(index, name, row, end)
        headers_bytes += row.header_bytes
        if index.is_encrypted and headers_bytes > limits.header_bytes_max:
            raise _headers_too_long(index.file, headers_bytes, limits.header_bytes_max)
        shape = shapes.get(shape, shape)
        if len(shapes) < _SHARED_SHAPES_MAX:
            shapes[shape] = shape
        entries.append(TensorEntry(name, dtype.name, shape, 0, row.data_offset, row.size_bytes))
        end = row.data_offset + row.size_bytes
    _check_end(index.file, file_size, end + END_BYTES)
    return entries


def _name(file: str, row: Row, number: int, limits: FormatLimits) -> str:
    try:
        name = tensor_name(row.name, limits.name_bytes_max)
    except ValueError as error:
        raise malformed(file, f"tensor number {number} of its index {error}") from error
    if row.kind not in _KINDS or (is_path(row.name) and row.kind != _STATE_DICT):
        raise malformed(file, f"tensor {name!r} is of kind {row.kind}, which it cannot be", tensor=name)
    return name


def _dtype(file: str, name: str, row: Row) -> Dtype:
    dtype = DTYPE_BY_SPELLING.get(row.dtype)
    if dtype is None:
        shown = shown_dtype(row.dtype)
        raise UnsupportedDtype(
            f"{file}: tensor {name!r} has dtype {shown!r}, which is not known", file=file, tensor=name, dtype=shown
        )
    return dtype


def _shape(file: str, name: str, dtype: Dtype, row: Row, limits: FormatLimits) -> tuple[int, ...]:
    """Return the shape in elements, of which torch's packed dtypes have several to one of theirs."""
    shape = row.shape
    if shape and dtype.packed > 1:
        shape = (*shape[:-1], shape[-1] * dtype.packed)
    count = 1
    for dim in shape:
        count *= dim or 1
    if len(shape) > limits.rank_max or count > limits.element_count_max:
        raise malformed(
            file,
            f"tensor {name!r} has no shape of at most {limits.rank_max} dimensions "
            f"and {limits.element_count_max} elements",
            tensor=name,
        )
    return shape


def _check_size(file: str, name: str, dtype: Dtype, shape: tuple[int, ...], size: int) -> None:
    try:
        expected = size_bytes(dtype, shape)
    except ValueError as error:
        raise malformed(file, f"tensor {name!r}: {error}") from error
    if size == 0 < expected:
        raise UnsupportedFormat(
            f"{file}: tensor {name!r} has a shape of {expected} bytes, but none of them (a meta tensor)",
            file=file,
            tensor=name,
            expected_bytes=expected,
        )
    if size != expected:
        raise malformed(
            file,
            f"tensor {name!r} of {dtype.name} {list(shape)} takes {expected} bytes, the index says {size}",
            tensor=name,
            expected_bytes=expected,
            size_bytes=size,
        )


def check_place(index: Index, name: str, row: Row, end: int) -> None:
    """Check that the header begins where the tensor before ended, and the data where the header ends.

    How long an encrypted tensor's header is only that header tells; the index tells that it is long enough.
    """
    data = end + row.plain_header_bytes
    if index.is_encrypted:
        data = max(row.data_offset, data + _CRYPT_BYTES_MIN - (_CRC32_BYTES if row.size_bytes else 0))
    for what, offset, expected in (("header", row.header_offset, end), ("data", row.data_offset, data)):
        if offset != expected:
            raise malformed(
                index.file,
                f"the {what} of tensor {name!r} would begin at byte {offset}, what is before it ends at {expected}",
                tensor=name,
                offset_bytes=offset,
                expected_bytes=expected,
            )


def _headers_too_long(file: str, size: int, size_max: int) -> MalformedArtifact:
    return malformed(
        file,
        f"has headers of {size} bytes, at most {size_max} are allowed",
        headers_bytes=size,
        header_bytes_max=size_max,
    )


def _check_end(file: str, file_size: int, end: int) -> None:
    if file_size < end:
        raise truncated(file, file_size, end)
    if file_size > end:
        raise malformed(
            file, f"has {file_size} bytes, its tensors end at byte {end}", size_bytes=file_size, expected_bytes=end
        )
