"""The layout of a segment as ReadLayoutResponse messages, cut from its encoded form without decoding it.

A layout of 300,000 tensors takes a second and hundreds of megabytes as objects.
Here each part costs what it sends. Encodings: protobuf's wire format, in which
fields of a message may come in any order and messages are joined by joining bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from warmshelf._frame import varint
from warmshelf.errors import SegmentCorrupt
from warmshelf.v1 import artifact_pb2

_LAYOUT_IN_RESPONSE = b"\x0a"  # ReadLayoutResponse.layout: field 1, length-delimited
_TENSOR_TAG = 0x1A  # Layout.tensors: field 3, length-delimited
_SEGMENT_TAG = 0x12  # Layout.segments: field 2, length-delimited
_FRAME_BYTES_MAX = 11  # a tag and the longest varint

_PIECE_BYTES = 64 << 10
"""What is read at a time: some hundred tensors."""


def layout_parts(
    read: Callable[[int, int], bytes],
    size: int,
    segment: artifact_pb2.Segment,
    generation: int,
    part_bytes_max: int,
) -> Iterator[bytes]:
    """Return encoded ReadLayoutResponses: the segment in the first, the tensors of a layout in their order.

    ``read`` gives ranges of a segment's own layout, which has ``size`` bytes; the segment it names lacks
    sizes, so ``segment`` stands for it.

    Raises:
        SegmentCorrupt: it is no layout that a daemon wrote.
    """
    part = bytearray(artifact_pb2.Layout(generation=generation, segments=[segment]).SerializeToString())
    head = artifact_pb2.Layout(generation=generation).SerializeToString()
    for field in _fields(read, size):
        if field[0] == _TENSOR_TAG:
            if len(part) + len(field) + _FRAME_BYTES_MAX > part_bytes_max and len(part) > len(head):
                yield _response(part)
                part = bytearray(head)
            part += field
    yield _response(part)


def _response(layout: bytes | bytearray) -> bytes:
    return b"".join((_LAYOUT_IN_RESPONSE, varint(len(layout)), layout))


def _fields(read: Callable[[int, int], bytes], size: int) -> Iterator[bytes]:
    """Yield one field after another, reading a piece at a time: a layout may have tens of megabytes."""
    at, want = 0, _PIECE_BYTES
    while at < size:
        piece = read(at, min(at + want, size))
        start, end = 0, _field_end(piece, 0)
        while end <= len(piece):
            yield piece[start:end]
            start, end = end, _field_end(piece, end)
        if start == 0 and at + len(piece) == size:
            raise SegmentCorrupt(f"the segment's layout is cut at byte {at}")
        at, want = at + start, _PIECE_BYTES if start else max(end, 2 * want)


def _field_end(raw: bytes, at: int) -> int:
    """Return where the length-delimited field at this place ends; behind ``raw`` if that is cut in its head."""
    if at < len(raw) and raw[at] not in (_TENSOR_TAG, _SEGMENT_TAG):
        raise SegmentCorrupt("the segment's layout has an unknown field")
    size = shift = 0
    for start in range(at + 1, min(at + _FRAME_BYTES_MAX, len(raw))):
        size |= (raw[start] & 0x7F) << shift
        shift += 7
        if raw[start] < 0x80:  # noqa: PLR2004 - the last byte of a varint
            return start + 1 + size
    return max(len(raw), at) + 1
