from warmshelf.v1 import artifact_pb2 as _artifact_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

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

class TensorSlice(_message.Message):
    __slots__ = ("tensor_index", "dim", "start", "stop")
    TENSOR_INDEX_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    tensor_index: int
    dim: int
    start: int
    stop: int
    def __init__(self, tensor_index: _Optional[int] = ..., dim: _Optional[int] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ...) -> None: ...

class ReadTensorsRequest(_message.Message):
    __slots__ = ("lease_id", "session_id", "fallback_reason", "slices", "offset_bytes")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_REASON_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    session_id: str
    fallback_reason: str
    slices: _containers.RepeatedCompositeFieldContainer[TensorSlice]
    offset_bytes: int
    def __init__(self, lease_id: _Optional[str] = ..., session_id: _Optional[str] = ..., fallback_reason: _Optional[str] = ..., slices: _Optional[_Iterable[_Union[TensorSlice, _Mapping]]] = ..., offset_bytes: _Optional[int] = ...) -> None: ...

class ReadTensorsResponse(_message.Message):
    __slots__ = ("offset_bytes", "crc32c", "data")
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset_bytes: int
    crc32c: int
    data: bytes
    def __init__(self, offset_bytes: _Optional[int] = ..., crc32c: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...
