"""The layout of a segment as ReadLayoutResponse messages, cut from its encoded form without decoding it.

A layout of 300,000 tensors takes a second and hundreds of megabytes as objects.
Here each part costs what it sends. Encodings: protobuf's wire format, in which
fields of a message may come in any order and messages are joined by joining bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from warmshelf._frame import varint
from warmshelf.errors import SegmentCorrupt
from warmshelf.v1 import artifact_pb2

_LAYOUT_IN_RESPONSE = b"\x0a"  # ReadLayoutResponse.layout: field 1, length-delimited
_TENSOR_TAG = 0x1A  # Layout.tensors: field 3, length-delimited
_SEGMENT_TAG = 0x12  # Layout.segments: field 2, length-delimited
_FRAME_BYTES_MAX = 11  # a tag and the longest varint


def layout_parts(
    raw: memoryview, segment: artifact_pb2.Segment, generation: int, part_bytes_max: int
) -> Iterator[bytes]:
    """Return encoded ReadLayoutResponses: the segment in the first, the tensors of ``raw`` in their order.

    ``raw`` is a segment's own layout; the segment it names lacks sizes, so ``segment`` stands for it.

    Raises:
        SegmentCorrupt: ``raw`` is no layout that a daemon wrote.
    """
    part = bytearray(artifact_pb2.Layout(generation=generation, segments=[segment]).SerializeToString())
    head = artifact_pb2.Layout(generation=generation).SerializeToString()
    at = 0
    while at < len(raw):
        end = _field_end(raw, at)
        if raw[at] == _TENSOR_TAG:
            if len(part) + end - at + _FRAME_BYTES_MAX > part_bytes_max and len(part) > len(head):
                yield _response(part)
                part = bytearray(head)
            part += raw[at:end]
        at = end
    yield _response(part)


def _response(layout: bytes | bytearray) -> bytes:
    return b"".join((_LAYOUT_IN_RESPONSE, varint(len(layout)), layout))


def _field_end(raw: memoryview, at: int) -> int:
    """Return where the length-delimited field at this place ends."""
    if raw[at] not in (_TENSOR_TAG, _SEGMENT_TAG):
        raise SegmentCorrupt(f"the segment's layout has an unknown field at byte {at}")
    size = shift = 0
    for start in range(at + 1, min(at + _FRAME_BYTES_MAX, len(raw))):
        size |= (raw[start] & 0x7F) << shift
        shift += 7
        if raw[start] < 0x80:  # noqa: PLR2004 - the last byte of a varint
            return start + 1 + size
    raise SegmentCorrupt(f"the segment's layout is cut at byte {at}")
