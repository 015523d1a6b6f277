from warmshelf.v1 import alias_pb2 as _alias_pb2
from warmshelf.v1 import artifact_pb2 as _artifact_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ArtifactView(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ARTIFACT_VIEW_UNSPECIFIED: _ClassVar[ArtifactView]
    ARTIFACT_VIEW_BASIC: _ClassVar[ArtifactView]
    ARTIFACT_VIEW_FULL: _ClassVar[ArtifactView]

class LoadPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOAD_PHASE_UNSPECIFIED: _ClassVar[LoadPhase]
    LOAD_PHASE_INSPECT: _ClassVar[LoadPhase]
    LOAD_PHASE_RESERVE: _ClassVar[LoadPhase]
    LOAD_PHASE_READ: _ClassVar[LoadPhase]
    LOAD_PHASE_VERIFY: _ClassVar[LoadPhase]
    LOAD_PHASE_PIN: _ClassVar[LoadPhase]
    LOAD_PHASE_SEAL: _ClassVar[LoadPhase]
ARTIFACT_VIEW_UNSPECIFIED: ArtifactView
ARTIFACT_VIEW_BASIC: ArtifactView
ARTIFACT_VIEW_FULL: ArtifactView
LOAD_PHASE_UNSPECIFIED: LoadPhase
LOAD_PHASE_INSPECT: LoadPhase
LOAD_PHASE_RESERVE: LoadPhase
LOAD_PHASE_READ: LoadPhase
LOAD_PHASE_VERIFY: LoadPhase
LOAD_PHASE_PIN: LoadPhase
LOAD_PHASE_SEAL: LoadPhase

class RegisterArtifactRequest(_message.Message):
    __slots__ = ("artifact_id", "spec", "replace", "defer_inspection", "keep_resident", "follow")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    DEFER_INSPECTION_FIELD_NUMBER: _ClassVar[int]
    KEEP_RESIDENT_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    spec: _artifact_pb2.ArtifactSpec
    replace: bool
    defer_inspection: bool
    keep_resident: bool
    follow: bool
    def __init__(self, artifact_id: _Optional[str] = ..., spec: _Optional[_Union[_artifact_pb2.ArtifactSpec, _Mapping]] = ..., replace: bool = ..., defer_inspection: bool = ..., keep_resident: bool = ..., follow: bool = ...) -> None: ...

class RegisterArtifactResponse(_message.Message):
    __slots__ = ("artifact",)
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    artifact: _artifact_pb2.Artifact
    def __init__(self, artifact: _Optional[_Union[_artifact_pb2.Artifact, _Mapping]] = ...) -> None: ...

class RegisterArtifactsRequest(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[RegisterArtifactRequest]
    def __init__(self, requests: _Optional[_Iterable[_Union[RegisterArtifactRequest, _Mapping]]] = ...) -> None: ...

class RegisterArtifactsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[RegisterResult]
    def __init__(self, results: _Optional[_Iterable[_Union[RegisterResult, _Mapping]]] = ...) -> None: ...

class RegisterResult(_message.Message):
    __slots__ = ("artifact_id", "failure")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    failure: _artifact_pb2.Failure
    def __init__(self, artifact_id: _Optional[str] = ..., failure: _Optional[_Union[_artifact_pb2.Failure, _Mapping]] = ...) -> None: ...

class GetArtifactRequest(_message.Message):
    __slots__ = ("artifact_id",)
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    def __init__(self, artifact_id: _Optional[str] = ...) -> None: ...

class GetArtifactResponse(_message.Message):
    __slots__ = ("artifact",)
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    artifact: _artifact_pb2.Artifact
    def __init__(self, artifact: _Optional[_Union[_artifact_pb2.Artifact, _Mapping]] = ...) -> None: ...

class ListArtifactsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "base_artifact_id", "view")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    BASE_ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    base_artifact_id: str
    view: ArtifactView
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., base_artifact_id: _Optional[str] = ..., view: _Optional[_Union[ArtifactView, str]] = ...) -> None: ...

class ListArtifactsResponse(_message.Message):
    __slots__ = ("artifacts", "next_page_token")
    ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    artifacts: _containers.RepeatedCompositeFieldContainer[_artifact_pb2.Artifact]
    next_page_token: str
    def __init__(self, artifacts: _Optional[_Iterable[_Union[_artifact_pb2.Artifact, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class LoadArtifactRequest(_message.Message):
    __slots__ = ("artifact_id", "detach")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    DETACH_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    detach: bool
    def __init__(self, artifact_id: _Optional[str] = ..., detach: bool = ...) -> None: ...

class LoadArtifactResponse(_message.Message):
    __slots__ = ("phase", "done_bytes", "total_bytes", "artifact")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    phase: LoadPhase
    done_bytes: int
    total_bytes: int
    artifact: _artifact_pb2.Artifact
    def __init__(self, phase: _Optional[_Union[LoadPhase, str]] = ..., done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., artifact: _Optional[_Union[_artifact_pb2.Artifact, _Mapping]] = ...) -> None: ...

class EvictArtifactRequest(_message.Message):
    __slots__ = ("artifact_id", "drain")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    drain: bool
    def __init__(self, artifact_id: _Optional[str] = ..., drain: bool = ...) -> None: ...

class EvictArtifactResponse(_message.Message):
    __slots__ = ("artifact",)
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    artifact: _artifact_pb2.Artifact
    def __init__(self, artifact: _Optional[_Union[_artifact_pb2.Artifact, _Mapping]] = ...) -> None: ...

class RemoveArtifactRequest(_message.Message):
    __slots__ = ("artifact_id",)
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    def __init__(self, artifact_id: _Optional[str] = ...) -> None: ...

class RemoveArtifactResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VerifyArtifactRequest(_message.Message):
    __slots__ = ("artifact_id",)
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    def __init__(self, artifact_id: _Optional[str] = ...) -> None: ...

class VerifyArtifactResponse(_message.Message):
    __slots__ = ("checked_bytes",)
    CHECKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    checked_bytes: int
    def __init__(self, checked_bytes: _Optional[int] = ...) -> None: ...

class WatchArtifactsRequest(_message.Message):
    __slots__ = ("after_sequence",)
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    after_sequence: int
    def __init__(self, after_sequence: _Optional[int] = ...) -> None: ...

class WatchArtifactsResponse(_message.Message):
    __slots__ = ("sequence", "changed", "removed_artifact_id", "snapshot_complete", "alias", "removed_alias")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_ALIAS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    changed: _artifact_pb2.Artifact
    removed_artifact_id: str
    snapshot_complete: SnapshotComplete
    alias: _alias_pb2.Alias
    removed_alias: str
    def __init__(self, sequence: _Optional[int] = ..., changed: _Optional[_Union[_artifact_pb2.Artifact, _Mapping]] = ..., removed_artifact_id: _Optional[str] = ..., snapshot_complete: _Optional[_Union[SnapshotComplete, _Mapping]] = ..., alias: _Optional[_Union[_alias_pb2.Alias, _Mapping]] = ..., removed_alias: _Optional[str] = ...) -> None: ...

class SnapshotComplete(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
