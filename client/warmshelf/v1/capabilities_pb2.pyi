from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetCapabilitiesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetCapabilitiesResponse(_message.Message):
    __slots__ = ("daemon_version", "arena_size_bytes", "arena_page_size_bytes", "pinning", "chunk_size_bytes_max", "source_schemes", "format_names", "arena_directory", "arena_identity")
    DAEMON_VERSION_FIELD_NUMBER: _ClassVar[int]
    ARENA_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ARENA_PAGE_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PINNING_FIELD_NUMBER: _ClassVar[int]
    CHUNK_SIZE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SCHEMES_FIELD_NUMBER: _ClassVar[int]
    FORMAT_NAMES_FIELD_NUMBER: _ClassVar[int]
    ARENA_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    ARENA_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    daemon_version: str
    arena_size_bytes: int
    arena_page_size_bytes: int
    pinning: str
    chunk_size_bytes_max: int
    source_schemes: _containers.RepeatedScalarFieldContainer[str]
    format_names: _containers.RepeatedScalarFieldContainer[str]
    arena_directory: str
    arena_identity: str
    def __init__(self, daemon_version: _Optional[str] = ..., arena_size_bytes: _Optional[int] = ..., arena_page_size_bytes: _Optional[int] = ..., pinning: _Optional[str] = ..., chunk_size_bytes_max: _Optional[int] = ..., source_schemes: _Optional[_Iterable[str]] = ..., format_names: _Optional[_Iterable[str]] = ..., arena_directory: _Optional[str] = ..., arena_identity: _Optional[str] = ...) -> None: ...

class GetCapacityRequest(_message.Message):
    __slots__ = ("like_artifact_id",)
    LIKE_ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    like_artifact_id: str
    def __init__(self, like_artifact_id: _Optional[str] = ...) -> None: ...

class GetCapacityResponse(_message.Message):
    __slots__ = ("budget_bytes", "resident_bytes", "held_bytes", "unnamed_bytes", "reserved_bytes", "free_bytes", "fit_free_count", "fit_evicting_count")
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNNAMED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIT_FREE_COUNT_FIELD_NUMBER: _ClassVar[int]
    FIT_EVICTING_COUNT_FIELD_NUMBER: _ClassVar[int]
    budget_bytes: int
    resident_bytes: int
    held_bytes: int
    unnamed_bytes: int
    reserved_bytes: int
    free_bytes: int
    fit_free_count: int
    fit_evicting_count: int
    def __init__(self, budget_bytes: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., held_bytes: _Optional[int] = ..., unnamed_bytes: _Optional[int] = ..., reserved_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., fit_free_count: _Optional[int] = ..., fit_evicting_count: _Optional[int] = ...) -> None: ...

class SetBudgetRequest(_message.Message):
    __slots__ = ("budget_bytes",)
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    budget_bytes: int
    def __init__(self, budget_bytes: _Optional[int] = ...) -> None: ...

class SetBudgetResponse(_message.Message):
    __slots__ = ("capacity",)
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    capacity: GetCapacityResponse
    def __init__(self, capacity: _Optional[_Union[GetCapacityResponse, _Mapping]] = ...) -> None: ...
