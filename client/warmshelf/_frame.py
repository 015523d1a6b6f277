"""Chunks of a segment: ReadSegmentResponse, written and read by hand, for client and daemon.

A protobuf object would copy the bytes on both sides. What is written is what protobuf
would write; what is read may be anything that it allows.
"""

from __future__ import annotations

import re
import struct

from google.protobuf.message import DecodeError

from warmshelf.errors import ChunkCorrupt
from warmshelf.v1 import transfer_pb2

_CRC = struct.Struct("<I")
_FRAME = re.compile(
    # offset_bytes, a varint below 2**63; crc32c, a fixed32; the tag and length of data
    rb"(?:\x08([\x80-\xff]{0,8}[\x00-\x7f]))?(?:\x15(.{4}))?(?:\x7a([\x80-\xff]{0,4}[\x00-\x7f]))?",
    re.DOTALL,
)


def frame_head(offset_bytes: int, crc32c: int, size: int) -> bytes:
    """Return what precedes ``size`` bytes of data to make them a ReadSegmentResponse."""
    offset = b"\x08" + varint(offset_bytes) if offset_bytes else b""
    return offset + b"\x15" + _CRC.pack(crc32c) + b"\x7a" + varint(size)


def parse_frame(message: bytes | memoryview) -> tuple[int, int, memoryview]:
    """Return offset, CRC32C and data of a ReadSegmentResponse; the data are not copied.

    That holds for the order in which ``frame_head`` writes; whatever else protobuf
    allows goes through the generated class. The CRC is not checked here.

    Raises:
        ChunkCorrupt: the bytes are no such message.
    """
    match = _FRAME.match(message)
    if match is not None:
        offset, crc, size = match.groups()
        end = match.end() + (_unvarint(size) if size else 0)
        if end == len(message):
            data = memoryview(message)[match.end() :]
            return _unvarint(offset) if offset else 0, _CRC.unpack(crc)[0] if crc else 0, data
    return _parse_any_frame(bytes(message))


def _parse_any_frame(message: bytes) -> tuple[int, int, memoryview]:
    try:
        chunk = transfer_pb2.ReadSegmentResponse.FromString(message)
    except DecodeError as error:
        raise ChunkCorrupt(f"a message of {len(message)} bytes is no chunk", message_bytes=len(message)) from error
    return chunk.offset_bytes, chunk.crc32c, memoryview(chunk.data)


def varint(value: int) -> bytes:
    """Return a number as protobuf writes it: seven bits a byte, the lowest first."""
    out = bytearray()
    while value >> 7:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _unvarint(text: bytes) -> int:
    value = 0
    for byte in reversed(text):
        value = value << 7 | byte & 0x7F
    return value
