"""Segments, written by hand from the documented table: an oracle for whoever reads one."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import crc32c

from kit.models import Tensor
from warmshelf.v1 import artifact_pb2, manifest_pb2

HEADER_BYTES = 4096
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class SegmentFile:
    """A whole segment and how much of it is content."""

    segment_id: str
    data: bytes
    content_size_bytes: int

    @property
    def content(self) -> bytes:
        return self.data[: self.content_size_bytes]


def write_segment(
    tensors: Mapping[str, Tensor],
    *,
    segment_id: str = "5e9" + "0" * 29,
    files: Mapping[str, bytes] | None = None,
    ties: Mapping[str, str] | None = None,
    version: int = 1,
    align_bytes: int = 64,
) -> SegmentFile:
    """Return a segment that holds the tensors, and names tied to one of them."""
    layout, data = _lay_out(tensors, ties or {}, align_bytes)
    blocks = b"".join(struct.pack("<I", crc32c.crc32c(part)) for part in _blocks(data))
    manifest = manifest_pb2.Manifest(
        small_files=[manifest_pb2.SmallFile(name=name, data=text) for name, text in (files or {}).items()]
    ).SerializeToString()
    layout_text = layout.SerializeToString()
    body = data + layout_text + blocks + manifest
    size = -(-(HEADER_BYTES + len(body)) // 4096) * 4096
    head = struct.pack("<8sII32sQ", b"WARMSHLF", version, HEADER_BYTES, segment_id.encode(), size)
    at = HEADER_BYTES
    for part in (data, layout_text, blocks, manifest):
        crc = 0 if part is data else crc32c.crc32c(part)
        head += struct.pack("<QQII", at, len(part), crc, 0)
        at += len(part)
    head += struct.pack("<I", crc32c.crc32c(head))
    whole = head.ljust(HEADER_BYTES, b"\0") + body
    return SegmentFile(segment_id, whole.ljust(size, b"\0"), len(whole))


def _lay_out(
    tensors: Mapping[str, Tensor], ties: Mapping[str, str], align_bytes: int
) -> tuple[artifact_pb2.Layout, bytes]:
    layout = artifact_pb2.Layout()
    data = b""
    for name, (dtype, shape, text) in tensors.items():
        names = [name, *(tied for tied, to in ties.items() if to == name)]
        for each in names:
            layout.tensors.add(
                name=each, dtype=dtype, shape=shape, offset_bytes=HEADER_BYTES + len(data), size_bytes=len(text)
            )
        data += text.ljust(-(-len(text) // align_bytes) * align_bytes, b"\0")
    return layout, data


def _blocks(data: bytes) -> list[bytes]:
    whole = b"\0" * HEADER_BYTES + data  # blocks are parts of the file, cut to the data
    parts = [whole[at : at + BLOCK_BYTES] for at in range(0, len(whole), BLOCK_BYTES)] if data else []
    return [part[HEADER_BYTES:] if i == 0 else part for i, part in enumerate(parts)]
