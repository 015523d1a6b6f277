"""`tensorize` and `untensorize`: there and back, read by tensorizer itself, and what cannot be converted."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tensorizer import DecryptionParams, TensorSerializer

from kit.encrypted import raw, read_with_tensorizer
from warmshelf import errors
from warmshelf.tensorize import Secret, read_secret_file, tensorize, untensorize
from warmshelf.types import ArtifactKind

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

KEY = bytes(range(32))
NAMES = (
    "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool complex64 "
    "float8_e4m3fn float8_e5m2 float8_e8m0fnu float8_e4m3fnuz float8_e5m2fnuz float4_e2m1fn_x2"
)
DTYPES = [getattr(torch, name) for name in NAMES.split() if hasattr(torch, name)]

OPAQUE = frozenset(dtype for dtype in DTYPES if "float8" in str(dtype) or "float4" in str(dtype)) | {torch.bfloat16}
"""Those that numpy lacks: tensorizer cannot read a file with an empty tensor of one."""

Described = dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]


def noise(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Return every bit pattern that the dtype has, NaNs too."""
    count = torch.Size(shape).numel() * dtype.itemsize
    flat = torch.tensor(list(os.urandom(count)), dtype=torch.uint8)
    if dtype is torch.bool:
        return (flat % 2).bool().reshape(shape)
    return flat.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def described(state: Mapping[str, torch.Tensor]) -> Described:
    return {name: (t.dtype, tuple(t.shape), raw(t)) for name, t in state.items()}


def model(path: Path, state: dict[str, torch.Tensor], name: str = "model.safetensors") -> Path:
    path.mkdir(exist_ok=True)
    save_file(state, path / name)
    (path / "config.json").write_bytes(b'{"model_type": "llama"}\n')
    (path / "modeling.py").write_text("raise SystemExit")
    return path


def leftovers(path: Path) -> list[str]:
    return [name for name in os.listdir(path) if name.startswith(".")]


@pytest.mark.parametrize("secret", [None, Secret(KEY), Secret(b"a passphrase\n")], ids=["plain", "key", "passphrase"])
def test_every_dtype_and_shape_comes_back_bit_for_bit(tmp_path: Path, secret: Secret | None) -> None:
    """B22, B23, B25."""
    state = {str(dtype): noise(dtype, 3, 4) for dtype in DTYPES}
    state |= {"scalar": noise(torch.float32), "none": torch.empty(0, 4), "none at all": torch.empty(0).half()}
    there = tensorize(model(tmp_path / "hf", state), tmp_path / "tensors", secret=secret)
    assert (there.kind, there.file_names, there.tensor_count) == (ArtifactKind.BASE, ("model.tensors",), len(state))
    assert sorted(os.listdir(tmp_path / "tensors")) == ["config.json", "model.tensors"]
    decryption = None
    if secret is not None:
        is_key = secret.key is not None
        decryption = DecryptionParams.from_key(KEY) if is_key else DecryptionParams.from_string(secret.passphrase)
    assert described(read_with_tensorizer(tmp_path / "tensors" / "model.tensors", decryption)) == described(state)
    back = untensorize(tmp_path / "tensors", tmp_path / "back", secret=secret)
    assert back.tensor_count == len(state)
    assert described(load_file(tmp_path / "back" / "model.safetensors")) == described(state)
    assert (tmp_path / "back" / "config.json").read_bytes() == b'{"model_type": "llama"}\n'
    assert leftovers(tmp_path) == []


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=12).filter(
            lambda name: name != "__metadata__"
        ),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([None, Secret(KEY)]),
)
def test_any_set_of_tensors_comes_back(
    tmp_path: Path, tensors: dict[str, tuple[torch.dtype, list[int]]], secret: Secret | None
) -> None:
    path = tmp_path / os.urandom(8).hex()
    state = {name: noise(dtype, *shape) for name, (dtype, shape) in tensors.items()}
    state = {name: t for name, t in state.items() if t.numel() or t.dtype not in OPAQUE}
    state = {name: t for name, t in state.items() if t.dim() or "float4" not in str(t.dtype)}  # safetensors has no half
    state["w"] = torch.ones(1)
    tensorize(model(path, state), path / "tensors", secret=secret)
    untensorize(path / "tensors", path / "back", secret=secret)
    assert described(load_file(path / "back" / "model.safetensors")) == described(state)


def test_an_index_says_which_tensors_there_are(tmp_path: Path) -> None:
    first, second = {"a": torch.ones(3), "left out": torch.ones(1)}, {"b": torch.zeros(4)}
    path = model(tmp_path / "hf", first, "model-00001-of-00002.safetensors")
    save_file(second, path / "model-00002-of-00002.safetensors")
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    tensorize(path, tmp_path / "tensors")
    assert sorted(os.listdir(tmp_path / "tensors")) == ["config.json", "model.tensors"]
    assert read_with_tensorizer(tmp_path / "tensors" / "model.tensors", None).keys() == {"a", "b"}
    (path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(errors.SourceNotFound, match="model-00002-of-00002"):
        tensorize(path, tmp_path / "other")


def test_a_large_model_comes_back_as_files_with_an_index(tmp_path: Path) -> None:
    state = {f"layer.{i}": noise(torch.float32, 100) for i in range(5)}
    tensorize(model(tmp_path / "hf", state), tmp_path / "tensors")
    back = untensorize(tmp_path / "tensors", tmp_path / "back", shard_bytes_max=900)
    assert back.file_names == tuple(f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3))
    index = json.loads((tmp_path / "back" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 2000
    found: dict[str, torch.Tensor] = {}
    for file in back.file_names:
        part = load_file(tmp_path / "back" / file)
        assert all(index["weight_map"][name] == file for name in part)
        found |= part
    assert described(found) == described(state)
    again = tensorize(tmp_path / "back", tmp_path / "again")
    assert again.tensor_count == 5


def test_an_adapter_keeps_its_config_byte_for_byte(tmp_path: Path) -> None:
    state = {"base_model.model.q.lora_A.weight": noise(torch.bfloat16, 4, 8)}
    (tmp_path / "lora").mkdir()
    save_file(state, tmp_path / "lora" / "adapter_model.safetensors")
    config = b'\xef\xbb\xbf{"peft_type":"LORA",  "future": {"x": 1}}'
    (tmp_path / "lora" / "adapter_config.json").write_bytes(config)
    there = tensorize(tmp_path / "lora", tmp_path / "tensors")
    assert (there.kind, there.file_names) == (ArtifactKind.ADAPTER, ("adapter_model.tensors",))
    untensorize(tmp_path / "tensors", tmp_path / "back")
    assert sorted(os.listdir(tmp_path / "back")) == ["adapter_config.json", "adapter_model.safetensors"]
    assert (tmp_path / "back" / "adapter_config.json").read_bytes() == config
    assert described(load_file(tmp_path / "back" / "adapter_model.safetensors")) == described(state)
    with pytest.raises(errors.InvalidRequest, match="one file for all ranks"):
        tensorize(tmp_path / "lora", tmp_path / "ranks", tensor_parallel=2)


def test_every_rank_finds_the_whole_model_under_its_own_name(tmp_path: Path) -> None:
    state = {"w": noise(torch.float32, 16)}
    there = tensorize(model(tmp_path / "hf", state), tmp_path / "tensors", tensor_parallel=3)
    assert there.file_names == ("model-rank-000.tensors", "model-rank-001.tensors", "model-rank-002.tensors")
    files = [tmp_path / "tensors" / name for name in there.file_names]
    assert len({file.stat().st_ino for file in files}) == 1  # the bytes are there once
    for file in files:
        assert described(read_with_tensorizer(file, None)) == described(state)
    with pytest.raises(errors.UnsupportedFormat, match="3 files"):
        untensorize(tmp_path / "tensors", tmp_path / "back")
    untensorize(files[1], tmp_path / "back")
    assert described(load_file(tmp_path / "back" / "model.safetensors")) == described(state)


def test_tied_tensors_that_tensorizer_wrote_twice_stay_two_names(tmp_path: Path) -> None:
    """B12."""
    module = torch.nn.ModuleDict({"embed": torch.nn.Embedding(4, 3), "head": torch.nn.Linear(3, 4, bias=False)})
    module["head"].weight = module["embed"].weight
    serializer = TensorSerializer(str(tmp_path / "tied.tensors"))
    serializer.write_module(module)
    serializer.close()
    untensorize(tmp_path / "tied.tensors", tmp_path / "back")
    found = load_file(tmp_path / "back" / "model.safetensors")
    assert torch.equal(found["embed.weight"], found["head.weight"])


def test_progress_ends_with_all_bytes(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    path = model(tmp_path / "hf", {"a": torch.ones(10), "b": torch.ones(20)})
    tensorize(path, tmp_path / "tensors", tell=lambda *what: told.append(what))
    assert [(done, total >= done) for _, done, total in told] == [(40, True), (120, True)] or told[-1][1] == 120
    told.clear()
    untensorize(tmp_path / "tensors", tmp_path / "back", tell=lambda *what: told.append(what))
    assert told[-1][1:] == (120, 120)


# --- what cannot be converted -------------------------------------------------


def encrypted(tmp_path: Path) -> Path:
    path = model(tmp_path / "hf", {"w": torch.arange(5000)})
    tensorize(path, tmp_path / "tensors", secret=Secret(KEY))
    return tmp_path / "tensors"


@pytest.mark.parametrize(
    ("secret", "error"),
    [
        (None, errors.KeyMissing),
        (Secret(bytes(32)), errors.DecryptionFailed),
        (Secret(b"canary-passphrase"), errors.DecryptionFailed),
    ],
    ids=["no key", "another key", "a passphrase"],
)
def test_without_the_right_key_nothing_is_written(
    tmp_path: Path, secret: Secret | None, error: type[errors.WarmshelfError]
) -> None:
    with pytest.raises(error) as caught:
        untensorize(encrypted(tmp_path), tmp_path / "back", secret=secret)
    assert not (tmp_path / "back").exists()
    assert leftovers(tmp_path) == []
    assert "canary" not in str(caught.value) + repr(secret)


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    """B19."""
    path = encrypted(tmp_path) / "model.tensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(errors.DecryptionFailed):
        untensorize(path, tmp_path / "back", secret=Secret(KEY))
    plain = tmp_path / "plain"
    tensorize(tmp_path / "hf", plain)
    content = bytearray((plain / "model.tensors").read_bytes())
    content[-100] ^= 1
    (plain / "model.tensors").write_bytes(bytes(content))
    with pytest.raises(errors.DigestMismatch):
        untensorize(plain, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_more_tensors_than_a_file_can_name_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    state = {f"model.layers.{i}.mlp.experts.down_proj.weight": torch.zeros(1) for i in range(4000)}
    with pytest.raises(errors.UnsupportedFormat, match="256 KiB"):
        tensorize(model(tmp_path / "hf", state), tmp_path / "tensors")
    assert sorted(os.listdir(tmp_path)) == ["hf"]


@pytest.mark.parametrize("dtype", sorted(OPAQUE, key=str))
def test_an_empty_tensor_that_tensorizer_could_not_read_back_is_refused_by_name(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    with pytest.raises(errors.UnsupportedFormat, match="tensor 'hollow' is empty"):
        tensorize(model(tmp_path / "hf", {"hollow": torch.empty(0, 2, dtype=dtype)}), tmp_path / "tensors")
    assert sorted(os.listdir(tmp_path)) == ["hf"]


def test_a_target_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    path = model(tmp_path / "hf", {"w": torch.ones(1)})
    with pytest.raises(errors.InvalidRequest, match="not empty"):
        tensorize(path, path)


@pytest.mark.parametrize("content", [b"", b"\n", bytes(70_000)], ids=["empty", "a line break", "too long"])
def test_a_key_file_without_a_key_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(errors.InvalidRequest, match="key file"):
        read_secret_file(tmp_path / "key")
    with pytest.raises(errors.InvalidRequest, match="cannot be read"):
        read_secret_file(tmp_path / "none")


@pytest.mark.parametrize("content", [KEY, KEY.hex().encode(), KEY.hex().upper().encode() + b"\r\n"])
def test_a_key_is_32_bytes_raw_or_in_hexadecimal(content: bytes) -> None:
    assert Secret(content).key == KEY
    assert Secret(b"x" * 64).key is None


def test_a_broken_or_missing_source_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(errors.SourceNotFound, match=r"no model\.safetensors"):
        tensorize(tmp_path / "empty", tmp_path / "out")
    with pytest.raises(errors.SourceNotFound, match="cannot be read"):
        tensorize(tmp_path / "none", tmp_path / "out")
    path = model(tmp_path / "hf", {"w": torch.ones(1)})
    (path / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(errors.MalformedArtifact):
        tensorize(path, tmp_path / "out")
    (path / "model.tensors").write_bytes(b"|TZR|" + bytes(100))
    with pytest.raises(errors.MalformedArtifact):
        untensorize(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
