"""Nouns and chunks survive the wire, whoever wrote them."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from warmshelf import _frame, _wire
from warmshelf.errors import ChunkCorrupt, Internal
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
    Source,
)
from warmshelf.v1 import artifact_pb2, catalog_pb2, transfer_pb2

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(0, 2**63 - 1)
counts = st.integers(0, 2**31 - 1)
names = st.lists(texts, max_size=3).map(tuple)
# A Timestamp of protobuf ends with the year 9999 and has whole microseconds on both sides.
times = st.none() | st.datetimes(
    datetime.fromisoformat("1970-01-01"), datetime.fromisoformat("9999-01-01"), timezones=st.just(timezone.utc)
)

sources = st.builds(Source, texts, texts, texts)
specs = st.one_of(
    st.builds(ArtifactSpec, sources, st.sampled_from([ArtifactKind.UNKNOWN, ArtifactKind.BASE])),
    st.builds(ArtifactSpec, sources, st.just(ArtifactKind.ADAPTER), texts),
)
verdicts = st.lists(st.builds(EngineVerdict, texts, texts, st.sampled_from(EngineOutcome), names), max_size=3).map(
    tuple
)
adapters = st.builds(
    AdapterInspection, counts, counts, names, names, st.sampled_from(BaseCheck), names, st.binary(max_size=20), verdicts
)
inspections = st.builds(Inspection, texts, names, counts, numbers, st.none() | adapters)
failures = st.builds(Failure, texts, texts, st.dictionaries(texts, texts, max_size=3))
artifacts = st.builds(
    Artifact,
    texts,
    specs,
    st.sampled_from(ArtifactKind),
    st.sampled_from(ArtifactState),
    numbers,
    numbers,
    texts,
    st.none() | failures,
    st.none() | inspections,
    st.booleans(),
    times,
    times,
    st.booleans(),
    st.booleans(),
)


@given(artifacts)
def test_an_artifact_goes_round(artifact: Artifact) -> None:
    message = _wire.artifact_to_proto(artifact)
    assert _wire.artifact_from_proto(type(message).FromString(message.SerializeToString())) == artifact


@given(st.builds(Progress, st.sampled_from(LoadPhase), numbers, numbers, st.none() | artifacts))
def test_progress_goes_round(progress: Progress) -> None:
    assert _wire.progress_from_proto(_wire.progress_to_proto(progress)) == progress


@given(st.builds(LeaseInfo, texts, numbers, texts, times, texts))
def test_a_lease_goes_round(lease: LeaseInfo) -> None:
    assert _wire.lease_from_proto(_wire.lease_to_proto(lease)) == lease


@given(st.builds(Capabilities, texts, numbers, numbers, texts, numbers, names, names))
def test_capabilities_go_round(capabilities: Capabilities) -> None:
    assert _wire.capabilities_from_proto(_wire.capabilities_to_proto(capabilities)) == capabilities


@given(st.builds(Capacity, *[numbers] * 8))
def test_capacity_goes_round(capacity: Capacity) -> None:
    assert _wire.capacity_from_proto(_wire.capacity_to_proto(capacity)) == capacity


@given(numbers, artifacts, texts.filter(bool))
def test_changes_go_round(sequence: int, artifact: Artifact, artifact_id: str) -> None:
    for change in (
        Change(sequence, ChangeKind.CHANGED, artifact, artifact.artifact_id),
        Change(sequence, ChangeKind.REMOVED, artifact_id=artifact_id),
        Change(sequence, ChangeKind.COMPLETE),
    ):
        assert _wire.change_from_proto(_wire.change_to_proto(change)) == change


shapes = st.lists(numbers, max_size=4).map(tuple)
tensors = st.builds(TensorSpec, texts, texts, shapes, numbers, numbers, counts)
segments = st.builds(SegmentSpec, counts, texts, numbers, numbers)


@given(numbers, st.lists(segments, max_size=3), st.lists(tensors, max_size=5))
def test_a_layout_goes_round_with_its_tensors_in_order_of_place(
    generation: int, parts: list[SegmentSpec], specs: list[TensorSpec]
) -> None:
    layout = _wire.layout_from_proto(_wire.layout_to_proto(Layout(generation, tuple(parts), tuple(specs))))
    assert layout.generation == generation
    assert list(layout.segments) == parts
    assert list(layout.tensors) == sorted(specs, key=lambda spec: (spec.segment_index, spec.offset_bytes))


def test_a_base_id_makes_a_spec_an_adapters() -> None:
    message = _wire.spec_to_proto(ArtifactSpec(Source("file:///a"), ArtifactKind.UNKNOWN, "org/base"))
    assert _wire.spec_from_proto(message) == ArtifactSpec(Source("file:///a"), ArtifactKind.ADAPTER, "org/base")


def test_a_short_form_leaves_out_config_and_module_names_and_nothing_else() -> None:
    adapter = AdapterInspection(7, 8, ("q",), ("dora",), BaseCheck.PARTIAL, ("x",), b"{}")
    message = _wire.inspection_to_proto(Inspection("safetensors", ("a",), 3, 4, adapter), full=False)
    short = AdapterInspection(7, 8, (), ("dora",), BaseCheck.PARTIAL, (), b"")
    assert _wire.inspection_from_proto(message) == Inspection("safetensors", ("a",), 3, 4, short)


def test_a_state_or_phase_of_a_newer_daemon_is_named_and_not_guessed() -> None:
    with pytest.raises(Internal, match="artifact state 99"):
        _wire.artifact_from_proto(artifact_pb2.Artifact(state=99))  # type: ignore[arg-type]
    with pytest.raises(Internal, match="a change"):
        _wire.change_from_proto(catalog_pb2.WatchArtifactsResponse(sequence=1))
    with pytest.raises(Internal, match="load phase 0"):
        _wire.progress_from_proto(catalog_pb2.LoadArtifactResponse())


# --- chunks ---

offsets = st.integers(0, 2**63 - 1)
crcs = st.integers(0, 2**32 - 1)


@given(offsets, crcs, st.binary(max_size=300))
def test_a_chunk_framed_by_hand_is_what_protobuf_reads(offset: int, crc: int, data: bytes) -> None:
    message = _frame.frame_head(offset, crc, len(data)) + data
    chunk = transfer_pb2.ReadSegmentResponse.FromString(message)
    assert (chunk.offset_bytes, chunk.crc32c, chunk.data) == (offset, crc, data)


@given(st.integers(-(2**63), 2**63 - 1), crcs, st.binary(max_size=300))
def test_a_chunk_written_by_protobuf_is_parsed_by_hand(offset: int, crc: int, data: bytes) -> None:
    message = transfer_pb2.ReadSegmentResponse(offset_bytes=offset, crc32c=crc, data=data).SerializeToString()
    assert _frame.parse_frame(message) == (offset, crc, data)
    assert _frame.parse_frame(memoryview(message)) == (offset, crc, data)


fields = st.sampled_from(
    [
        b"\x08\x05",  # offset 5
        b"\x08\x85\x80\x80\x00",  # offset 5, longer than need be
        b"\x08" + b"\xff" * 9 + b"\x01",  # offset -1
        b"\x15\x01\x02\x03\x04",  # crc
        b"\x7a\x03abc",  # data
        b"\x7a\x83\x80\x00xyz",  # data, its length longer than need be
        b"\x18\x07",  # an unknown field
        b"\x82\x01\x02no",  # another, of bytes
    ]
)


@given(st.lists(fields, max_size=6).map(b"".join) | st.binary(max_size=40))
def test_any_bytes_are_read_as_protobuf_reads_them_or_refused_as_it_does(message: bytes) -> None:
    try:
        chunk = transfer_pb2.ReadSegmentResponse.FromString(message)
    except DecodeError:
        with pytest.raises(ChunkCorrupt):
            _frame.parse_frame(message)
    else:
        assert _frame.parse_frame(message) == (chunk.offset_bytes, chunk.crc32c, chunk.data)


def test_the_data_of_a_chunk_are_not_copied() -> None:
    message = bytearray(_frame.frame_head(4096, 1, 3) + b"abc")
    _, _, data = _frame.parse_frame(memoryview(message))
    message[-1:] = b"X"
    assert data == b"abX"
