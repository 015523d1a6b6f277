"""What a directory in PEFT's form says: which file, which modules, which ranks, which features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kit.adapters import CONFIG, PREFIX, WEIGHTS, Shape, adapter_files, config_bytes, pair, weights_bytes
from kit.tensors_file import Written, tensors_file
from warmshelf.errors import ConfigMissing, MalformedArtifact, SourceNotFound, SourceTruncated, UnsupportedFormat
from warmshelf.types import ArtifactKind
from warmshelfd.domain.adapter_shapes import Need
from warmshelfd.formats.base import FormatLimits, Inspected
from warmshelfd.formats.peft import PeftFormat
from warmshelfd.formats.safetensors import SafetensorsFormat

Read = Callable[[Mapping[str, bytes]], Inspected]

Q0 = "model.layers.0.self_attn.q_proj"
V0 = "model.layers.0.self_attn.v_proj"
BIN, TENSORS = "adapter_model.bin", "adapter_model.tensors"


@pytest.fixture
def read(memory_files: Any) -> Read:
    """Inspect files given as ``{name: bytes}``."""
    return lambda content: PeftFormat().inspect(memory_files(content), FormatLimits())


def features(inspected: Inspected) -> tuple[str, ...]:
    assert inspected.adapter
    return inspected.adapter.features


def test_a_plain_adapter_is_read(read: Read, memory_files: Any) -> None:
    """Promises 1 and 2: names and config as they stand in the files."""
    config = config_bytes(r=4, lora_alpha=8)
    files = adapter_files({**pair(Q0), **pair(V0, rows=2)}) | {
        CONFIG: config,
        "tokenizer.json": b"{}",
        "README.md": b"",
    }
    inspected = read(files)
    assert inspected.kind is ArtifactKind.ADAPTER
    assert (inspected.format_name, inspected.file_names) == ("peft", (WEIGHTS,))
    assert (
        inspected.entries
        == SafetensorsFormat().inspect(memory_files({"one.safetensors": files[WEIGHTS]}), FormatLimits()).entries
    )
    assert {entry.name for entry in inspected.entries} == {*pair(Q0), *pair(V0)}
    assert inspected.small_files == (CONFIG, "tokenizer.json")
    assert inspected.adapter
    assert inspected.adapter.config_json == config
    assert inspected.adapter.module_names == (Q0, V0)
    assert inspected.adapter.rank_max == 4
    assert inspected.adapter.features == ()
    assert inspected.adapter_shapes
    assert inspected.adapter_shapes.needs == (Need(Q0, "weight", (8, 8), True), Need(V0, "weight", (2, 8), True))


def test_the_rank_is_that_of_the_tensors(read: Read) -> None:
    """B08: the config says 4, the pattern brings 16."""
    files = adapter_files({**pair(Q0, 4), **pair(V0, 16)}, rank_pattern={"v_proj": 16}, alpha_pattern={"v_proj": 64})
    inspected = read(files)
    assert inspected.adapter
    assert inspected.adapter.rank_max == 16
    assert inspected.adapter.features == ("alpha_pattern", "rank_pattern")


def test_a_pickle_beside_the_weights_is_not_opened(memory_files: Any) -> None:
    files = memory_files(adapter_files(pair(Q0)) | {BIN: b"\x80\x04."})
    assert PeftFormat().inspect(files, FormatLimits()).file_names == (WEIGHTS,)
    assert BIN not in files.read_names


def test_a_pickle_alone_is_refused_unopened_with_the_command(memory_files: Any) -> None:
    files = memory_files({CONFIG: config_bytes(), BIN: b"\x80\x04."})
    with pytest.raises(UnsupportedFormat, match=r"python -c .*adapter_model\.safetensors"):
        PeftFormat().inspect(files, FormatLimits())
    assert files.read_names == [CONFIG]


def test_what_is_missing_has_its_own_reason(read: Read) -> None:
    """B21."""
    whole = adapter_files(pair(Q0))
    with pytest.raises(ConfigMissing, match=CONFIG):
        read({WEIGHTS: whole[WEIGHTS]})
    with pytest.raises(SourceNotFound, match=f"neither {WEIGHTS} nor {TENSORS}"):
        read({CONFIG: whole[CONFIG], "model.safetensors": whole[WEIGHTS]})
    with pytest.raises(MalformedArtifact, match="no LoRA pair"):
        read(adapter_files({**pair(Q0), f"{PREFIX}{Q0}.lora_B.weight": (8, 3)}))
    with pytest.raises(SourceTruncated, match=WEIGHTS):
        read(whole | {WEIGHTS: whole[WEIGHTS][:-1]})


@pytest.mark.parametrize(
    ("names", "is_adapter"),
    [
        ([CONFIG], True),
        ([CONFIG, "model.safetensors"], True),
        ([WEIGHTS], True),
        ([TENSORS, BIN, "training_args.bin"], True),
        ([WEIGHTS, "model.safetensors"], False),
        (["model.safetensors", "config.json"], False),
        ([BIN], False),
        ([], False),
    ],
)
def test_an_adapter_is_known_by_its_files_names(names: list[str], is_adapter: bool) -> None:
    assert PeftFormat().matches(dict.fromkeys(names, 1)) is is_adapter


def test_weights_may_be_a_tensors_file(read: Read) -> None:
    """The safetensors file comes first where both are there."""
    shapes = pair(Q0)
    content = tensors_file(
        [Written(name.encode(), b"<f4", shape, bytes(128)) for name, shape in shapes.items()]
    ).content
    inspected = read({CONFIG: config_bytes(), TENSORS: content})
    assert inspected.file_names == (TENSORS,)
    assert {entry.name: entry.shape for entry in inspected.entries} == shapes
    assert len(list(inspected.checks)) == 2
    assert inspected.adapter
    assert inspected.adapter.rank_max == 4
    assert read(adapter_files(shapes) | {TENSORS: content}).file_names == (WEIGHTS,)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((0, 8), (8, 0)),
        ((4, 0), (8, 4)),
        ((4, 8), (0, 4)),
        ((32,), (8, 4)),
        ((4, 8), (32,)),
        ((), ()),
        ((4, 8), (4, 8)),
        ((4, 8), (8, 5)),
        ((4, 8), (8, 2)),
    ],
)
def test_what_is_no_pair_is_refused_with_module_and_shapes(a: Shape, b: Shape, read: Read) -> None:
    """B25: empty and one-dimensional pairs too."""
    shapes = {f"{PREFIX}{Q0}.lora_A.weight": a, f"{PREFIX}{Q0}.lora_B.weight": b}
    with pytest.raises(MalformedArtifact) as caught:
        read(adapter_files({**pair(V0), **shapes}))
    assert Q0 in caught.value.message
    assert f"lora_A {list(a)} and lora_B {list(b)}" in caught.value.message
    assert caught.value.details == {"file": WEIGHTS, "module": Q0}


@pytest.mark.parametrize("missing", ["lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B"])
def test_half_a_pair_is_refused_by_its_name(missing: str, read: Read) -> None:
    embedding = {f"{PREFIX}emb.lora_embedding_A": (4, 10), f"{PREFIX}emb.lora_embedding_B": (8, 4)}
    shapes = {name: shape for name, shape in {**pair(Q0), **embedding}.items() if missing not in name}
    with pytest.raises(MalformedArtifact, match="lacks the other factor"):
        read(adapter_files(shapes))


@pytest.mark.parametrize(("field", "missing"), [("use_dora", "lora_magnitude_vector"), ("lora_bias", "lora_B.bias")])
def test_a_pair_without_what_the_config_says_each_has_is_refused(field: str, missing: str, read: Read) -> None:
    """B07: half a DoRA would be served as plain LoRA there."""
    shapes = {**pair(Q0), **pair(V0), f"{PREFIX}{V0}.{missing}": (8,)}
    with pytest.raises(MalformedArtifact, match=f"{Q0}.*{field} is set, and there is no {missing}"):
        read(adapter_files(shapes, **{field: True}))
    assert features(read(adapter_files({**shapes, f"{PREFIX}{Q0}.{missing}": (8,)}, **{field: True})))


@pytest.mark.parametrize(
    ("indices", "named"),
    [(..., "none"), (None, "none"), ([1, 2, 3], "3"), ({"emb": [1], "head": [1, 2, 3]}, "1 or 3")],
)
def test_token_rows_that_no_token_is_named_for_are_refused_with_both_numbers(
    indices: object, named: str, read: Read
) -> None:
    """B10: which rows they are stands nowhere else."""
    shapes = {**pair(Q0), f"{PREFIX}emb.token_adapter.trainable_tokens_delta": (2, 8)}
    with pytest.raises(MalformedArtifact, match=rf"shape \[2, 8\].*trainable_token_indices of {CONFIG} names {named}"):
        read(adapter_files(shapes, trainable_token_indices=indices))


@pytest.mark.parametrize("name", ["lm_head.weight", "emb.token_adapter.trainable_tokens_delta", f"{Q0}.lora_new"])
def test_an_empty_tensor_of_any_part_is_refused(name: str, read: Read) -> None:
    """B25: a base may have them, an adapter not."""
    with pytest.raises(MalformedArtifact, match="is empty"):
        read(adapter_files({**pair(Q0), PREFIX + name: (0, 8)}))


def test_weights_without_a_tensor_are_refused(read: Read) -> None:
    with pytest.raises(MalformedArtifact, match="no tensors"):
        read(adapter_files({}))


def test_an_adapters_name_in_the_tensors_names_is_shown_and_kept(read: Read) -> None:
    shapes = pair(Q0, suffix=".default.weight")
    inspected = read(adapter_files(shapes))
    assert {entry.name for entry in inspected.entries} == {*shapes}
    assert inspected.adapter
    assert inspected.adapter.module_names == (Q0,)
    assert inspected.adapter.features == ("adapter_name:default",)


def test_two_adapters_in_one_file_are_refused(read: Read) -> None:
    with pytest.raises(MalformedArtifact, match="the same factor of one pair"):
        read(adapter_files({**pair(Q0, suffix=".one.weight"), **pair(Q0, suffix=".two.weight")}))


def test_names_without_pefts_prefix_are_modules_as_they_stand(read: Read) -> None:
    shapes = {name.removeprefix(PREFIX): shape for name, shape in pair(Q0).items()}
    inspected = read(adapter_files(shapes))
    assert inspected.adapter
    assert inspected.adapter.module_names == (Q0,)
    assert {entry.name for entry in inspected.entries} == {*shapes}
    assert inspected.adapter.features == ("key_prefix:none",)


@pytest.mark.parametrize(
    ("extra", "fields", "expected"),
    [
        ({f"{Q0}.lora_magnitude_vector": (8,)}, {}, "dora"),
        ({f"{Q0}.lora_B.bias": (8,)}, {}, "lora_bias"),
        ({"lm_head.weight": (10, 8)}, {}, "modules_to_save"),
        ({f"{Q0}.base_layer.bias": (8,)}, {"bias": "lora_only"}, "bias"),
        ({"norm.bias": (8,)}, {}, "modules_to_save"),
        (
            {"emb.token_adapter.trainable_tokens_delta": (2, 8)},
            {"trainable_token_indices": [1, 2]},
            "trainable_tokens",
        ),
        ({"emb.lora_embedding_A": (4, 10), "emb.lora_embedding_B": (8, 4)}, {}, "embedding"),
        ({"conv.lora_A.weight": (4, 4, 3, 3), "conv.lora_B.weight": (6, 4, 1, 1)}, {}, "convolution"),
        ({"mlp.experts.lora_A.weight": (3, 4, 8), "mlp.experts.lora_B.weight": (3, 16, 4)}, {}, "stacked_experts"),
        ({f"{Q0}.lora_diag": (4,)}, {}, "kasa"),
        ({f"{Q0}.lora_future.weight": (4,)}, {}, "unknown_tensor:lora_future"),
    ],
)
def test_what_the_tensors_need_is_shown_whatever_the_config_says(
    extra: dict[str, Shape], fields: dict[str, object], expected: str, read: Read
) -> None:
    """B07, B10: also where no field asks for it."""
    shapes = {**pair(Q0), **{PREFIX + name: shape for name, shape in extra.items()}}
    assert features(read(adapter_files(shapes, **fields))) == (expected,)


def test_the_rank_of_stacked_experts_is_that_of_one(read: Read) -> None:
    """Pairs for a parameter of all experts: as PEFT writes them, two-dimensional, and as [experts, rank, in]."""
    peft = {f"{PREFIX}mlp.experts.lora_A.weight": (24, 8), f"{PREFIX}mlp.experts.lora_B.weight": (16, 24)}
    inspected = read(adapter_files({**pair(Q0), **peft}, target_parameters=["experts.gate_up_proj"]))
    assert inspected.adapter
    assert inspected.adapter.rank_max == 4
    stacked = {f"{PREFIX}mlp.experts.lora_A.weight": (3, 6, 8), f"{PREFIX}mlp.experts.lora_B.weight": (3, 16, 6)}
    inspected = read(adapter_files({**pair(Q0, 6), **stacked}, r=6))
    assert inspected.adapter
    assert inspected.adapter.rank_max == 6


def test_an_adapter_may_have_no_pair(read: Read) -> None:
    """B10: only a grown embedding."""
    inspected = read(adapter_files({f"{PREFIX}emb.weight": (12, 8)}, modules_to_save=["emb"]))
    assert inspected.adapter
    assert (inspected.adapter.rank_max, inspected.adapter.module_names) == (0, ("emb",))
    assert features(inspected) == ("modules_to_save",)


def test_what_the_tensors_need_of_the_base_is_kept(read: Read) -> None:
    shapes: dict[str, Shape] = {
        **pair(Q0),
        f"{PREFIX}{Q0}.base_layer.bias": (8,),
        f"{PREFIX}emb.lora_embedding_A": (4, 10),
        f"{PREFIX}emb.lora_embedding_B": (8, 4),
        f"{PREFIX}emb.base_layer.weight": (12, 8),
        f"{PREFIX}emb.token_adapter.trainable_tokens_delta": (2, 8),
        f"{PREFIX}c.lora_A.weight": (4, 4, 3),
        f"{PREFIX}c.lora_B.weight": (6, 4, 1),
    }
    inspected = read(adapter_files(shapes, fan_in_fan_out=True, trainable_token_indices={"emb": [1, 2]}))
    assert inspected.adapter_shapes
    assert inspected.adapter_shapes.fan_in_fan_out
    assert inspected.adapter_shapes.needs == (
        Need("c", "weight", (6, 4, 3), True),
        Need("emb", "weight", (0, 8), False),
        Need("emb", "weight", (12, 8), False),
        Need("emb", "weight", (10, 8), True),
        Need(Q0, "bias", (8,), False),
        Need(Q0, "weight", (8, 8), True),
    )


@pytest.mark.parametrize("field", [{"use_bdlora": {"nblocks": 2}}, {"use_qalora": True}])
def test_block_factors_need_no_shape(field: dict[str, object], read: Read) -> None:
    shapes = {
        f"{PREFIX}{Q0}.lora_A.weight": (4, 8),
        f"{PREFIX}{Q0}.lora_B.weight": (8, 2 if "use_bdlora" in field else 4),
    }
    inspected = read(adapter_files(shapes, **field))
    assert inspected.adapter_shapes
    assert inspected.adapter_shapes.needs == (Need(Q0, "weight", None, True),)


def test_a_broken_header_is_refused_by_the_files_name(read: Read) -> None:
    with pytest.raises(MalformedArtifact, match=WEIGHTS):
        read({CONFIG: config_bytes(), WEIGHTS: b"\xff" * 64})
    with pytest.raises(UnsupportedFormat, match=f"{WEIGHTS} is a pickle"):
        read({CONFIG: config_bytes(), WEIGHTS: b"\x80\x04" + bytes(64)})
    assert weights_bytes(pair(Q0))  # the helper's own file is whole
