from google.protobuf import timestamp_pb2 as _timestamp_pb2
from warmshelf.v1 import artifact_pb2 as _artifact_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Lease(_message.Message):
    __slots__ = ("lease_id", "artifact_id", "generation", "holder", "acquire_time")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    artifact_id: str
    generation: int
    holder: str
    acquire_time: _timestamp_pb2.Timestamp
    def __init__(self, lease_id: _Optional[str] = ..., artifact_id: _Optional[str] = ..., generation: _Optional[int] = ..., holder: _Optional[str] = ..., acquire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("holder",)
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    holder: str
    def __init__(self, holder: _Optional[str] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("session_id", "draining", "superseded")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    draining: Draining
    superseded: Lease
    def __init__(self, session_id: _Optional[str] = ..., draining: _Optional[_Union[Draining, _Mapping]] = ..., superseded: _Optional[_Union[Lease, _Mapping]] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AcquireLeaseRequest(_message.Message):
    __slots__ = ("session_id", "artifact_id", "resident_only", "expected_digest", "rank_max", "features", "lease_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_ONLY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    RANK_MAX_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    artifact_id: str
    resident_only: bool
    expected_digest: str
    rank_max: int
    features: _containers.RepeatedScalarFieldContainer[str]
    lease_id: str
    def __init__(self, session_id: _Optional[str] = ..., artifact_id: _Optional[str] = ..., resident_only: bool = ..., expected_digest: _Optional[str] = ..., rank_max: _Optional[int] = ..., features: _Optional[_Iterable[str]] = ..., lease_id: _Optional[str] = ...) -> None: ...

class AcquireLeaseResponse(_message.Message):
    __slots__ = ("lease", "artifact", "layout", "locations")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    LOCATIONS_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    artifact: _artifact_pb2.Artifact
    layout: _artifact_pb2.Layout
    locations: _containers.RepeatedCompositeFieldContainer[Location]
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., artifact: _Optional[_Union[_artifact_pb2.Artifact, _Mapping]] = ..., layout: _Optional[_Union[_artifact_pb2.Layout, _Mapping]] = ..., locations: _Optional[_Iterable[_Union[Location, _Mapping]]] = ...) -> None: ...

class Location(_message.Message):
    __slots__ = ("arena_directory", "transfer_address")
    ARENA_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    arena_directory: str
    transfer_address: str
    def __init__(self, arena_directory: _Optional[str] = ..., transfer_address: _Optional[str] = ...) -> None: ...

class ReleaseLeaseRequest(_message.Message):
    __slots__ = ("session_id", "lease_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    lease_id: str
    def __init__(self, session_id: _Optional[str] = ..., lease_id: _Optional[str] = ...) -> None: ...

class ReleaseLeaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListLeasesRequest(_message.Message):
    __slots__ = ("artifact_id", "page_size", "page_token")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    page_size: int
    page_token: str
    def __init__(self, artifact_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListLeasesResponse(_message.Message):
    __slots__ = ("leases", "next_page_token")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    next_page_token: str
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...
