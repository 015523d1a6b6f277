from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Node(_message.Message):
    __slots__ = ("node_id", "name", "zone", "address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    name: str
    zone: str
    address: str
    def __init__(self, node_id: _Optional[str] = ..., name: _Optional[str] = ..., zone: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class Resident(_message.Message):
    __slots__ = ("node_id", "artifact_id", "digest", "size_bytes", "pinned", "keep_resident")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    KEEP_RESIDENT_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    artifact_id: str
    digest: str
    size_bytes: int
    pinned: bool
    keep_resident: bool
    def __init__(self, node_id: _Optional[str] = ..., artifact_id: _Optional[str] = ..., digest: _Optional[str] = ..., size_bytes: _Optional[int] = ..., pinned: bool = ..., keep_resident: bool = ...) -> None: ...

class ListResidencyRequest(_message.Message):
    __slots__ = ("artifact_id", "page_size", "page_token")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    page_size: int
    page_token: str
    def __init__(self, artifact_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListResidencyResponse(_message.Message):
    __slots__ = ("residents", "nodes", "partial", "next_page_token", "loading_node_ids")
    RESIDENTS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOADING_NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    residents: _containers.RepeatedCompositeFieldContainer[Resident]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    partial: bool
    next_page_token: str
    loading_node_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, residents: _Optional[_Iterable[_Union[Resident, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., partial: bool = ..., next_page_token: _Optional[str] = ..., loading_node_ids: _Optional[_Iterable[str]] = ...) -> None: ...
