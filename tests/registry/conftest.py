"""Registrations to try a registry with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from hypothesis import strategies as st

from kit.redis_server import RedisServer, redis_server
from warmshelf.types import AdapterInspection, ArtifactKind, ArtifactSpec, BaseCheck, Inspection, Source
from warmshelfd.domain.adapter_shapes import AdapterShapes, Need, adapter_shapes
from warmshelfd.registry.base import Registration

ID_FIRST = "abcXYZ019"
texts = st.text(max_size=20)
names = st.lists(texts, max_size=4).map(tuple)
counts = st.integers(0, 2**63 - 1)
ids = st.builds(str.__add__, st.sampled_from(ID_FIRST), st.text("aZ0._@:+-", max_size=12)).filter(
    lambda i: ".." not in i
)
digests = st.just("") | st.builds(
    str.__add__, st.sampled_from(["blake3:", "sha256:"]), st.text("0123456789abcdef", min_size=64, max_size=64)
)
adapters = st.builds(
    AdapterInspection,
    adapter_number=st.integers(0, 2**31 - 1),
    rank_max=counts,
    module_names=names,
    features=names,
    base_check=st.sampled_from(BaseCheck),
    unmatched_module_names=names,
    config_json=st.binary(max_size=40),
)
inspections = st.builds(
    Inspection,
    format_name=texts,
    file_names=names,
    tensor_count=counts,
    tensor_bytes=counts,
    adapter=st.none() | adapters,
)
needs = st.builds(
    Need,
    module=texts,
    leaf=texts,
    shape=st.none() | st.lists(st.integers(0, 9), max_size=3).map(tuple),
    paired=st.booleans(),
)


def _with_shapes(registration: Registration, shapes: AdapterShapes) -> Registration:
    """Give an adapter's registration what it needs of its base; its modules are the same there."""
    inspection = registration.inspection
    if inspection is None or inspection.adapter is None:
        return registration
    adapter = replace(inspection.adapter, module_names=shapes.module_names)
    return replace(registration, inspection=replace(inspection, adapter=adapter), adapter_shapes=shapes)


PLAIN = st.builds(
    Registration,
    artifact_id=ids,
    spec=st.builds(
        ArtifactSpec,
        source=st.builds(Source, uri=texts, revision=texts, expected_digest=digests),
        kind=st.sampled_from(ArtifactKind),
        base_id=st.just("") | ids,
    ),
    kind=st.sampled_from(ArtifactKind),
    register_time=st.datetimes(timezones=st.just(timezone.utc)),
    keep_resident=st.booleans(),
    follow=st.booleans(),
    inspection=st.none() | inspections,
    fingerprint=texts,
    generation=counts,
    digest=digests,
    segment_id=st.just("") | st.text("0123456789abcdef", min_size=32, max_size=32),
    size_bytes=counts,
    hashes_owed=st.booleans(),
    files_digest=digests | st.just("none"),
)
REGISTRATIONS = PLAIN | st.builds(
    _with_shapes,
    PLAIN,
    st.builds(
        adapter_shapes, st.lists(needs, max_size=4), fan_in_fan_out=st.booleans(), layers=st.lists(counts, max_size=3)
    ),
)

FULL = Registration(
    artifact_id="acme/support-lora@v2",
    spec=ArtifactSpec(Source("file:///models/ä", "main", "sha256:" + "0" * 64), ArtifactKind.ADAPTER, "meta/llama"),
    kind=ArtifactKind.ADAPTER,
    register_time=datetime(2025, 3, 4, 5, 6, 7, 8, tzinfo=timezone.utc),
    keep_resident=True,
    follow=True,
    inspection=Inspection(
        format_name="safetensors",
        file_names=("adapter_model.safetensors",),
        tensor_count=4,
        tensor_bytes=1 << 40,
        adapter=AdapterInspection(
            7, 16, ("q_proj", "v_proj"), ("dora",), BaseCheck.PARTIAL, ("k_proj",), b'\xef\xbb\xbf{"r":16}'
        ),
    ),
    adapter_shapes=adapter_shapes(
        [Need("q_proj", "weight", (8, 8), paired=True), Need("v_proj", "weight", (4, 8), paired=True)],
        fan_in_fan_out=True,
        layers=(0, 1, 1),
    ),
    fingerprint="size=1 mtime=2",
    generation=3,
    digest="blake3:" + "a" * 64,
    segment_id="f" * 32,
    size_bytes=8192,
    hashes_owed=True,
    files_digest="blake3:" + "b" * 64,
)


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that tests use one after another; each empties it first."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def full() -> Registration:
    """A registration without an empty field."""
    return FULL


@pytest.fixture(scope="session")
def registrations() -> st.SearchStrategy[Registration]:
    """Any registration."""
    return REGISTRATIONS
