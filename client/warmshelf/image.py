"""The bytes of one segment, mapped or streamed, and what they say of themselves.

Both transports end here, so what a worker sees cannot depend on how it came. Knows
no file, mapping, stream or daemon.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Protocol

import crc32c
from google.protobuf.message import DecodeError

from warmshelf._wire import layout_from_proto
from warmshelf.errors import SegmentCorrupt
from warmshelf.layout import Layout, TensorSpec, check_tensors
from warmshelf.segment import HEADER_BYTES, Section, SegmentHeader, block_range, parse_header
from warmshelf.v1 import artifact_pb2, manifest_pb2

_NONE: Mapping[str, tuple[int, ...]] = MappingProxyType({})


class Image(Protocol):
    """Tensors and small files, wherever they lie."""

    @property
    def view(self) -> memoryview:
        """The bytes that offsets point into."""

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Every tensor by its name."""

    @property
    def strides(self) -> Mapping[str, tuple[int, ...]]:
        """Distances in elements, of those tensors that are not dense."""

    @property
    def files(self) -> Mapping[str, bytes]:
        """The source's small files, by name."""

    def tensor(self, name: str) -> memoryview:
        """Return the bytes of a tensor; KeyError if there is none of this name."""


class SegmentImage:
    """A segment's bytes, from its first to the end of its manifest or of its file.

    Header and layout are checked against their CRCs at once; the layout is decoded at
    first use, the manifest checked and decoded then.

    Attributes:
        view: all the bytes. Offsets of the layout point into it. It keeps the memory
            alive, and so does each view cut from it.
        header: what the first page says.
    """

    def __init__(self, buffer: mmap.mmap | bytearray | bytes | memoryview, file_size: int) -> None:
        self.view = memoryview(buffer)[:file_size]
        self.header: SegmentHeader = parse_header(self.view[:HEADER_BYTES], file_size)
        self._checked(self.header.layout, "layout")

    def tensor(self, name: str) -> memoryview:
        """Return the bytes of a tensor, not copied.

        Raises:
            KeyError: there is none of this name.
        """
        spec = self.specs[name]
        return self.view[spec.offset_bytes : spec.end_bytes]

    def check_data(self, known: Mapping[tuple[int, int], int] = MappingProxyType({})) -> None:
        """Compare each block of the data with the CRC that was taken when it was sealed.

        Args:
            known: CRCs of ranges that were computed already; the others are here.

        Raises:
            SegmentCorrupt: a block is another than was sealed.
        """
        table = self._checked(self.header.blocks, "table of blocks")
        for index, (sealed,) in enumerate(struct.iter_unpack("<I", table)):
            start, end = block_range(self.header.data, index)
            crc = known.get((start, end))
            if crc is None:
                crc = crc32c.crc32c(self.view[start:end])
            if crc != sealed:
                raise SegmentCorrupt(
                    f"block {index} of segment {self.header.segment_id}, from byte {start}, is another than was sealed"
                )

    @cached_property
    def layout(self) -> Layout:
        """Where each tensor lies."""
        try:
            message = artifact_pb2.Layout.FromString(bytes(self._section(self.header.layout)))
            layout = layout_from_proto(message)
            check_tensors(layout.tensors, self.header.data.offset, self.header.data.end)
        except DecodeError as error:
            raise SegmentCorrupt(f"segment {self.header.segment_id} has a layout that cannot be: {error}") from error
        return layout

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Every tensor by its name, in the layout's order."""
        specs = {spec.name: spec for spec in self.layout.tensors}
        if len(specs) != len(self.layout.tensors):
            raise SegmentCorrupt(f"segment {self.header.segment_id} has tensors of the same name")
        return MappingProxyType(specs)

    @property
    def strides(self) -> Mapping[str, tuple[int, ...]]:
        """None: every tensor is dense."""
        return _NONE

    @cached_property
    def files(self) -> Mapping[str, bytes]:
        """The source's small files, byte for byte, by name."""
        data = bytes(self._checked(self.header.manifest, "manifest"))
        try:
            manifest = manifest_pb2.Manifest.FromString(data)
        except DecodeError as error:
            raise SegmentCorrupt(f"segment {self.header.segment_id} has a manifest that cannot be read") from error
        return MappingProxyType({file.name: file.data for file in manifest.small_files})

    def _section(self, section: Section) -> memoryview:
        return self.view[section.offset : section.end]

    def _checked(self, section: Section, what: str) -> memoryview:
        data = self._section(section)
        crc = crc32c.crc32c(data)
        if crc != section.crc:
            raise SegmentCorrupt(
                f"the {what} of segment {self.header.segment_id} has CRC {crc:08x}, its header says {section.crc:08x}"
            )
        return data
