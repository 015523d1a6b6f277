"""Reads the header of one safetensors file.

A file is 8 bytes that give the length of the header, little-endian; the header, a
JSON object with one member per tensor; and the data, which the tensors cover
without hole or overlap up to the end of the file.

What is accepted here is a strict subset of what the safetensors library accepts.
Refused besides: two tensors of one name, unknown members, control characters in
names, and counts beyond ``FormatLimits``. Knows nothing of other files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from operator import attrgetter

from warmshelf.dtypes import DTYPES, Dtype, size_bytes
from warmshelf.errors import MalformedArtifact, SourceTruncated, UnsupportedDtype
from warmshelfd.domain.extents import TensorEntry
from warmshelfd.formats.base import Files, FormatLimits
from warmshelfd.formats.pickled import refuse_pickled
from warmshelfd.formats.strict_json import StrictJson

_LENGTH_BYTES = 8
"""The header's length, an unsigned little-endian integer, opens the file."""

_INFO_BYTES_MAX = 1024
"""Longest description of one tensor: eight dimensions and two offsets of 20 digits, and room for spaces."""

_METADATA = "__metadata__"

_DTYPES = {name: row for name, row in DTYPES.items() if name != "C128"}
"""The format has no complex128."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def read_entries(files: Files, name: str, file_index: int, limits: FormatLimits) -> list[TensorEntry]:
    """Return the tensors of one file, sorted by (offset_bytes, name).

    Raises:
        MalformedArtifact: the file breaks the format or a limit.
        SourceTruncated: it is shorter than its header says.
        UnsupportedDtype: a tensor has a dtype that the format does not have.
        UnsupportedFormat: its content is a pickle.
    """
    header_bytes = _header_bytes(files, name, limits)
    data_offset = _LENGTH_BYTES + header_bytes
    reader = StrictJson(files.read(name, _LENGTH_BYTES, header_bytes), name)
    entries: dict[str, TensorEntry] = {}
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}  # one object per shape: most tensors share theirs
    for tensor_name in _tensor_names(reader, name, entries, limits):
        row, shape, begin, size = _tensor(name, tensor_name, reader.flat_object(_INFO_BYTES_MAX), limits)
        shape = shapes.setdefault(shape, shape)
        entries[tensor_name] = TensorEntry(tensor_name, row.name, shape, file_index, data_offset + begin, size)
    reader.end()
    return _covering(files, name, entries.values(), data_offset)


def _header_bytes(files: Files, name: str, limits: FormatLimits) -> int:
    """Return the header's length, which the file and the limits have room for."""
    file_size = files.files()[name]
    head = files.read(name, 0, min(file_size, _LENGTH_BYTES + 1))
    begins_well = head[_LENGTH_BYTES:] == b"{"
    if not begins_well:
        refuse_pickled(name, head)
    if file_size <= _LENGTH_BYTES:
        raise _truncated(name, file_size, _LENGTH_BYTES + 2)
    header_bytes = int.from_bytes(head[:_LENGTH_BYTES], "little")
    if header_bytes > limits.header_bytes_max:
        raise _malformed(
            name,
            f"says that its header has {header_bytes} bytes, at most {limits.header_bytes_max} are allowed",
            header_bytes=header_bytes,
        )
    if not begins_well:
        raise _malformed(name, "has no header: no '{' after the first eight bytes")
    if file_size < _LENGTH_BYTES + header_bytes:
        raise _truncated(name, file_size, _LENGTH_BYTES + header_bytes)
    return header_bytes


def _tensor_names(reader: StrictJson, name: str, entries: Collection[str], limits: FormatLimits) -> Iterator[str]:
    """Yield the name of each tensor, whose description the caller then reads; pass over the metadata."""
    has_metadata = False
    for key in reader.members(entries, limits.name_bytes_max):
        if key != _METADATA:
            if len(entries) == limits.tensor_count_max:
                raise _malformed(
                    name, f"has more than {limits.tensor_count_max} tensors", tensor_count=len(entries) + 1
                )
            yield key
        elif has_metadata:
            raise _malformed(name, f"has {_METADATA} twice")
        else:
            has_metadata = True
            _check_metadata(reader, limits)


def _check_metadata(reader: StrictJson, limits: FormatLimits) -> None:
    start = reader.at
    keys: set[str] = set()
    for key in reader.members(keys, limits.metadata_bytes_max):
        keys.add(key)
        reader.string(limits.metadata_bytes_max)
        reader.check_length(start, limits.metadata_bytes_max)


def _tensor(
    file: str, name: str, info: dict[str, object], limits: FormatLimits
) -> tuple[Dtype, tuple[int, ...], int, int]:
    """Return dtype, shape, offset in the data and size of the tensor that one member describes."""
    if _CONTROL.search(name):
        raise _malformed(file, f"has a tensor whose name holds a control character: {name[:64]!r}")
    if info.keys() != {"dtype", "shape", "data_offsets"}:
        raise _malformed(file, f"tensor {name!r} has other members than dtype, shape and data_offsets", tensor=name)
    row = _dtype(file, name, info["dtype"])
    shape = _naturals(info["shape"])
    if shape is None or len(shape) > limits.rank_max or _count(shape) > limits.element_count_max:
        raise _malformed(
            file,
            f"tensor {name!r} has no shape of at most {limits.rank_max} dimensions "
            f"and {limits.element_count_max} elements",
            tensor=name,
        )
    match _naturals(info["data_offsets"]):
        case (begin, end) if begin <= end:
            _check_size(file, name, row, shape, end - begin)
            return row, shape, begin, end - begin
    raise _malformed(file, f"tensor {name!r} has no range of bytes", tensor=name)


def _dtype(file: str, name: str, dtype: object) -> Dtype:
    row = _DTYPES.get(dtype) if isinstance(dtype, str) else None
    if row is None:
        shown = str(dtype)[:32]
        raise UnsupportedDtype(
            f"{file}: tensor {name!r} has dtype {shown!r}, which safetensors does not have",
            file=file,
            tensor=name,
            dtype=shown,
        )
    return row


def _naturals(value: object) -> tuple[int, ...] | None:
    """Return the list as a tuple if it is one of natural numbers, as ``flat_object`` reads them."""
    if isinstance(value, list) and {*map(type, value)} <= {int}:  # True is an int too
        return tuple(value)
    return None


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for dim in shape:
        count *= dim or 1
    return count


def _check_size(file: str, name: str, row: Dtype, shape: tuple[int, ...], size: int) -> None:
    try:
        expected = size_bytes(row, shape)
    except ValueError as error:
        raise _malformed(file, f"tensor {name!r}: {error}") from error
    if expected != size:
        raise _malformed(
            file,
            f"tensor {name!r} of {row.name} {list(shape)} takes {expected} bytes, its range has {size}",
            tensor=name,
            expected_bytes=expected,
            size_bytes=size,
        )


def _covering(files: Files, name: str, entries: Iterable[TensorEntry], data_offset: int) -> list[TensorEntry]:
    """Return the tensors sorted by (offset_bytes, name), if they cover the data without hole or overlap."""
    # Sorted by one key after the other: a tuple of keys for each of a million tensors takes memory.
    ordered = sorted(entries, key=attrgetter("size_bytes"))
    ordered.sort(key=attrgetter("offset_bytes"))
    end = data_offset
    for entry in ordered:
        if entry.offset_bytes != end:
            kind = "overlaps another" if entry.offset_bytes < end else "lies behind a hole"
            raise _malformed(name, f"tensor {entry.name!r} {kind}", tensor=entry.name)
        end += entry.size_bytes
    _check_end(name, files.files()[name], end)
    ordered.sort(key=attrgetter("name"))
    ordered.sort(key=attrgetter("offset_bytes"))
    return ordered


def _check_end(name: str, file_size: int, end: int) -> None:
    if file_size < end:
        raise _truncated(name, file_size, end)
    if file_size > end:
        raise _malformed(
            name, f"has {file_size} bytes, its tensors end at byte {end}", size_bytes=file_size, expected_bytes=end
        )


def _truncated(name: str, file_size: int, expected: int) -> SourceTruncated:
    return SourceTruncated(
        f"{name}: has {file_size} bytes, needs at least {expected}",
        file=name,
        size_bytes=file_size,
        expected_bytes=expected,
    )


def _malformed(file: str, what: str, **details: str | int) -> MalformedArtifact:
    return MalformedArtifact(f"{file}: {what}", file=file, **details)
