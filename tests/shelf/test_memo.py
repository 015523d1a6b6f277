"""Equal headers are parsed once, and anything else anew."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Collection, Iterable, Mapping, Sequence

import pytest

from kit.adapters import adapter_files, pair
from kit.models import safetensors_bytes
from warmshelf.errors import MalformedArtifact
from warmshelf.v1 import artifact_pb2
from warmshelfd.formats.base import Files, FormatLimits, Inspected
from warmshelfd.formats.detect import detect
from warmshelfd.memo import InspectionMemo
from warmshelfd.sources.base import Known, OpenSource

LIMITS = FormatLimits()


class Directory:
    """Files in memory that count what is read of them."""

    def __init__(self, content: Mapping[str, bytes]) -> None:
        self.content = dict(content)
        self.reads = 0

    def files(self) -> Mapping[str, int]:
        return {name: len(data) for name, data in self.content.items()}

    def read(self, name: str, offset: int, size: int) -> bytes:
        self.reads += 1
        return self.content[name][offset : offset + size]


class Source(Directory, OpenSource):
    """The same as a source that knows which version it has opened."""

    def __init__(self, content: Mapping[str, bytes], version: str, uri: str = "s3://models/a") -> None:
        super().__init__(content)
        self.uri = uri
        self.version = version
        self.held: list[Known] = []

    def as_opened(self, names: Collection[str]) -> str:
        return self.version

    def hold(self, reads: Iterable[Known]) -> None:
        self.held += reads

    def read_into(self, name: str, offset: int, view: memoryview) -> None:
        view[:] = self.read(name, offset, len(view))

    def fingerprint(self, names: Sequence[str]) -> str:
        return self.version

    def close(self) -> None:
        pass


class Counted:
    """``detect``, and how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, files: Files, limits: FormatLimits) -> Inspected:
        self.calls += 1
        return detect(files, limits)


def adapter(module: str = "layers.0.q_proj", **fields: object) -> dict[str, bytes]:
    return adapter_files(pair(module), **fields)


def test_the_same_header_is_parsed_once_whatever_the_tensors_hold() -> None:
    counted = Counted()
    memo = InspectionMemo(counted, bytes_max=1 << 20)
    first, second = adapter(), adapter()
    weights = bytearray(second["adapter_model.safetensors"])
    weights[-1] ^= 1  # in the data
    second["adapter_model.safetensors"] = bytes(weights)
    found = memo.inspect(Directory(first), LIMITS)
    assert memo.inspect(Directory(second), LIMITS) is found
    assert counted.calls == 1
    assert found.inspected == detect(Directory(second), LIMITS)


def test_one_other_byte_of_header_or_config_is_parsed_anew() -> None:
    counted = Counted()
    memo = InspectionMemo(counted, bytes_max=1 << 20)
    memo.inspect(Directory(adapter(lora_alpha=8)), LIMITS)
    other = memo.inspect(Directory(adapter(lora_alpha=9)), LIMITS)  # as long as before
    assert counted.calls == 2
    assert other.inspected.adapter is not None
    assert b"9" in other.inspected.adapter.config_json
    renamed = memo.inspect(Directory(adapter("layers.1.q_proj", lora_alpha=9)), LIMITS)
    assert counted.calls == 3
    assert renamed.inspected.adapter is not None
    assert renamed.inspected.adapter.module_names == ("layers.1.q_proj",)


def test_another_listing_is_another_inspection() -> None:
    counted = Counted()
    memo = InspectionMemo(counted, bytes_max=1 << 20)
    files = adapter()
    memo.inspect(Directory(files), LIMITS)
    with_tokenizer = memo.inspect(Directory({**files, "tokenizer.json": b"{}"}), LIMITS)
    assert counted.calls == 2
    assert "tokenizer.json" in with_tokenizer.inspected.small_files


def test_what_is_refused_is_refused_again() -> None:
    memo = InspectionMemo(detect, bytes_max=1 << 20)
    broken = {**adapter(), "adapter_config.json": b"{not json"}
    for _ in range(2):
        with pytest.raises(MalformedArtifact):
            memo.inspect(Directory(broken), LIMITS)


def test_what_is_remembered_is_bounded_and_the_last_used_stay() -> None:
    counted = Counted()
    memo = InspectionMemo(counted, bytes_max=24_000)
    directories = [Directory(adapter(f"layers.{i}.q_proj" + "x" * i)) for i in range(8)]
    for directory in directories:
        memo.inspect(directory, LIMITS)
        memo.inspect(directories[0], LIMITS)
    calls = counted.calls
    memo.inspect(directories[0], LIMITS)
    assert counted.calls == calls
    memo.inspect(directories[1], LIMITS)
    assert counted.calls == calls + 1
    huge = Directory({"m.safetensors": safetensors_bytes({f"t{i}": ("U8", (1,), b"x") for i in range(100)})})
    for _ in range(2):
        memo.inspect(huge, LIMITS)  # too large to be remembered beside others
    assert counted.calls == calls + 3


@pytest.mark.parametrize(("pairs", "count"), [(1, 200), (32, 20), (210, 4)])
def test_what_is_remembered_takes_no_more_memory_than_is_counted(pairs: int, count: int) -> None:
    shapes = {name: shape for number in range(pairs) for name, shape in pair(f"layers.{number}.q_proj").items()}
    directories = [Directory(adapter_files(shapes, note="n" * number)) for number in range(2 * count)]
    memo = InspectionMemo(detect, bytes_max=1 << 30)
    for directory in directories[:count]:
        memo.inspect(directory, LIMITS)
    counted = memo._size_bytes
    gc.collect()
    tracemalloc.start()
    try:
        for directory in directories[count:]:
            memo.inspect(directory, LIMITS)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    counted = memo._size_bytes - counted
    assert 0.4 * counted < taken <= counted


def test_the_tensor_table_completed_by_a_segment_is_the_layout() -> None:
    found = InspectionMemo(detect, bytes_max=1 << 20).inspect(Directory(adapter()), LIMITS)
    head = artifact_pb2.Layout(segments=[artifact_pb2.Segment(segment_id="a" * 32)]).SerializeToString()
    whole = artifact_pb2.Layout.FromString(head + found.tensor_table)
    assert [segment.segment_id for segment in whole.segments] == ["a" * 32]
    assert [tensor.name for tensor in whole.tensors] == [spec.name for spec in found.plan.tensors]


def _inspected(memo: InspectionMemo, source: Source) -> None:
    memo.note(source, memo.inspect(source, LIMITS), source.version)


def test_a_source_that_looks_as_it_did_is_given_what_was_read_of_it() -> None:
    memo, files = InspectionMemo(detect, bytes_max=1 << 20), adapter()
    first, again = Source(files, "1"), Source(files, "1")
    assert not memo.recall(first)
    _inspected(memo, first)
    assert memo.recall(again)
    assert {name for name, _, _ in again.held} == set(files)
    assert all(files[name][at : at + len(data)] == data for name, at, data in again.held)


@pytest.mark.parametrize(
    "other", [Source(adapter(), "2"), Source(adapter(), "1", "s3://models/b"), Source(adapter(), "")]
)
def test_another_version_and_another_place_are_read(other: Source) -> None:
    memo = InspectionMemo(detect, bytes_max=1 << 20)
    _inspected(memo, Source(adapter(), "1"))
    assert not memo.recall(other)
    assert other.held == []


def test_a_source_is_not_given_what_was_read_of_another_with_the_same_listing() -> None:
    """The memo keeps one inspection of a listing: the next that differs takes its place."""
    memo = InspectionMemo(detect, bytes_max=1 << 20)
    one, other = Source(adapter(lora_alpha=8), "1"), Source(adapter(lora_alpha=9), "2", "s3://models/b")
    found = memo.inspect(one, LIMITS)
    memo.note(one, found, "1")
    _inspected(memo, other)
    assert not memo.recall(Source(adapter(lora_alpha=8), "1"))
    memo.note(one, found, "1")  # too late: what is kept now is the other's
    assert not memo.recall(Source(adapter(lora_alpha=8), "1"))
    assert memo.recall(Source(adapter(lora_alpha=9), "2", "s3://models/b"))


def test_a_source_that_changed_while_it_was_inspected_is_not_remembered() -> None:
    memo = InspectionMemo(detect, bytes_max=1 << 20)
    source = Source(adapter(), "1")
    memo.note(source, memo.inspect(source, LIMITS), "2")
    assert not memo.recall(Source(adapter(), "2"))
    assert not memo.recall(Source(adapter(), "1"))
