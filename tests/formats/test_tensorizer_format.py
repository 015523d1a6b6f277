"""What well-formed `.tensors` files mean, and which file of a directory counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kit.tensors_file import WRITERS_INDEX_BYTES, Written, tensors_file
from warmshelf.errors import UnsupportedFormat
from warmshelf.types import ArtifactKind
from warmshelfd.domain.extents import TensorEntry
from warmshelfd.formats.base import FormatLimits, Inspected
from warmshelfd.formats.tensorizer import TensorizerFormat

Inspect = Callable[..., Inspected]


@pytest.fixture
def inspect_in(memory_files: Any) -> Inspect:
    """Inspect files given as ``{name: bytes}``."""

    def run(content: Mapping[str, bytes], limits: FormatLimits | None = None) -> Inspected:
        return TensorizerFormat().inspect(memory_files(content), limits or FormatLimits())

    return run


def one(name: bytes = b"w", **changes: Any) -> bytes:
    tensor = {"dtype": b"<f4", "shape": (2,), "data": bytes(8), **changes}
    return tensors_file([Written(name, **tensor)]).content


def test_a_file_tells_every_tensor(inspect_in: Inspect) -> None:
    """B22, B23, B25: opaque dtypes, scalars, and tensors without elements."""
    file = tensors_file(
        [
            Written(b"w", b"<V2\0torch.bfloat16", (3, 2), bytes(12)),
            Written(b"s", b"<i8", (), bytes(8)),
            Written(b"e", b"|V1\0torch.float8_e4m3fn", (0, 4), b""),
            Written(b"p", b"|V1\0torch.float4_e2m1fn_x2", (2, 4), bytes(8)),
            Written(b"b", b"|b1", (3,), bytes(3), kind=1, module=7),
        ],
        version=2,
        index_bytes=WRITERS_INDEX_BYTES,
    )
    inspected = inspect_in({"tiny.tensors": file.content})
    assert inspected.kind is ArtifactKind.BASE
    assert (inspected.format_name, inspected.file_names) == ("tensorizer", ("tiny.tensors",))
    at = [file.places[f"data{i}"][0] for i in range(5)]
    assert inspected.entries == (
        TensorEntry("w", "BF16", (3, 2), 0, at[0], 12),
        TensorEntry("s", "I64", (), 0, at[1], 8),
        TensorEntry("e", "F8_E4M3", (0, 4), 0, at[2], 0),
        TensorEntry("p", "F4", (2, 8), 0, at[3], 8),
        TensorEntry("b", "BOOL", (3,), 0, at[4], 3),
    )
    assert inspected.adapter is None


def test_dimensions_beyond_32_bits_are_read(inspect_in: Inspect) -> None:
    tensors = [Written(b"a", b"<f4", (2,), bytes(8)), Written(b"long", b"<f4", (0, (1 << 32) + 5), b"")]
    inspected = inspect_in({"m.tensors": tensors_file(tensors, version=5).content})
    assert [entry.shape for entry in inspected.entries] == [(2,), (0, (1 << 32) + 5)]


def test_a_version_that_was_meant_for_more_is_read(inspect_in: Inspect) -> None:
    """Version 4 is for tensors without bytes; what is not one of them is there."""
    tensors = [Written(b"empty", b"<f4", (0, 3), b""), Written(b"w", b"<f4", (1,), bytes(4))]
    assert len(inspect_in({"m.tensors": tensors_file(tensors, version=4).content}).entries) == 2


@pytest.mark.parametrize("name", ["plain", ".weight", "../../etc/passwd", "a b", "ключ", "模型.权重", "🙂", '["a",0]'])
def test_a_plain_name_is_kept_as_it_stands(name: str, inspect_in: Inspect) -> None:
    assert [entry.name for entry in inspect_in({"m.tensors": one(name.encode())}).entries] == [name]


@pytest.mark.parametrize("path", [("layers", 0, "weight"), (0,), (3, "é", 'quote"', "line\n"), ("", "")])
def test_a_path_is_kept_as_its_json(path: tuple[str | int, ...], inspect_in: Inspect) -> None:
    text = json.dumps(path, separators=(",", ":"))
    assert [entry.name for entry in inspect_in({"m.tensors": one(b"\x1e" + text.encode())}).entries] == [text]


def test_model_tensors_comes_before_any_other(inspect_in: Inspect) -> None:
    files = {"a.tensors": b"broken", "model.tensors": one(), "model-rank-000.tensors": b"broken"}
    assert inspect_in(files).file_names == ("model.tensors",)


def test_the_only_file_counts(inspect_in: Inspect) -> None:
    assert inspect_in({"weights.tensors": one(), "config.json": b"{}"}).file_names == ("weights.tensors",)


def test_several_files_of_equal_standing_are_refused(inspect_in: Inspect) -> None:
    with pytest.raises(UnsupportedFormat, match=r"a\.tensors and 1 more .* none is named model\.tensors"):
        inspect_in({"b.tensors": one(), "a.tensors": one()})


@pytest.mark.parametrize("beside", [{}, {"model-rank-001.tensors": b""}, {"a.tensors": b""}])
def test_parts_of_ranks_are_refused_by_name(beside: dict[str, bytes], inspect_in: Inspect) -> None:
    with pytest.raises(UnsupportedFormat, match=r"model-rank-000\.tensors is one rank's part"):
        inspect_in({"model-rank-000.tensors": one(), **beside})


def test_config_and_tokenizer_files_are_kept(inspect_in: Inspect) -> None:
    files = {"model.tensors": one(), "config.json": b"{}", "tokenizer.model": b"x", "README.md": b"x"}
    assert inspect_in(files).small_files == ("config.json", "tokenizer.model")


def test_names_of_files_tell_the_format() -> None:
    matches = TensorizerFormat().matches
    assert matches({"x.tensors": 1})
    assert matches({"model-rank-000.tensors": 1})  # to be refused by name
    assert not matches({"model.safetensors": 1, "model.tensors.json": 1, "tensors": 1})


def test_limits_are_the_last_that_is_accepted(inspect_in: Inspect) -> None:
    tensors = [Written("é".encode() * 256, b"|u1", (1,) * 8, b"x")]
    tensors += [Written(str(i).encode(), b"|u1", (0,), b"") for i in range(99)]
    file = tensors_file(tensors, index_bytes=1 << 16)
    limits = FormatLimits(header_bytes_max=1 << 16, tensor_count_max=100, name_bytes_max=512, element_count_max=1)
    assert len(inspect_in({"m.tensors": file.content}, limits).entries) == 100


def test_headers_that_lie_close_are_read_together(memory_files: Any) -> None:
    """In few reads, however many tensors there are."""
    tensors = [Written(b"tensor.number.%d" % i, b"|u1", (100,), bytes(100)) for i in range(5_000)]
    files = memory_files({"m.tensors": tensors_file(tensors).content})
    assert len(TensorizerFormat().inspect(files, FormatLimits()).entries) == 5_000
    assert len(files.read_names) < 10


def test_large_data_is_not_read_along(memory_files: Any) -> None:
    tensors = [Written(b"%d" % i, b"|u1", (1 << 20,), bytes(1 << 20)) for i in range(4)]
    files = memory_files({"m.tensors": tensors_file(tensors).content})
    read_bytes = 0

    class Counting:
        def files(self) -> Mapping[str, int]:
            return files.files()

        def read(self, name: str, offset: int, size: int) -> bytes:
            nonlocal read_bytes
            read_bytes += size
            return bytes(files.read(name, offset, size))

    TensorizerFormat().inspect(Counting(), FormatLimits())
    assert read_bytes < 1000
