from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Alias(_message.Message):
    __slots__ = ("name", "history")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    name: str
    history: _containers.RepeatedCompositeFieldContainer[AliasMove]
    def __init__(self, name: _Optional[str] = ..., history: _Optional[_Iterable[_Union[AliasMove, _Mapping]]] = ...) -> None: ...

class AliasMove(_message.Message):
    __slots__ = ("artifact_id", "move_time")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    MOVE_TIME_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    move_time: _timestamp_pb2.Timestamp
    def __init__(self, artifact_id: _Optional[str] = ..., move_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SetAliasRequest(_message.Message):
    __slots__ = ("name", "artifact_id", "expected_artifact_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    artifact_id: str
    expected_artifact_id: str
    def __init__(self, name: _Optional[str] = ..., artifact_id: _Optional[str] = ..., expected_artifact_id: _Optional[str] = ...) -> None: ...

class SetAliasResponse(_message.Message):
    __slots__ = ("alias",)
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    alias: Alias
    def __init__(self, alias: _Optional[_Union[Alias, _Mapping]] = ...) -> None: ...

class RollBackAliasRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class RollBackAliasResponse(_message.Message):
    __slots__ = ("alias",)
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    alias: Alias
    def __init__(self, alias: _Optional[_Union[Alias, _Mapping]] = ...) -> None: ...

class RemoveAliasRequest(_message.Message):
    __slots__ = ("name", "expected_artifact_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    expected_artifact_id: str
    def __init__(self, name: _Optional[str] = ..., expected_artifact_id: _Optional[str] = ...) -> None: ...

class RemoveAliasResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAliasesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAliasesResponse(_message.Message):
    __slots__ = ("aliases",)
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    aliases: _containers.RepeatedCompositeFieldContainer[Alias]
    def __init__(self, aliases: _Optional[_Iterable[_Union[Alias, _Mapping]]] = ...) -> None: ...
