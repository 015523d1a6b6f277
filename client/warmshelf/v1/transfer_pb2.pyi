from warmshelf.v1 import artifact_pb2 as _artifact_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReadSegmentRequest(_message.Message):
    __slots__ = ("lease_id", "session_id", "fallback_reason", "segment_index", "offset_bytes", "limit_bytes")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_REASON_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    session_id: str
    fallback_reason: str
    segment_index: int
    offset_bytes: int
    limit_bytes: int
    def __init__(self, lease_id: _Optional[str] = ..., session_id: _Optional[str] = ..., fallback_reason: _Optional[str] = ..., segment_index: _Optional[int] = ..., offset_bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ...) -> None: ...

class ReadSegmentResponse(_message.Message):
    __slots__ = ("offset_bytes", "crc32c", "data")
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset_bytes: int
    crc32c: int
    data: bytes
    def __init__(self, offset_bytes: _Optional[int] = ..., crc32c: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ReadLayoutRequest(_message.Message):
    __slots__ = ("lease_id", "session_id")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    session_id: str
    def __init__(self, lease_id: _Optional[str] = ..., session_id: _Optional[str] = ...) -> None: ...

class ReadLayoutResponse(_message.Message):
    __slots__ = ("layout",)
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    layout: _artifact_pb2.Layout
    def __init__(self, layout: _Optional[_Union[_artifact_pb2.Layout, _Mapping]] = ...) -> None: ...
