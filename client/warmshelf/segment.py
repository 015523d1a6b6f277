"""The first page of a segment, which says where everything else in it lies.

Both sides read it: a client before it trusts a mapped file or a streamed image,
the daemon when it adopts. A segment is, in this order:

====================  =========================================================
header                4096 bytes, this module
data                  the tensors, from ``data`` on
layout                a ``warmshelf.v1.Layout`` with generation 0
blocks                one CRC32C of 4 bytes, little-endian, per block of the file
                      that touches the data; block i is the part of
                      [i, i + 1) * BLOCK_BYTES that lies inside the data
manifest              a ``warmshelf.v1.Manifest``
padding               zeros up to the arena's page size
====================  =========================================================

Each of the last three has its own CRC32C in the header, and the header one of
its own. All integers are little-endian.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

import crc32c

from warmshelf.errors import FormatTooNew, SegmentCorrupt

MAGIC = b"WARMSHLF"
FORMAT_VERSION = 1
HEADER_BYTES = 4096
BLOCK_BYTES = 1 << 20

_HEAD = struct.Struct("<8sII32sQ")  # magic, version, header bytes, segment id, file size
_SECTION = struct.Struct("<QQII")  # offset, size, crc32c, zero
_CRC = struct.Struct("<I")
_BODY_BYTES = _HEAD.size + 4 * _SECTION.size
_SEGMENT_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Section:
    """A range of the segment and its CRC32C (0 for the data, whose blocks have theirs)."""

    offset: int
    size: int
    crc: int = 0

    @property
    def end(self) -> int:
        """First byte after the section."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What the first page says."""

    segment_id: str
    size_bytes: int
    data: Section
    layout: Section
    blocks: Section
    manifest: Section

    @property
    def content_size_bytes(self) -> int:
        """Bytes up to the end of the manifest; the rest is padding."""
        return self.manifest.end


def is_segment_id(text: str) -> bool:
    """Say whether the text is a segment's name: 32 lower-case hexadecimal digits."""
    return _SEGMENT_ID.fullmatch(text) is not None


def block_count(data: Section) -> int:
    """Return how many blocks of the file touch the data."""
    if data.size == 0:
        return 0
    return (data.end - 1) // BLOCK_BYTES - data.offset // BLOCK_BYTES + 1


def block_range(data: Section, index: int) -> tuple[int, int]:
    """Return the half-open range of the file that the index-th stored CRC covers."""
    start = (data.offset // BLOCK_BYTES + index) * BLOCK_BYTES
    return max(start, data.offset), min(start + BLOCK_BYTES, data.end)


def pack_header(header: SegmentHeader) -> bytes:
    """Return the first page of a segment."""
    body = _HEAD.pack(MAGIC, FORMAT_VERSION, HEADER_BYTES, header.segment_id.encode(), header.size_bytes)
    for section in (header.data, header.layout, header.blocks, header.manifest):
        body += _SECTION.pack(section.offset, section.size, section.crc, 0)
    return (body + _CRC.pack(crc32c.crc32c(body))).ljust(HEADER_BYTES, b"\0")


def parse_header(page: memoryview | bytes, file_size: int) -> SegmentHeader:
    """Return what the first page of a segment says.

    Args:
        page: at least the first 4096 bytes of the file.
        file_size: the file's length, or what of it is at hand.

    Raises:
        FormatTooNew: it was written by a newer release.
        SegmentCorrupt: it is not a segment, or contradicts itself.
    """
    if len(page) < HEADER_BYTES or bytes(page[:8]) != MAGIC:
        raise SegmentCorrupt(f"not a segment: no header in {len(page)} bytes")
    _, version, header_bytes, raw_id, size = _HEAD.unpack_from(page)
    if version > FORMAT_VERSION:
        raise FormatTooNew(f"segment format {version}, this side reads up to {FORMAT_VERSION}", version_number=version)
    if _CRC.unpack_from(page, _BODY_BYTES)[0] != crc32c.crc32c(bytes(page[:_BODY_BYTES])):
        raise SegmentCorrupt("the segment's header has another CRC than stored")
    sections = [Section(*_SECTION.unpack_from(page, _HEAD.size + i * _SECTION.size)[:3]) for i in range(4)]
    header = SegmentHeader(raw_id.decode("ascii", "replace"), size, *sections)
    _check_header(header, version, header_bytes, file_size)
    return header


def _check_header(header: SegmentHeader, version: int, header_bytes: int, file_size: int) -> None:
    if version != FORMAT_VERSION or header_bytes != HEADER_BYTES or not is_segment_id(header.segment_id):
        raise SegmentCorrupt("the segment's header is not one of this format")
    end = HEADER_BYTES
    for section in (header.data, header.layout, header.blocks, header.manifest):
        if section.offset < end:
            raise SegmentCorrupt(f"sections of the segment overlap at byte {section.offset}")
        end = section.end
    if not end <= file_size <= header.size_bytes:
        raise SegmentCorrupt(f"the segment is {file_size} bytes long, its header says {header.size_bytes}")
    if header.blocks.size != 4 * block_count(header.data):
        raise SegmentCorrupt("the segment's block CRCs do not match its data")
