from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SyncState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SYNC_STATE_UNSPECIFIED: _ClassVar[SyncState]
    SYNC_STATE_LOCAL: _ClassVar[SyncState]
    SYNC_STATE_QUEUED: _ClassVar[SyncState]
    SYNC_STATE_PUBLISHED: _ClassVar[SyncState]
    SYNC_STATE_CONFLICT: _ClassVar[SyncState]

class ArtifactKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ARTIFACT_KIND_UNSPECIFIED: _ClassVar[ArtifactKind]
    ARTIFACT_KIND_BASE: _ClassVar[ArtifactKind]
    ARTIFACT_KIND_ADAPTER: _ClassVar[ArtifactKind]

class ArtifactState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ARTIFACT_STATE_UNSPECIFIED: _ClassVar[ArtifactState]
    ARTIFACT_STATE_REGISTERED: _ClassVar[ArtifactState]
    ARTIFACT_STATE_LOADING: _ClassVar[ArtifactState]
    ARTIFACT_STATE_READY: _ClassVar[ArtifactState]
    ARTIFACT_STATE_EVICTING: _ClassVar[ArtifactState]
    ARTIFACT_STATE_FAILED: _ClassVar[ArtifactState]

class EngineOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENGINE_OUTCOME_UNSPECIFIED: _ClassVar[EngineOutcome]
    ENGINE_OUTCOME_SERVES: _ClassVar[EngineOutcome]
    ENGINE_OUTCOME_CONDITIONAL: _ClassVar[EngineOutcome]
    ENGINE_OUTCOME_UNKNOWN: _ClassVar[EngineOutcome]
    ENGINE_OUTCOME_MISSERVES: _ClassVar[EngineOutcome]
    ENGINE_OUTCOME_REFUSES: _ClassVar[EngineOutcome]

class BaseCheck(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BASE_CHECK_UNSPECIFIED: _ClassVar[BaseCheck]
    BASE_CHECK_UNCHECKED: _ClassVar[BaseCheck]
    BASE_CHECK_MATCHED: _ClassVar[BaseCheck]
    BASE_CHECK_PARTIAL: _ClassVar[BaseCheck]
SYNC_STATE_UNSPECIFIED: SyncState
SYNC_STATE_LOCAL: SyncState
SYNC_STATE_QUEUED: SyncState
SYNC_STATE_PUBLISHED: SyncState
SYNC_STATE_CONFLICT: SyncState
ARTIFACT_KIND_UNSPECIFIED: ArtifactKind
ARTIFACT_KIND_BASE: ArtifactKind
ARTIFACT_KIND_ADAPTER: ArtifactKind
ARTIFACT_STATE_UNSPECIFIED: ArtifactState
ARTIFACT_STATE_REGISTERED: ArtifactState
ARTIFACT_STATE_LOADING: ArtifactState
ARTIFACT_STATE_READY: ArtifactState
ARTIFACT_STATE_EVICTING: ArtifactState
ARTIFACT_STATE_FAILED: ArtifactState
ENGINE_OUTCOME_UNSPECIFIED: EngineOutcome
ENGINE_OUTCOME_SERVES: EngineOutcome
ENGINE_OUTCOME_CONDITIONAL: EngineOutcome
ENGINE_OUTCOME_UNKNOWN: EngineOutcome
ENGINE_OUTCOME_MISSERVES: EngineOutcome
ENGINE_OUTCOME_REFUSES: EngineOutcome
BASE_CHECK_UNSPECIFIED: BaseCheck
BASE_CHECK_UNCHECKED: BaseCheck
BASE_CHECK_MATCHED: BaseCheck
BASE_CHECK_PARTIAL: BaseCheck

class Artifact(_message.Message):
    __slots__ = ("artifact_id", "spec", "state", "generation", "size_bytes", "digest", "failure", "inspection", "pinned", "register_time", "last_use_time", "keep_resident", "follow", "kind", "sync")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    INSPECTION_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    REGISTER_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_USE_TIME_FIELD_NUMBER: _ClassVar[int]
    KEEP_RESIDENT_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    spec: ArtifactSpec
    state: ArtifactState
    generation: int
    size_bytes: int
    digest: str
    failure: Failure
    inspection: Inspection
    pinned: bool
    register_time: _timestamp_pb2.Timestamp
    last_use_time: _timestamp_pb2.Timestamp
    keep_resident: bool
    follow: bool
    kind: ArtifactKind
    sync: Sync
    def __init__(self, artifact_id: _Optional[str] = ..., spec: _Optional[_Union[ArtifactSpec, _Mapping]] = ..., state: _Optional[_Union[ArtifactState, str]] = ..., generation: _Optional[int] = ..., size_bytes: _Optional[int] = ..., digest: _Optional[str] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., inspection: _Optional[_Union[Inspection, _Mapping]] = ..., pinned: bool = ..., register_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., last_use_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., keep_resident: bool = ..., follow: bool = ..., kind: _Optional[_Union[ArtifactKind, str]] = ..., sync: _Optional[_Union[Sync, _Mapping]] = ...) -> None: ...

class Sync(_message.Message):
    __slots__ = ("state", "reason")
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    state: SyncState
    reason: str
    def __init__(self, state: _Optional[_Union[SyncState, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class ArtifactSpec(_message.Message):
    __slots__ = ("source", "base", "adapter")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    source: Source
    base: BaseSpec
    adapter: AdapterSpec
    def __init__(self, source: _Optional[_Union[Source, _Mapping]] = ..., base: _Optional[_Union[BaseSpec, _Mapping]] = ..., adapter: _Optional[_Union[AdapterSpec, _Mapping]] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("uri", "revision", "expected_digest")
    URI_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    uri: str
    revision: str
    expected_digest: str
    def __init__(self, uri: _Optional[str] = ..., revision: _Optional[str] = ..., expected_digest: _Optional[str] = ...) -> None: ...

class BaseSpec(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AdapterSpec(_message.Message):
    __slots__ = ("base_artifact_id",)
    BASE_ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    base_artifact_id: str
    def __init__(self, base_artifact_id: _Optional[str] = ...) -> None: ...

class Inspection(_message.Message):
    __slots__ = ("file_names", "tensor_count", "adapter", "format_name", "tensor_bytes")
    FILE_NAMES_FIELD_NUMBER: _ClassVar[int]
    TENSOR_COUNT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    FORMAT_NAME_FIELD_NUMBER: _ClassVar[int]
    TENSOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    file_names: _containers.RepeatedScalarFieldContainer[str]
    tensor_count: int
    adapter: AdapterInspection
    format_name: str
    tensor_bytes: int
    def __init__(self, file_names: _Optional[_Iterable[str]] = ..., tensor_count: _Optional[int] = ..., adapter: _Optional[_Union[AdapterInspection, _Mapping]] = ..., format_name: _Optional[str] = ..., tensor_bytes: _Optional[int] = ...) -> None: ...

class AdapterInspection(_message.Message):
    __slots__ = ("adapter_number", "rank_max", "module_names", "features", "base_check", "unmatched_module_names", "config_json", "engine_verdicts")
    ADAPTER_NUMBER_FIELD_NUMBER: _ClassVar[int]
    RANK_MAX_FIELD_NUMBER: _ClassVar[int]
    MODULE_NAMES_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    BASE_CHECK_FIELD_NUMBER: _ClassVar[int]
    UNMATCHED_MODULE_NAMES_FIELD_NUMBER: _ClassVar[int]
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    ENGINE_VERDICTS_FIELD_NUMBER: _ClassVar[int]
    adapter_number: int
    rank_max: int
    module_names: _containers.RepeatedScalarFieldContainer[str]
    features: _containers.RepeatedScalarFieldContainer[str]
    base_check: BaseCheck
    unmatched_module_names: _containers.RepeatedScalarFieldContainer[str]
    config_json: bytes
    engine_verdicts: _containers.RepeatedCompositeFieldContainer[EngineVerdict]
    def __init__(self, adapter_number: _Optional[int] = ..., rank_max: _Optional[int] = ..., module_names: _Optional[_Iterable[str]] = ..., features: _Optional[_Iterable[str]] = ..., base_check: _Optional[_Union[BaseCheck, str]] = ..., unmatched_module_names: _Optional[_Iterable[str]] = ..., config_json: _Optional[bytes] = ..., engine_verdicts: _Optional[_Iterable[_Union[EngineVerdict, _Mapping]]] = ...) -> None: ...

class EngineVerdict(_message.Message):
    __slots__ = ("engine", "engine_version", "outcome", "reasons")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_VERSION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    engine: str
    engine_version: str
    outcome: EngineOutcome
    reasons: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, engine: _Optional[str] = ..., engine_version: _Optional[str] = ..., outcome: _Optional[_Union[EngineOutcome, str]] = ..., reasons: _Optional[_Iterable[str]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("reason", "message", "details")
    class DetailsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    details: _containers.ScalarMap[str, str]
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., details: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Layout(_message.Message):
    __slots__ = ("generation", "segments", "tensors")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    tensors: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    def __init__(self, generation: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., tensors: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("segment_index", "segment_id", "size_bytes", "content_size_bytes")
    SEGMENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTENT_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    segment_index: int
    segment_id: str
    size_bytes: int
    content_size_bytes: int
    def __init__(self, segment_index: _Optional[int] = ..., segment_id: _Optional[str] = ..., size_bytes: _Optional[int] = ..., content_size_bytes: _Optional[int] = ...) -> None: ...

class TensorSpec(_message.Message):
    __slots__ = ("name", "dtype", "shape", "segment_index", "offset_bytes", "size_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    segment_index: int
    offset_bytes: int
    size_bytes: int
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., segment_index: _Optional[int] = ..., offset_bytes: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...
