"""An exported directory has every bit of the artifact, as other libraries read it, whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from kit.adapters import config_bytes
from kit.models import Tensor, pattern
from kit.segments import write_segment
from warmshelf import ArtifactKind, Layout, SegmentSpec, TensorSpec, errors, export
from warmshelf.dtypes import DTYPES
from warmshelf.image import SegmentImage
from warmshelf.lease import Lease
from warmshelf.testing import FakeShelf
from warmshelf.types import Artifact, ArtifactSpec, LeaseInfo, Source

safetensors = pytest.importorskip("safetensors")

CONFIG_TEXT = b'\xef\xbb\xbf{"a": 1,\r\n "new": []}'


class NoClaim:
    """A lease that nobody granted."""

    info = LeaseInfo("a", 1, "nobody")
    superseded = False

    def release(self) -> None:
        pass


def leased(
    tensors: Mapping[str, Tensor],
    *,
    files: Mapping[str, bytes] | None = None,
    ties: Mapping[str, str] | None = None,
    kind: ArtifactKind = ArtifactKind.BASE,
) -> Lease:
    segment = write_segment(tensors, files=files, ties=ties)
    layout = Layout(1, (SegmentSpec(0, segment.segment_id, len(segment.data), segment.content_size_bytes),), ())
    artifact = Artifact("a", ArtifactSpec(Source("x")), kind)
    return Lease(NoClaim(), artifact, layout, SegmentImage(segment.data, len(segment.data)))


def read(path: Path) -> dict[str, Tensor]:
    """Return what the safetensors library finds in a file."""
    rows = safetensors.deserialize(path.read_bytes())
    return {name: (row["dtype"], tuple(row["shape"]), bytes(row["data"])) for name, row in rows}


def of_dtype(name: str, tag: int) -> Tensor:
    return name, (2, 8), pattern(tag, DTYPES[name].bits * 2)


ALL_DTYPES = {f"t.{name}": of_dtype(name, tag) for tag, name in enumerate(DTYPES) if name != "C128"}


def test_every_dtype_shape_and_name_is_read_by_the_library_bit_for_bit(tmp_path: Path) -> None:
    """B22, B25."""
    tensors: dict[str, Tensor] = {
        **ALL_DTYPES,
        "odd": ("U8", (3,), b"abc"),
        "scalar": ("BF16", (), b"\x7f\xc0"),
        "empty": ("F64", (0, 4), b""),
        'n"ä\\me': ("I64", (1,), pattern(9, 8)),
    }
    export.write_directory(leased(tensors, files={"config.json": CONFIG_TEXT}), tmp_path / "out")
    assert read(tmp_path / "out" / "model.safetensors") == tensors
    assert (tmp_path / "out" / "config.json").read_bytes() == CONFIG_TEXT
    assert sorted(os.listdir(tmp_path / "out")) == ["config.json", "model.safetensors"]
    assert os.listdir(tmp_path) == ["out"]


def test_torch_loads_it_as_it_is_leased(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file  # noqa: PLC0415 - needs torch

    import warmshelf.torch  # noqa: PLC0415

    names = ("BOOL", "U8", "F8_E5M2", "F8_E4M3", "F16", "BF16", "I32", "F32", "C64", "F64", "I64")
    tensors = {"odd": ("U8", (3,), b"abc"), **{f"t.{name}": of_dtype(name, 5) for name in names if name != "BOOL"}}
    lease = leased({**tensors, "t.BOOL": ("BOOL", (2,), b"\0\1")})
    export.write_directory(lease, tmp_path / "out")
    loaded, ours = load_file(tmp_path / "out" / "model.safetensors"), warmshelf.torch.tensors(lease)
    assert loaded.keys() == ours.keys()
    for name, tensor in loaded.items():
        assert (tensor.dtype, tensor.shape) == (ours[name].dtype, ours[name].shape)
        assert torch.equal(tensor.view(torch.uint8), ours[name].view(torch.uint8))


def test_tied_names_have_the_same_bytes_each(tmp_path: Path) -> None:
    lease = leased({"embed": ("F32", (4,), pattern(1, 16))}, ties={"head": "embed"})
    export.write_directory(lease, tmp_path / "out")
    tensor = ("F32", (4,), pattern(1, 16))
    assert read(tmp_path / "out" / "model.safetensors") == {"embed": tensor, "head": tensor}


def test_a_large_base_is_written_in_shards_with_an_index(tmp_path: Path) -> None:
    tensors = {f"layer.{i}": ("BF16", (10,), pattern(i, 20)) for i in range(5)}
    export.write_directory(leased({**tensors, "huge": ("U8", (99,), pattern(9, 99))}), tmp_path, shard_bytes_max=50)
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert files == [f"model-{i:05}-of-00004.safetensors" for i in range(1, 5)]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_bytes())
    assert index["metadata"] == {"total_size": 199}
    found = {name: file for file in files for name in read(tmp_path / file)}
    assert found == index["weight_map"]
    assert [sorted(read(tmp_path / file)) for file in files] == [
        ["layer.0", "layer.1"],
        ["layer.2", "layer.3"],
        ["layer.4"],
        ["huge"],
    ]


def test_shards_are_of_five_gigabytes_and_an_adapter_has_one_file() -> None:
    specs = [TensorSpec(name, "U8", (3 * 10**9,), 4096, 3 * 10**9) for name in "abc"]
    base = export.plan_files(specs, ArtifactKind.BASE, export.SHARD_BYTES_MAX)
    assert [[spec.name for spec in shard] for shard in base.values()] == [["a"], ["b"], ["c"]]
    adapter = export.plan_files(specs, ArtifactKind.ADAPTER, export.SHARD_BYTES_MAX)
    assert list(adapter) == ["adapter_model.safetensors"]


def test_transformers_loads_a_sharded_base(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    import warmshelf.torch  # noqa: PLC0415

    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=64
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    tensors: dict[str, Tensor] = {
        name: ("BF16", tuple(tensor.shape), tensor.contiguous().view(torch.uint8).numpy().tobytes())
        for name, tensor in model.state_dict().items()
    }
    lease = leased(tensors, files={"config.json": config.to_json_string().encode()})
    export.write_directory(lease, tmp_path / "out", shard_bytes_max=5000)
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16).state_dict()
    for name, tensor in warmshelf.torch.tensors(lease).items():
        assert torch.equal(loaded[name].view(torch.int16), tensor.view(torch.int16))


def test_peft_loads_an_adapter(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("peft")
    from peft import PeftConfig  # noqa: PLC0415 - slow to import
    from peft.utils.save_and_load import load_peft_weights  # noqa: PLC0415

    import warmshelf.torch  # noqa: PLC0415

    prefix = "base_model.model.layers.0.q_proj."
    tensors: dict[str, Tensor] = {
        f"{prefix}lora_A.weight": ("BF16", (4, 8), pattern(1, 64)),
        f"{prefix}lora_B.weight": ("F32", (8, 4), pattern(2, 128)),
    }
    config = config_bytes(lora_alpha=16, future_field={"x": 1})
    with FakeShelf() as shelf:
        shelf.add("a", tensors, config=config, files={"tokenizer.json": b"{}"})
        shelf.export("a", tmp_path / "out")
        lease = shelf.acquire("a")
    assert sorted(os.listdir(tmp_path / "out")) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "tokenizer.json",
    ]
    assert (tmp_path / "out" / "adapter_config.json").read_bytes() == config
    with pytest.warns(UserWarning, match="future_field"):
        assert PeftConfig.from_pretrained(tmp_path / "out").lora_alpha == 16
    loaded = load_peft_weights(tmp_path / "out", device="cpu")
    assert loaded.keys() == tensors.keys()
    for name, tensor in warmshelf.torch.tensors(lease).items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(loaded[name].view(torch.uint8), tensor.view(torch.uint8))


# --- what is refused, and what is left ---


def test_a_dtype_that_safetensors_lacks_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(errors.UnsupportedDtype, match="'w' has dtype C128") as caught:
        export.write_directory(leased({"w": ("C128", (1,), bytes(16))}), tmp_path / "out")
    assert caught.value.details == {"tensor": "w", "dtype": "C128"}
    assert os.listdir(tmp_path) == []


def test_the_name_that_safetensors_keeps_for_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.MalformedArtifact, match="__metadata__"):
        export.write_directory(leased({"__metadata__": ("U8", (1,), b"x")}), tmp_path / "out")


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", "", ".", "..", "a\0"])
def test_a_small_file_that_would_lie_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    """B54."""
    with pytest.raises(errors.SegmentCorrupt):
        export.write_directory(leased({"w": ("U8", (1,), b"x")}, files={name: b"x"}), tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with FakeShelf() as shelf, pytest.raises(errors.InvalidRequest, match="not empty"):
        shelf.export("nobody", tmp_path)  # before anything is acquired
    assert os.listdir(tmp_path) == ["mine"]


def test_an_empty_directory_is_taken_and_missing_ones_are_made(tmp_path: Path) -> None:
    lease = leased({"w": ("U8", (1,), b"x")})
    export.write_directory(lease, tmp_path)
    export.write_directory(lease, f"{tmp_path}-2/a/b/")
    assert os.listdir(tmp_path) == os.listdir(f"{tmp_path}-2/a/b") == ["model.safetensors"]


def test_what_is_behind_a_link_is_written_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "there")
    export.write_directory(leased({"w": ("U8", (1,), b"x")}), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert os.listdir(tmp_path / "there") == ["model.safetensors"]


@pytest.mark.parametrize("directory", ["", "file", "file/below"])
def test_a_place_that_is_no_directory_is_refused(tmp_path: Path, directory: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(errors.InvalidRequest):
        export.write_directory(leased({"w": ("U8", (1,), b"x")}), tmp_path / directory if directory else "")
    assert os.listdir(tmp_path) == ["file"]


class FullDisk:
    """A disk on which nothing becomes durable."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "fsync", self.refuse)

    def refuse(self, fd: int) -> None:
        raise OSError(28, os.strerror(28))


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FullDisk(monkeypatch)
    with pytest.raises(errors.InvalidRequest, match="No space left"):
        export.write_directory(leased({"w": ("U8", (1,), b"x")}), tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_what_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    lease = leased({"w": ("U8", (1,), b"x")})

    class Slow(dict[str, bytes]):
        """Small files that take so long that somebody else is faster."""

        def items(self):  # type: ignore[no-untyped-def]
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "theirs").write_text("theirs")
            return super().items()

    lease._image.__dict__["files"] = Slow()
    with pytest.raises(errors.InvalidRequest, match="not empty"):
        export.write_directory(lease, tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(tmp_path / "out") == ["theirs"]
