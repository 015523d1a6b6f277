"""What well-formed safetensors files mean, and which files of a directory count."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from warmshelf.errors import MalformedArtifact, SourceNotFound, SourceTruncated, UnsupportedFormat
from warmshelf.types import ArtifactKind
from warmshelfd.domain.extents import TensorEntry
from warmshelfd.formats.base import FormatLimits
from warmshelfd.formats.safetensors import SafetensorsFormat

Detect = Callable[..., Any]

INDEX = "model.safetensors.index.json"
SHARDS = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]


def floats(*names: str) -> bytes:
    """Return a file with one F32 scalar of each name, in that order."""
    header = {name: {"dtype": "F32", "shape": [], "data_offsets": [4 * i, 4 * i + 4]} for i, name in enumerate(names)}
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(4 * len(names))


def index(weight_map: dict[str, str], **more: object) -> bytes:
    return json.dumps({**more, "weight_map": weight_map}).encode()


def sharded() -> dict[str, bytes]:
    files = {name: floats(f"t{i}.a", f"t{i}.b") for i, name in enumerate(SHARDS)}
    listed = {f"t{i}.{part}": name for i, name in enumerate(SHARDS) for part in "ab"}
    return {**files, INDEX: index(listed, metadata={"total_size": 24, "more": [1.5, None, {"x": True}]})}


def names_of(inspected: Any) -> list[str]:
    return [entry.name for entry in inspected.entries]


def test_one_file_tells_every_tensor(detect_in: Detect) -> None:
    raw = (
        b'{"__metadata__":{"format":"pt"},'
        b'"w":{"data_offsets":[0,12],"shape":[3,2],"dtype":"BF16"},'
        b'"s":{"dtype":"I64","shape":[],"data_offsets":[12,20]},'
        b'"e":{"dtype":"F8_E4M3","shape":[0,4],"data_offsets":[20,20]},'
        b'"p":{"dtype":"F4","shape":[2,8],"data_offsets":[20,28]}}\n  '
    )
    inspected = detect_in({"tiny.safetensors": len(raw).to_bytes(8, "little") + raw + bytes(28)})
    start = 8 + len(raw)
    assert inspected.kind is ArtifactKind.BASE
    assert (inspected.format_name, inspected.file_names) == ("safetensors", ("tiny.safetensors",))
    assert inspected.entries == (
        TensorEntry("w", "BF16", (3, 2), 0, start, 12),
        TensorEntry("s", "I64", (), 0, start + 12, 8),
        TensorEntry("e", "F8_E4M3", (0, 4), 0, start + 20, 0),
        TensorEntry("p", "F4", (2, 8), 0, start + 20, 8),
    )
    assert inspected.adapter is None


@pytest.mark.parametrize("name", ["plain", "", "../../etc/passwd", "a b", "ключ", "模型.权重", "emoji 🙂", '"', "\\"])
def test_a_tensor_may_have_any_printable_name(name: str, detect_in: Detect) -> None:
    for ascii_only in (True, False):
        raw = json.dumps({name: {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, ensure_ascii=ascii_only)
        data = raw.encode()
        assert names_of(detect_in({"m.safetensors": len(data).to_bytes(8, "little") + data + b"x"})) == [name]


def test_entries_are_sorted_by_file_offset_and_name(detect_in: Detect) -> None:
    raw = json.dumps(
        {
            "y": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]},
            "z": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
            "b": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]},
            "a": {"dtype": "U8", "shape": [1], "data_offsets": [2, 3]},
        }
    ).encode()
    one = len(raw).to_bytes(8, "little") + raw + bytes(3)
    inspected = detect_in({"2.safetensors": floats("x"), "1.safetensors": one})
    assert inspected.file_names == ("1.safetensors", "2.safetensors")
    assert [(e.file_index, e.name) for e in inspected.entries] == [(0, "b"), (0, "y"), (0, "z"), (0, "a"), (1, "x")]


def test_the_index_decides_which_files_count(detect_in: Detect) -> None:
    """Promise 6: neither the file beside the shards nor model.safetensors is read."""
    files = sharded() | {"consolidated.safetensors": b"broken", "model.safetensors": b"broken"}
    inspected = detect_in(files)
    assert inspected.file_names == tuple(SHARDS)
    assert names_of(inspected) == ["t0.a", "t0.b", "t1.a", "t1.b", "t2.a", "t2.b"]


def test_a_change_of_the_index_is_a_change_of_the_artifact(detect_in: Detect) -> None:
    """Promise 4."""
    assert set(detect_in(sharded() | {"config.json": b"{}"}).all_names) == {*SHARDS, "config.json", INDEX}


def test_tensors_that_the_index_does_not_list_are_left_out(detect_in: Detect) -> None:
    listed = {"a": "one.safetensors", "c": "two.safetensors"}
    files = {"one.safetensors": floats("a", "b"), "two.safetensors": floats("a", "c"), INDEX: index(listed)}
    inspected = detect_in(files)
    assert [(e.name, e.file_index) for e in inspected.entries] == [("a", 0), ("c", 1)]


def test_model_index_comes_before_any_other(detect_in: Detect) -> None:
    files = {
        "a.safetensors": floats("a"),
        "b.safetensors": floats("b"),
        "alt.safetensors.index.json": index({"a": "a.safetensors"}),
        INDEX: index({"b": "b.safetensors"}),
    }
    assert names_of(detect_in(files)) == ["b"]


def test_model_safetensors_comes_before_an_index_of_another_name(detect_in: Detect) -> None:
    files = {
        "model.safetensors": floats("whole"),
        "model.fp16-1.safetensors": floats("half"),
        "model.fp16.safetensors.index.json": index({"half": "model.fp16-1.safetensors"}),
    }
    assert names_of(detect_in(files)) == ["whole"]


def test_of_two_other_indexes_the_first_by_name_decides(detect_in: Detect) -> None:
    files = {
        "a.safetensors": floats("a"),
        "b.safetensors": floats("b"),
        "y.safetensors.index.json": index({"b": "b.safetensors"}),
        "x.safetensors.index.json": index({"a": "a.safetensors"}),
    }
    assert names_of(detect_in(files)) == ["a"]


def test_model_safetensors_counts_alone_where_there_is_no_index(detect_in: Detect) -> None:
    files = {"model.safetensors": floats("a"), "model.fp16.safetensors": floats("a")}
    assert detect_in(files).file_names == ("model.safetensors",)


def test_files_without_an_index_are_all_taken(detect_in: Detect) -> None:
    files = {"two.safetensors": floats("b"), "one.safetensors": floats("a")}
    inspected = detect_in(files)
    assert inspected.file_names == ("one.safetensors", "two.safetensors")
    assert names_of(inspected) == ["a", "b"]


def test_one_name_in_two_files_without_an_index_is_refused(detect_in: Detect) -> None:
    with pytest.raises(MalformedArtifact, match=r"one\.safetensors and two\.safetensors both hold a tensor 'a'"):
        detect_in({"one.safetensors": floats("a", "b"), "two.safetensors": floats("c", "a")})


def test_a_missing_shard_is_named(detect_in: Detect) -> None:
    """B27."""
    files = sharded()
    del files[SHARDS[1]]
    with pytest.raises(SourceNotFound, match=SHARDS[1]):
        detect_in(files)
    del files[INDEX]
    with pytest.raises(SourceNotFound, match=SHARDS[1]):
        detect_in(files)


def test_a_cut_shard_is_named(detect_in: Detect) -> None:
    """B27."""
    files = sharded()
    files[SHARDS[2]] = files[SHARDS[2]][:-1]
    with pytest.raises(SourceTruncated, match=SHARDS[2]):
        detect_in(files)


def test_a_shard_that_lacks_a_promised_tensor_is_named_with_it(detect_in: Detect) -> None:
    """B27."""
    files = sharded()
    files[SHARDS[0]] = floats("t0.a")
    with pytest.raises(MalformedArtifact) as caught:
        detect_in(files)
    assert caught.value.details == {"file": SHARDS[0], "tensor": "t0.b"}


def test_a_whole_set_of_shards_without_an_index_is_taken(detect_in: Detect) -> None:
    files = sharded()
    del files[INDEX]
    assert len(detect_in(files).entries) == 6


@pytest.mark.parametrize(
    "shard", ["../secret.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "", ".", "..", "x\0"]
)
def test_a_shard_elsewhere_is_refused(shard: str, memory_files: Any) -> None:
    """B54: by its name alone; nothing but the index is read."""
    files = memory_files({INDEX: index({"a": shard})})
    with pytest.raises(MalformedArtifact, match="not the name of a file beside it"):
        SafetensorsFormat().inspect(files, FormatLimits())
    assert files.read_names == [INDEX]


def test_an_index_of_pickles_says_how_to_convert_them(detect_in: Detect) -> None:
    with pytest.raises(UnsupportedFormat, match=r"python -c .*model-1\.bin"):
        detect_in({INDEX: index({"a": "model-1.bin"}), "model-1.bin": b"PK\x03\x04"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "'{' should stand"),
        (b"[]", "'{' should stand"),
        (b"{}", "no weight_map that names a tensor"),
        (b'{"weight_map":{}}', "no weight_map that names a tensor"),
        (b'{"weight_map":[]}', "'{' should stand"),
        (b'{"weight_map":{"a":1}}', "a string should begin"),
        (b'{"weight_map":{"a":"x","a":"x"}}', "'a' stands there twice"),
        (b'{"weight_map":{"a":"x"},"weight_map":{"a":"x"}}', "'weight_map' stands there twice"),
        (b'{"metadata":{"a":1,"a":2},"weight_map":{"a":"x"}}', "'a' stands there twice"),
        (b'{"metadata":NaN,"weight_map":{"a":"x"}}', "a value should begin"),
        (b'{"metadata":' + b"[" * 1000 + b',"weight_map":{"a":"x"}}', "nested deeper than 16"),
        (b'{"metadata":"' + b"x" * 2000 + b'","weight_map":{"a":"x"}}', "a string has 2000 bytes, at most 1000"),
        (b'{"metadata":[' + b"1," * 600 + b'1],"weight_map":{"a":"x"}}', "more than 1000 bytes"),
        (b'{"weight_map":{"a":"x"}}x', "something follows the JSON"),
        (b'{"weight_map":{"a":"' + b"x" * 256 + b'"}}', "a string has 256 bytes, at most 255"),
        (b'{"weight_map":{"a":"x","b":"x","c":"x"}}', "more than 2 tensors"),
        (b" " * 5001, "has 5001 bytes, at most 5000"),
    ],
)
def test_a_broken_index_is_refused(text: bytes, says: str, detect_in: Detect) -> None:
    limits = FormatLimits(index_bytes_max=5000, metadata_bytes_max=1000, tensor_count_max=2)
    with pytest.raises(MalformedArtifact) as caught:
        detect_in({INDEX: text, "x": floats("a")}, limits)
    assert says in caught.value.message
    assert INDEX in caught.value.message


def test_the_limit_of_tensors_counts_all_files(detect_in: Detect) -> None:
    files = {"1.safetensors": floats("a", "b"), "2.safetensors": floats("c")}
    assert len(detect_in(files, FormatLimits(tensor_count_max=3)).entries) == 3
    with pytest.raises(MalformedArtifact, match="more than 2 tensors"):
        detect_in(files, FormatLimits(tensor_count_max=2))


def test_config_and_tokenizer_files_are_kept(detect_in: Detect) -> None:
    kept = ["config.json", "merges.txt", "qwen.tiktoken", "template.jinja", "tokenizer.model"]
    left = ["README.md", "modeling.py", "model.fp16.safetensors.index.json", "optimizer.bin"]
    files = {"model.safetensors": floats("a"), **dict.fromkeys(reversed(kept), b"x"), **dict.fromkeys(left, b"x")}
    assert detect_in(files).small_files == tuple(kept)


def test_a_long_file_is_not_a_small_one(detect_in: Detect) -> None:
    files = {"model.safetensors": floats("a"), "data.json": bytes(11), "config.json": bytes(10)}
    assert detect_in(files, FormatLimits(small_file_bytes_max=10)).small_files == ("config.json",)


def test_too_many_bytes_of_small_files_are_refused(detect_in: Detect) -> None:
    files = {"model.safetensors": floats("a"), "a.json": bytes(6), "b.json": bytes(6)}
    with pytest.raises(MalformedArtifact, match="12 bytes, at most 11"):
        detect_in(files, FormatLimits(small_files_bytes_max=11))
