"""Adapters where they meet what else the daemon keeps: tied bases, other versions, broken neighbours, hostile links."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import warmshelf
import warmshelf.torch
from kit.adapters import CONFIG, PREFIX, WEIGHTS, Shape, adapter_files, pair
from kit.models import safetensors_bytes, write_model
from kit.plain import Plain
from kit.processes import Daemon, eventually, read_all
from kit.tensors_file import Written, tensors_file
from warmshelf import BaseCheck, errors

MIB = 1 << 20
Q = "model.layers.0.q_proj"
EMBED, HEAD = "model.embed_tokens", "lm_head"


@pytest.fixture
def shelf(shared: Daemon) -> Iterator[warmshelf.Shelf]:
    with shared.connect(timeout=30) as it:
        yield it


def write(directory: Path, files: dict[str, bytes]) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return directory


def filled_adapter(value: float, shapes: dict[str, Shape] | None = None, **fields: object) -> dict[str, bytes]:
    """Return an adapter whose tensors are all of one value."""
    files = adapter_files(shapes or pair(Q), **fields)
    bits = torch.tensor(value, dtype=torch.bfloat16).view(torch.int16).item().to_bytes(2, "little", signed=True)
    tensors = {name: ("BF16", shape, bits * math.prod(shape)) for name, shape in (shapes or pair(Q)).items()}
    return files | {WEIGHTS: safetensors_bytes(tensors)}


def as_tensors_file(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the same adapter with its weights in tensorizer's form."""
    header_bytes = int.from_bytes(files[WEIGHTS][:8], "little")
    rows = json.loads(files[WEIGHTS][8 : 8 + header_bytes])
    data = files[WEIGHTS][8 + header_bytes :]
    written = [
        Written(name.encode(), b"<V2\0torch.bfloat16", tuple(row["shape"]), data[slice(*row["data_offsets"])])
        for name, row in rows.items()
    ]
    return {CONFIG: files[CONFIG], "adapter_model.tensors": tensors_file(written, version=2).content}


def value_of(lease: warmshelf.Lease) -> float:
    (value,) = {tensor.float().unique().item() for tensor in warmshelf.torch.tensors(lease).values()}
    return value


def base_check(artifact: warmshelf.Artifact) -> tuple[BaseCheck, tuple[str, ...]]:
    adapter = artifact.inspection.adapter if artifact.inspection else None
    assert adapter is not None
    return adapter.base_check, adapter.unmatched_module_names


# --- B12: tied weights -------------------------------------------------------


def tied_base(directory: Path) -> Path:
    """Write a base of which tensorizer has saved one tensor under two names."""
    from tensorizer import TensorSerializer  # noqa: PLC0415 - seconds to import

    embed = torch.arange(40, dtype=torch.float32).reshape(10, 4)
    directory.mkdir()
    serializer = TensorSerializer(str(directory / "model.tensors"))
    serializer.write_state_dict({f"{EMBED}.weight": embed, f"{HEAD}.weight": embed, f"{Q}.weight": torch.ones(4, 4)})
    serializer.close()
    return directory


def test_adapters_on_a_tied_base_in_tensorizers_form_leave_the_base_and_each_other_alone(
    shelf: warmshelf.Shelf, models: Path
) -> None:
    """B12: one adapter saves the output layer, the other both ends; the base's two names stay equal for the next."""
    shelf.register("base", tied_base(models / "base"))
    only_head = {f"{PREFIX}{HEAD}.weight": (10, 4), **pair(Q, columns=4, rows=4)}
    both = {f"{PREFIX}{EMBED}.weight": (10, 4), **only_head}
    for name, shapes, saved in (("head", only_head, [HEAD]), ("both", both, ["embed_tokens", HEAD])):
        files = adapter_files(shapes, modules_to_save=saved)
        artifact = shelf.register(name, write(models / name, files), base="base")
        assert base_check(artifact) == (BaseCheck.MATCHED, ())
    with shelf.acquire("base", timeout=20) as base, shelf.acquire("both", timeout=20) as own:
        first, mine = warmshelf.torch.tensors(base), warmshelf.torch.tensors(own)
        assert torch.equal(first[f"{EMBED}.weight"], first[f"{HEAD}.weight"])
        assert not torch.equal(mine[f"{PREFIX}{EMBED}.weight"], mine[f"{PREFIX}{HEAD}.weight"])
        first[f"{HEAD}.weight"].zero_()
        mine[f"{PREFIX}{HEAD}.weight"].zero_()
    with shelf.acquire("base", timeout=20) as base, shelf.acquire("head", timeout=20) as own:
        again = warmshelf.torch.tensors(base)
        assert torch.equal(again[f"{EMBED}.weight"], torch.arange(40.0).reshape(10, 4))
        assert torch.equal(again[f"{HEAD}.weight"], again[f"{EMBED}.weight"])
        head = warmshelf.torch.tensors(own)[f"{PREFIX}{HEAD}.weight"]
        assert not torch.equal(head.float(), again[f"{EMBED}.weight"])


def test_an_output_layer_that_is_tied_away_is_there_for_an_adapter(shelf: warmshelf.Shelf, models: Path) -> None:
    """B12: a base without its name, one with another embedding's shape, and one where two embeddings leave it open."""
    data = {"a": bytes(80), "b": bytes(160)}
    shapes = {f"{PREFIX}{HEAD}.weight": (10, 4), **pair(Q, columns=4, rows=4)}
    source = write(models / "a", adapter_files(shapes, modules_to_save=[HEAD]))
    rows = {f"{EMBED}.weight": ("BF16", (10, 4), data["a"]), f"{Q}.weight": ("BF16", (4, 4), bytes(32))}
    (models / "one.safetensors").write_bytes(safetensors_bytes(rows))
    two = rows | {"encoder.embed_tokens.weight": ("BF16", (20, 4), data["b"])}
    (models / "two.safetensors").write_bytes(safetensors_bytes(two))
    for name, expected in (("one", (BaseCheck.MATCHED, ())), ("two", (BaseCheck.PARTIAL, (HEAD,)))):
        shelf.register(name, models / f"{name}.safetensors")
        assert base_check(shelf.register(f"a-{name}", source, base=name)) == expected


# --- B01: the same ID, other weights -----------------------------------------


@pytest.mark.parametrize("form", ["safetensors", "tensors"])
def test_an_adapter_trained_on_is_refused_under_its_id_or_made_a_generation_of_its_own(
    shared: Daemon, shelf: warmshelf.Shelf, models: Path, form: str
) -> None:
    """B01: lora_B all 1.0, then all 2.0, warm and cold, mapped and streamed."""
    turn: Callable[[dict[str, bytes]], dict[str, bytes]] = as_tensors_file if form == "tensors" else dict
    source = write(models / "a", turn(filled_adapter(1.0)))
    with warmshelf.connect(shared.tcp_address, timeout=30) as cold:
        shelf.register("t1", source)
        old = shelf.acquire("t1", timeout=20)
        write(models / "a", turn(filled_adapter(2.0)))
        with pytest.raises(errors.SourceChanged):
            shelf.register("t1", source)
        with cold.acquire("t1", timeout=20) as lease:
            assert (value_of(lease), lease.generation) == (1.0, 1)
        assert shelf.register("t1", source, replace=True).generation == 2
        for each in (shelf, cold):
            with each.acquire("t1", timeout=20) as lease:
                assert (value_of(lease), lease.generation) == (2.0, 2)
        assert value_of(old) == 1.0
        eventually(lambda: old.superseded, "the warm worker was told")
        old.release()


def test_an_adapters_config_belongs_to_its_content(shelf: warmshelf.Shelf, models: Path) -> None:
    """B01, B06: another alpha on the same tensors is another adapter."""
    source = write(models / "a", filled_adapter(1.0, lora_alpha=8))
    shelf.register("t1", source)
    with shelf.acquire("t1", timeout=20):
        digest = shelf.get("t1").digest
    write(models / "a", filled_adapter(1.0, lora_alpha=16))
    with pytest.raises(errors.SourceChanged):
        shelf.register("t1", source)
    shelf.register("t1", source, replace=True)
    with shelf.acquire("t1", timeout=20) as lease:
        assert lease.config["lora_alpha"] == 16
    assert shelf.get("t1").digest != digest


# --- B17, B21: adapters of others, broken adapters ---------------------------


def test_shapes_decide_and_a_name_of_the_base_is_never_looked_up(shelf: warmshelf.Shelf, models: Path) -> None:
    """B17: the right name with wrong shapes, and the wrong name with right ones."""
    weight = {f"{Q}.weight": ("BF16", (8, 8), bytes(128))}
    (models / "b.safetensors").write_bytes(safetensors_bytes(weight))
    shelf.register("meta/tiny", models / "b.safetensors")
    wrong = adapter_files(pair(Q, columns=16, rows=8), base_model_name_or_path="meta/tiny")
    with pytest.raises(errors.BaseMismatch) as caught:
        shelf.register("wrong", write(models / "wrong", wrong), base="meta/tiny")
    assert caught.value.details["module"] == Q
    assert (caught.value.details["expected_shape"], caught.value.details["got_shape"]) == ("[8, 8]", "[8, 16]")
    for name in ("https://10.255.255.1/none", "s3://gone/base", "../../etc", "meta/other"):
        right = write(models / "right", adapter_files(pair(Q), base_model_name_or_path=name))
        assert base_check(shelf.register("right", right, base="meta/tiny")) == (BaseCheck.MATCHED, ())
        shelf.remove("right")


def no_config(files: dict[str, bytes]) -> None:
    del files[CONFIG]


def no_weights(files: dict[str, bytes]) -> None:
    del files[WEIGHTS]


def wrong_shape(files: dict[str, bytes]) -> None:
    files.update(adapter_files({**pair(Q), f"{PREFIX}{Q}.lora_B.weight": (8, 3)}))


def wrong_rank(files: dict[str, bytes]) -> None:
    files.update(adapter_files(pair(Q), r=8))


def empty_pair(files: dict[str, bytes]) -> None:
    files.update(adapter_files({f"{PREFIX}{Q}.lora_A.weight": (0, 8), f"{PREFIX}{Q}.lora_B.weight": (8, 0)}))


def cut_weights(files: dict[str, bytes]) -> None:
    files[WEIGHTS] = files[WEIGHTS][:-1]


def other_kind(files: dict[str, bytes]) -> None:
    files[CONFIG] = files[CONFIG].replace(b"LORA", b"IA3")


BAD: dict[Callable[[dict[str, bytes]], None], type[errors.WarmshelfError]] = {
    no_config: errors.ConfigMissing,
    no_weights: errors.SourceNotFound,
    wrong_shape: errors.MalformedArtifact,
    wrong_rank: errors.MalformedArtifact,
    empty_pair: errors.MalformedArtifact,
    cut_weights: errors.SourceTruncated,
    other_kind: errors.UnsupportedFormat,
}


def test_bad_adapters_beside_a_good_stream_harm_nobody_and_can_be_registered_again(
    shared: Daemon, models: Path
) -> None:
    """B21, B25: each cause has its own error, and the good one is served to its end."""
    tensors = write_model(models / "good.safetensors", 1, size=16 * MIB)
    with Plain(shared.tcp_address) as plain, shared.connect(timeout=30) as shelf:
        plain.register("good", models / "good.safetensors")
        stream = plain.read(plain.acquire("good").lease.lease_id)
        parts = [next(stream).data]
        segments = shared.segments()
        for spoil, error in BAD.items():
            files = adapter_files(pair(Q))
            spoil(files)
            with pytest.raises(error) as caught:
                shelf.register("x", write(models / "x", files))
            assert type(caught.value) is error
            with pytest.raises(errors.ArtifactNotFound):
                shelf.acquire("x", timeout=5)
            assert shared.segments() == segments
            parts.append(next(stream).data)
        shelf.register("x", write(models / "x", adapter_files(pair(Q))))
        with shelf.acquire("x", timeout=20) as lease:
            assert len(lease) == 2
        whole = b"".join([*parts, *(chunk.data for chunk in stream)])
        assert all(data in whole for data in tensors.values())


@pytest.mark.parametrize("at", [0.3, 0.9], ids=["in the first tensor", "in the last"])
def test_a_flipped_bit_of_an_adapter_in_tensorizers_form_is_noticed_before_it_is_served(
    shared: Daemon, shelf: warmshelf.Shelf, models: Path, at: float
) -> None:
    """B19: and the good file loads at once."""
    files = as_tensors_file(filled_adapter(1.0, {**pair(Q, columns=256), **pair("model.layers.1.q_proj", columns=256)}))
    good = files["adapter_model.tensors"]
    data_at = [i for i in range(len(good) - 64) if good[i : i + 64] == b"\x80\x3f" * 32]
    place = data_at[int(at * (len(data_at) - 1))]
    spoilt = bytearray(good)
    spoilt[place] ^= 1
    shelf.register("x", write(models / "x", files | {"adapter_model.tensors": bytes(spoilt)}))
    with pytest.raises(errors.DigestMismatch) as caught:
        shelf.acquire("x", timeout=20)
    assert "lora_" in caught.value.message
    assert shared.segments() == []
    shelf.register("x", write(models / "x", files), replace=True)
    with shelf.acquire("x", timeout=20) as lease:
        assert value_of(lease) == 1.0


# --- B54: links out of an adapter's directory --------------------------------


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, "tokenizer.json"])
def test_a_link_of_an_adapter_that_leads_out_is_refused_whatever_is_there(
    shared: Daemon, shelf: warmshelf.Shelf, models: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    """B54: config, weights and small files alike; a link that stays inside works."""
    files = {**adapter_files(pair(Q)), "tokenizer.json": b"{}"}
    said = []
    for target in ("/etc/hostname", "/etc/nothing-of-this-name"):
        directory = write(models / "a", {key: data for key, data in files.items() if key != name})
        (directory / name).symlink_to(target)
        with pytest.raises(errors.SourceNotAllowed) as caught:
            shelf.register("a", directory)
        said.append(caught.value.message.replace(target, "TARGET"))
    assert said[0] == said[1]
    (models / "elsewhere").write_bytes(files[name])
    directory = write(models / "a", {key: data for key, data in files.items() if key != name})
    (directory / name).symlink_to(models / "elsewhere")
    shelf.register("a", directory)
    with shelf.acquire("a", timeout=20) as lease:
        assert len(read_all(lease)) == 2
        assert lease.files["tokenizer.json"] == b"{}"
