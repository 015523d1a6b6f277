from google.protobuf import timestamp_pb2 as _timestamp_pb2
from warmshelf.v1 import artifact_pb2 as _artifact_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Manifest(_message.Message):
    __slots__ = ("kind", "fingerprint", "digest", "format_name", "file_names", "small_files", "seal_time", "daemon_version", "hashes")
    KIND_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FORMAT_NAME_FIELD_NUMBER: _ClassVar[int]
    FILE_NAMES_FIELD_NUMBER: _ClassVar[int]
    SMALL_FILES_FIELD_NUMBER: _ClassVar[int]
    SEAL_TIME_FIELD_NUMBER: _ClassVar[int]
    DAEMON_VERSION_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    kind: _artifact_pb2.ArtifactKind
    fingerprint: str
    digest: str
    format_name: str
    file_names: _containers.RepeatedScalarFieldContainer[str]
    small_files: _containers.RepeatedCompositeFieldContainer[SmallFile]
    seal_time: _timestamp_pb2.Timestamp
    daemon_version: str
    hashes: _containers.RepeatedCompositeFieldContainer[TensorHash]
    def __init__(self, kind: _Optional[_Union[_artifact_pb2.ArtifactKind, str]] = ..., fingerprint: _Optional[str] = ..., digest: _Optional[str] = ..., format_name: _Optional[str] = ..., file_names: _Optional[_Iterable[str]] = ..., small_files: _Optional[_Iterable[_Union[SmallFile, _Mapping]]] = ..., seal_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., daemon_version: _Optional[str] = ..., hashes: _Optional[_Iterable[_Union[TensorHash, _Mapping]]] = ...) -> None: ...

class TensorHash(_message.Message):
    __slots__ = ("name", "prefix", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    prefix: bytes
    sha256: bytes
    def __init__(self, name: _Optional[str] = ..., prefix: _Optional[bytes] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class SmallFile(_message.Message):
    __slots__ = ("name", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    data: bytes
    def __init__(self, name: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...
