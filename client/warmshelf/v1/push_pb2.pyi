from warmshelf.v1 import artifact_pb2 as _artifact_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BeginPushRequest(_message.Message):
    __slots__ = ("push_id", "artifact_id", "base_artifact_id", "files", "replace", "keep_resident")
    PUSH_ID_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    KEEP_RESIDENT_FIELD_NUMBER: _ClassVar[int]
    push_id: str
    artifact_id: str
    base_artifact_id: str
    files: _containers.RepeatedCompositeFieldContainer[PushFile]
    replace: bool
    keep_resident: bool
    def __init__(self, push_id: _Optional[str] = ..., artifact_id: _Optional[str] = ..., base_artifact_id: _Optional[str] = ..., files: _Optional[_Iterable[_Union[PushFile, _Mapping]]] = ..., replace: bool = ..., keep_resident: bool = ...) -> None: ...

class PushFile(_message.Message):
    __slots__ = ("name", "size_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class BeginPushResponse(_message.Message):
    __slots__ = ("received_bytes", "chunk_size_bytes_max")
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_SIZE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    received_bytes: _containers.RepeatedScalarFieldContainer[int]
    chunk_size_bytes_max: int
    def __init__(self, received_bytes: _Optional[_Iterable[int]] = ..., chunk_size_bytes_max: _Optional[int] = ...) -> None: ...

class WritePushRequest(_message.Message):
    __slots__ = ("push_id", "file_index", "offset_bytes", "crc32c", "data")
    PUSH_ID_FIELD_NUMBER: _ClassVar[int]
    FILE_INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    push_id: str
    file_index: int
    offset_bytes: int
    crc32c: int
    data: bytes
    def __init__(self, push_id: _Optional[str] = ..., file_index: _Optional[int] = ..., offset_bytes: _Optional[int] = ..., crc32c: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class WritePushResponse(_message.Message):
    __slots__ = ("received_bytes",)
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    received_bytes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, received_bytes: _Optional[_Iterable[int]] = ...) -> None: ...

class FinishPushRequest(_message.Message):
    __slots__ = ("push_id", "file_sha256")
    PUSH_ID_FIELD_NUMBER: _ClassVar[int]
    FILE_SHA256_FIELD_NUMBER: _ClassVar[int]
    push_id: str
    file_sha256: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, push_id: _Optional[str] = ..., file_sha256: _Optional[_Iterable[bytes]] = ...) -> None: ...

class FinishPushResponse(_message.Message):
    __slots__ = ("artifact",)
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    artifact: _artifact_pb2.Artifact
    def __init__(self, artifact: _Optional[_Union[_artifact_pb2.Artifact, _Mapping]] = ...) -> None: ...

class AbandonPushRequest(_message.Message):
    __slots__ = ("push_id",)
    PUSH_ID_FIELD_NUMBER: _ClassVar[int]
    push_id: str
    def __init__(self, push_id: _Optional[str] = ...) -> None: ...

class AbandonPushResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
