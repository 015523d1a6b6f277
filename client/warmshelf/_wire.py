"""Between protobuf and the nouns of warmshelf, both ways, for client and daemon.

Errors are in ``_status``, chunks of a segment in ``_frame``. Knows no gRPC: no channel,
call or context.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime, timezone
from enum import Enum
from typing import Any, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from warmshelf._fleet import alias_change, alias_to_proto, sync_from_proto, sync_to_proto
from warmshelf.errors import Internal, from_wire
from warmshelf.layout import Layout, SegmentSpec, TensorSpec
from warmshelf.types import (
    AdapterInspection,
    Artifact,
    ArtifactKind,
    ArtifactSpec,
    ArtifactState,
    BaseCheck,
    Capabilities,
    Capacity,
    Change,
    ChangeKind,
    EngineOutcome,
    EngineVerdict,
    Failure,
    Inspection,
    LeaseInfo,
    LoadPhase,
    Progress,
    Registered,
    Source,
)
from warmshelf.v1 import artifact_pb2, capabilities_pb2, catalog_pb2, lease_pb2

_E = TypeVar("_E", bound=Enum)

_CAPACITY_FIELDS = tuple(field.name for field in fields(Capacity))  # named alike on both sides

# --- numbers of the wire's enums ----------------------------------------------

KIND_NUMBERS: dict[ArtifactKind, Any] = {
    ArtifactKind.UNKNOWN: artifact_pb2.ARTIFACT_KIND_UNSPECIFIED,
    ArtifactKind.BASE: artifact_pb2.ARTIFACT_KIND_BASE,
    ArtifactKind.ADAPTER: artifact_pb2.ARTIFACT_KIND_ADAPTER,
}
_STATE_NUMBERS: dict[ArtifactState, Any] = {
    state: artifact_pb2.ArtifactState.Value(f"ARTIFACT_STATE_{state.name}") for state in ArtifactState
}
_CHECK_NUMBERS: dict[BaseCheck, Any] = {
    check: artifact_pb2.BaseCheck.Value(f"BASE_CHECK_{check.name}") for check in BaseCheck
}
_OUTCOME_NUMBERS: dict[EngineOutcome, Any] = {
    outcome: artifact_pb2.EngineOutcome.Value(f"ENGINE_OUTCOME_{outcome.name}") for outcome in EngineOutcome
}
_PHASE_NUMBERS: dict[LoadPhase, Any] = {
    phase: catalog_pb2.LoadPhase.Value(f"LOAD_PHASE_{phase.name}") for phase in LoadPhase
}


def _by_number(table: dict[_E, Any]) -> dict[int, _E]:
    return {int(number): member for member, number in table.items()}


_KINDS = _by_number(KIND_NUMBERS)
_STATES = _by_number(_STATE_NUMBERS)
_CHECKS = _by_number(_CHECK_NUMBERS)
_OUTCOMES = _by_number(_OUTCOME_NUMBERS)
_PHASES = _by_number(_PHASE_NUMBERS)


def _member(table: dict[int, _E], number: int, what: str) -> _E:
    found = table.get(number)
    if found is None:
        raise Internal(f"the other side sent {what} {number}, which this side does not know", sent_number=number)
    return found


def _time_to_proto(moment: datetime | None) -> Timestamp | None:
    if moment is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def _time_from_proto(message: Any, field: str) -> datetime | None:
    if not message.HasField(field):
        return None
    moment: datetime = getattr(message, field).ToDatetime(tzinfo=timezone.utc)
    return moment


def spec_to_proto(spec: ArtifactSpec) -> artifact_pb2.ArtifactSpec:
    """Return the wire's form. A base's ID makes it an adapter's spec, whatever ``kind`` says."""
    message = artifact_pb2.ArtifactSpec(
        source=artifact_pb2.Source(
            uri=spec.source.uri, revision=spec.source.revision, expected_digest=spec.source.expected_digest
        )
    )
    if spec.kind is ArtifactKind.ADAPTER or spec.base_id:
        message.adapter.CopyFrom(artifact_pb2.AdapterSpec(base_artifact_id=spec.base_id))
    elif spec.kind is ArtifactKind.BASE:
        message.base.CopyFrom(artifact_pb2.BaseSpec())
    return message


def spec_from_proto(message: artifact_pb2.ArtifactSpec) -> ArtifactSpec:
    """Return what was registered."""
    source = Source(message.source.uri, message.source.revision, message.source.expected_digest)
    if message.HasField("adapter"):
        return ArtifactSpec(source, ArtifactKind.ADAPTER, message.adapter.base_artifact_id)
    return ArtifactSpec(source, ArtifactKind.BASE if message.HasField("base") else ArtifactKind.UNKNOWN)


def registered_from_proto(message: catalog_pb2.RegisterResult) -> Registered:
    """Return how one registration of many went."""
    if not message.HasField("failure"):
        return Registered(message.artifact_id)
    failure = message.failure
    return Registered(message.artifact_id, from_wire(failure.reason, failure.message, dict(failure.details)))


def registered_to_proto(one: Registered) -> catalog_pb2.RegisterResult:
    """Return the wire's form."""
    message = catalog_pb2.RegisterResult(artifact_id=one.artifact_id)
    if one.error is not None:
        details = {key: str(value) for key, value in one.error.details.items()}
        message.failure.CopyFrom(
            artifact_pb2.Failure(reason=one.error.reason, message=one.error.message, details=details)
        )
    return message


def inspection_to_proto(inspection: Inspection, *, full: bool = True) -> artifact_pb2.Inspection:
    """Return the wire's form; not ``full``: without config and module names."""
    message = artifact_pb2.Inspection(
        file_names=inspection.file_names,
        tensor_count=inspection.tensor_count,
        format_name=inspection.format_name,
        tensor_bytes=inspection.tensor_bytes,
    )
    if inspection.adapter is not None:
        message.adapter.CopyFrom(_adapter_to_proto(inspection.adapter, full=full))
    return message


def _adapter_to_proto(adapter: AdapterInspection, *, full: bool) -> artifact_pb2.AdapterInspection:
    message = artifact_pb2.AdapterInspection(
        adapter_number=adapter.adapter_number,
        rank_max=adapter.rank_max,
        features=adapter.features,
        base_check=_CHECK_NUMBERS[adapter.base_check],
    )
    if full:
        message.module_names.extend(adapter.module_names)
        message.unmatched_module_names.extend(adapter.unmatched_module_names)
        message.config_json = adapter.config_json
        for verdict in adapter.engine_verdicts:
            message.engine_verdicts.add(
                engine=verdict.engine,
                engine_version=verdict.engine_version,
                outcome=_OUTCOME_NUMBERS[verdict.outcome],
                reasons=verdict.reasons,
            )
    return message


def inspection_from_proto(message: artifact_pb2.Inspection) -> Inspection:
    """Return what the headers told."""
    return Inspection(
        format_name=message.format_name,
        file_names=tuple(message.file_names),
        tensor_count=message.tensor_count,
        tensor_bytes=message.tensor_bytes,
        adapter=_adapter_from_proto(message.adapter) if message.HasField("adapter") else None,
    )


def _adapter_from_proto(message: artifact_pb2.AdapterInspection) -> AdapterInspection:
    return AdapterInspection(
        adapter_number=message.adapter_number,
        rank_max=message.rank_max,
        module_names=tuple(message.module_names),
        features=tuple(message.features),
        base_check=_CHECKS.get(message.base_check, BaseCheck.UNCHECKED),
        unmatched_module_names=tuple(message.unmatched_module_names),
        config_json=message.config_json,
        engine_verdicts=tuple(map(_verdict_from_proto, message.engine_verdicts)),
    )


def _verdict_from_proto(message: artifact_pb2.EngineVerdict) -> EngineVerdict:
    outcome = _OUTCOMES.get(message.outcome, EngineOutcome.UNKNOWN)
    return EngineVerdict(message.engine, message.engine_version, outcome, tuple(message.reasons))


def artifact_to_proto(artifact: Artifact, *, full: bool = True) -> artifact_pb2.Artifact:
    """Return the wire's form; not ``full``: without config and module names."""
    message = artifact_pb2.Artifact(
        artifact_id=artifact.artifact_id,
        spec=spec_to_proto(artifact.spec),
        state=_STATE_NUMBERS[artifact.state],
        generation=artifact.generation,
        size_bytes=artifact.size_bytes,
        digest=artifact.digest,
        pinned=artifact.pinned,
        register_time=_time_to_proto(artifact.register_time),
        last_use_time=_time_to_proto(artifact.last_use_time),
        keep_resident=artifact.keep_resident,
        follow=artifact.follow,
        kind=KIND_NUMBERS[artifact.kind],
    )
    if artifact.failure is not None:
        message.failure.CopyFrom(_failure_to_proto(artifact.failure))
    if artifact.inspection is not None:
        message.inspection.CopyFrom(inspection_to_proto(artifact.inspection, full=full))
    if artifact.sync is not None:
        message.sync.CopyFrom(sync_to_proto(artifact.sync))
    return message


def artifact_from_proto(message: artifact_pb2.Artifact) -> Artifact:
    """Return the artifact as it was when it was sent."""
    return Artifact(
        artifact_id=message.artifact_id,
        spec=spec_from_proto(message.spec),
        kind=_KINDS.get(message.kind, ArtifactKind.UNKNOWN),
        state=_member(_STATES, message.state, "artifact state"),
        generation=message.generation,
        size_bytes=message.size_bytes,
        digest=message.digest,
        failure=_failure_from_proto(message.failure) if message.HasField("failure") else None,
        inspection=inspection_from_proto(message.inspection) if message.HasField("inspection") else None,
        pinned=message.pinned,
        register_time=_time_from_proto(message, "register_time"),
        last_use_time=_time_from_proto(message, "last_use_time"),
        keep_resident=message.keep_resident,
        follow=message.follow,
        sync=sync_from_proto(message.sync) if message.HasField("sync") else None,
    )


def _failure_to_proto(failure: Failure) -> artifact_pb2.Failure:
    return artifact_pb2.Failure(reason=failure.reason, message=failure.message, details=failure.details)


def _failure_from_proto(message: artifact_pb2.Failure) -> Failure:
    return Failure(message.reason, message.message, dict(message.details))


def progress_to_proto(progress: Progress) -> catalog_pb2.LoadArtifactResponse:
    """Return the wire's form."""
    message = catalog_pb2.LoadArtifactResponse(
        phase=_PHASE_NUMBERS[progress.phase], done_bytes=progress.done_bytes, total_bytes=progress.total_bytes
    )
    if progress.artifact is not None:
        message.artifact.CopyFrom(artifact_to_proto(progress.artifact))
    return message


def progress_from_proto(message: catalog_pb2.LoadArtifactResponse) -> Progress:
    """Return how far the load is."""
    return Progress(
        phase=_member(_PHASES, message.phase, "load phase"),
        done_bytes=message.done_bytes,
        total_bytes=message.total_bytes,
        artifact=artifact_from_proto(message.artifact) if message.HasField("artifact") else None,
    )


def change_from_proto(message: catalog_pb2.WatchArtifactsResponse) -> Change:
    """Return the change."""
    match message.WhichOneof("event"):
        case "changed":
            artifact = artifact_from_proto(message.changed)
            return Change(message.sequence, ChangeKind.CHANGED, artifact, artifact.artifact_id)
        case "removed_artifact_id":
            return Change(message.sequence, ChangeKind.REMOVED, artifact_id=message.removed_artifact_id)
        case "snapshot_complete":
            return Change(message.sequence, ChangeKind.COMPLETE)
        case "alias":
            return alias_change(message.sequence, message.alias)
        case "removed_alias":
            return Change(message.sequence, ChangeKind.ALIAS_REMOVED, artifact_id=message.removed_alias)
    raise Internal("the other side sent a change that this side does not know")


def change_to_proto(change: Change) -> catalog_pb2.WatchArtifactsResponse:
    """Return the wire's form; STARTED_OVER, which only a client tells, has none but its sequence."""
    message = catalog_pb2.WatchArtifactsResponse(sequence=change.sequence)
    if change.artifact is not None:
        message.changed.CopyFrom(artifact_to_proto(change.artifact))
    elif change.alias is not None:
        message.alias.CopyFrom(alias_to_proto(change.alias))
    elif change.kind is ChangeKind.ALIAS_REMOVED:
        message.removed_alias = change.artifact_id
    elif change.kind is ChangeKind.REMOVED:
        message.removed_artifact_id = change.artifact_id
    elif change.kind is ChangeKind.COMPLETE:
        message.snapshot_complete.SetInParent()
    return message


def lease_to_proto(lease: LeaseInfo) -> lease_pb2.Lease:
    """Return the wire's form."""
    return lease_pb2.Lease(
        lease_id=lease.lease_id,
        artifact_id=lease.artifact_id,
        generation=lease.generation,
        holder=lease.holder,
        acquire_time=_time_to_proto(lease.acquire_time),
    )


def lease_from_proto(message: lease_pb2.Lease) -> LeaseInfo:
    """Return the lease."""
    return LeaseInfo(
        artifact_id=message.artifact_id,
        generation=message.generation,
        holder=message.holder,
        acquire_time=_time_from_proto(message, "acquire_time"),
        lease_id=message.lease_id,
    )


def layout_to_proto(layout: Layout) -> artifact_pb2.Layout:
    """Return the wire's form; its tensors are sorted as the wire promises."""
    message = artifact_pb2.Layout(generation=layout.generation)
    for segment in layout.segments:
        message.segments.add(
            segment_index=segment.segment_index,
            segment_id=segment.segment_id,
            size_bytes=segment.size_bytes,
            content_size_bytes=segment.content_size_bytes,
        )
    for tensor in sorted(layout.tensors, key=lambda spec: (spec.segment_index, spec.offset_bytes)):
        message.tensors.add(
            name=tensor.name,
            dtype=tensor.dtype,
            shape=tensor.shape,
            segment_index=tensor.segment_index,
            offset_bytes=tensor.offset_bytes,
            size_bytes=tensor.size_bytes,
        )
    return message


def layout_from_proto(message: artifact_pb2.Layout) -> Layout:
    """Return the layout. Checks nothing: see ``warmshelf.layout.check_tensors``.

    Shapes are sliced: that copies one at once, where going through it takes twice as long.
    """
    segments = tuple(
        SegmentSpec(part.segment_index, part.segment_id, part.size_bytes, part.content_size_bytes)
        for part in message.segments
    )
    tensors = tuple(
        TensorSpec(part.name, part.dtype, tuple(part.shape[:]), part.offset_bytes, part.size_bytes, part.segment_index)
        for part in message.tensors
    )
    return Layout(message.generation, segments, tensors)


def capacity_to_proto(capacity: Capacity) -> capabilities_pb2.GetCapacityResponse:
    """Return the wire's form."""
    return capabilities_pb2.GetCapacityResponse(**{name: getattr(capacity, name) for name in _CAPACITY_FIELDS})


def capacity_from_proto(message: capabilities_pb2.GetCapacityResponse) -> Capacity:
    """Return what the arena holds."""
    return Capacity(**{name: getattr(message, name) for name in _CAPACITY_FIELDS})


def capabilities_to_proto(capabilities: Capabilities) -> capabilities_pb2.GetCapabilitiesResponse:
    """Return the wire's form."""
    names = {field.name: getattr(capabilities, field.name) for field in fields(Capabilities)}  # alike on both sides
    return capabilities_pb2.GetCapabilitiesResponse(**names)


def capabilities_from_proto(message: capabilities_pb2.GetCapabilitiesResponse) -> Capabilities:
    """Return what the daemon can do."""
    return Capabilities(
        daemon_version=message.daemon_version,
        arena_size_bytes=message.arena_size_bytes,
        arena_page_size_bytes=message.arena_page_size_bytes,
        pinning=message.pinning,
        chunk_size_bytes_max=message.chunk_size_bytes_max,
        source_schemes=tuple(message.source_schemes),
        format_names=tuple(message.format_names),
        arena_directory=message.arena_directory,
        arena_identity=message.arena_identity,
    )
