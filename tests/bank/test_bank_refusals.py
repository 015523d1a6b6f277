"""What a bank would serve wrongly is refused by a typed error before anything is in a slot."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import warmshelf
from bank.conftest import artifact_id
from kit.llama import VOCABULARY, WIDTH, save_adapter, tiny_llama
from kit.processes import Daemon
from warmshelf import errors
from warmshelf._bank_plan import Modules, Target, plan
from warmshelf.torch import AdapterBank, apply_bank

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
Q = "model.layers.0.self_attn.q_proj"
LAYERS = [Q, "model.layers.2.mlp.down_proj"]


@pytest.fixture
def bank(model: Any) -> AdapterBank:
    return AdapterBank(model, slot_count=2, rank_max=8)


def refused(bank: AdapterBank, shelf: warmshelf.Shelf, name: str, error: type[errors.WarmshelfError]) -> Any:
    """Return the error; nothing is in the bank after it, and a good adapter still gets in."""
    before = {stack.target: (stack.a.clone(), stack.b.clone()) for name in LAYERS for stack in bank.stacks(name)}
    there = bank.resident
    with pytest.raises(error) as caught:
        bank.slots_for(shelf, [name])
    assert bank.resident == there
    for stack in (stack for name in LAYERS for stack in bank.stacks(name)):
        assert torch.equal(stack.a, before[stack.target][0])
        assert torch.equal(stack.b, before[stack.target][1])
    bank.slots_for(shelf, [artifact_id("plain")]).release()
    return caught.value


FEATURES: dict[str, dict[str, Any]] = {
    "dora": {"use_dora": True},
    "bias": {"bias": "lora_only", "target_modules": ["q_proj"]},
    "lora_bias": {"lora_bias": True, "target_modules": ["down_proj"]},
    "modules_to_save": {"modules_to_save": ["lm_head"]},
    "trainable_tokens": {"trainable_token_indices": [1, 2]},
    "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
}


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_beyond_lora_is_refused_by_its_name_before_it_is_loaded(
    bank: AdapterBank, shelf: warmshelf.Shelf, registered: Callable[..., str], feature: str
) -> None:
    """B07, B10, B12."""
    name = registered("acme/feature", **FEATURES[feature])
    assert feature in refused(bank, shelf, name, errors.FeatureUnsupported).details["features"].split(", ")
    assert shelf.get(name).state is warmshelf.ArtifactState.REGISTERED


def test_a_feature_can_be_answered_for_by_the_caller(
    shelf: warmshelf.Shelf, daemon: Daemon, model: Any, registered: Callable[..., str], bank: AdapterBank
) -> None:
    """B13: a field of a newer PEFT is refused until somebody says that it means nothing here."""
    directory = save_adapter(model, daemon.models / "newer")
    fields = json.loads((directory / CONFIG).read_text())
    (directory / CONFIG).write_text(json.dumps({**fields, "future_field": {"x": 1}}))
    shelf.register("acme/newer", directory)
    assert "unknown_field:future_field" in str(refused(bank, shelf, "acme/newer", errors.FeatureUnsupported))
    told = AdapterBank(model, rank_max=8, features=["unknown_field:future_field"])
    told.slots_for(shelf, ["acme/newer"]).release()
    shelf.remove("acme/newer")


def test_a_rank_over_the_banks_is_refused_with_both_numbers(
    bank: AdapterBank, shelf: warmshelf.Shelf, registered: Callable[..., str]
) -> None:
    """B08: of one module's pattern, though the config says 4."""
    error = refused(bank, shelf, registered("acme/r9", r=4, rank_pattern={"v_proj": 9}), errors.RankTooLarge)
    assert (error.details["adapter_rank_max"], error.details["rank_max"]) == (9, 8)
    assert shelf.get("acme/r9").state is warmshelf.ArtifactState.REGISTERED


def test_an_adapter_of_another_base_is_refused_naming_module_expected_and_got(
    bank: AdapterBank, shelf: warmshelf.Shelf, registered: Callable[..., str]
) -> None:
    """B17: twice as wide; B15: modules of another name."""
    import transformers  # noqa: PLC0415 - for one base of other shapes

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=2 * WIDTH, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    wide = transformers.AutoModelForCausalLM.from_config(config)
    error = refused(bank, shelf, registered("acme/wide", of=wide, target_modules=["q_proj"]), errors.BaseMismatch)
    assert error.details == {"module": Q, "expected": "(16, 16)", "got": "(32, 32)"}
    nested = torch.nn.ModuleDict({"language_model": tiny_llama(dtype=torch.float32)})
    error = refused(
        bank,
        shelf,
        registered("acme/nested", of=nested, task_type=None, target_modules=["q_proj"]),
        errors.BaseMismatch,
    )
    assert error.details["module"].startswith("language_model.model.layers.")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_numbers_that_would_reach_other_rows_are_refused(
    bank: AdapterBank, shelf: warmshelf.Shelf, daemon: Daemon, model: Any, value: float
) -> None:
    """B21: also those that only become infinite by the scaling."""
    directory = save_adapter(model, daemon.models / f"value-{value}", lora_alpha=32)
    tensors = load_file(directory / WEIGHTS)
    name = next(name for name in tensors if "lora_B" in name)
    tensors[name][1, 1] = value
    save_file(tensors, directory / WEIGHTS)
    shelf.register("acme/value", directory)
    assert refused(bank, shelf, "acme/value", errors.MalformedArtifact).details["tensor"] == name
    shelf.remove("acme/value")


def test_a_bank_goes_only_on_a_model_with_its_layers(bank: AdapterBank) -> None:
    import transformers  # noqa: PLC0415 - for one model of other shapes

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=8, num_hidden_layers=3, num_attention_heads=2
    )
    other = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(errors.BaseMismatch) as caught:
        apply_bank(other, bank)
    assert (caught.value.details["module"], caught.value.details["got"]) == (Q.replace("q_", "k_"), "(16, 16)")
    assert not any(module._forward_hooks for module in other.modules())
    with pytest.raises(errors.InvalidRequest, match="no linear layer named nothing"):
        AdapterBank(other, modules=["nothing"])
    with pytest.raises(errors.InvalidRequest, match="rank_max is 0"):
        AdapterBank(other, rank_max=0)


# --- the plan alone ------------------------------------------------------------

SHAPES = {f"base_model.model.{Q}.lora_A.weight": (4, 16), f"base_model.model.{Q}.lora_B.weight": (16, 4)}
MODULES = Modules({Q: (Target(Q, 16, 16),)})

WRONG: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]], type[errors.WarmshelfError]]] = {
    "half a pair": ({}, {f"{Q}.lora_A.weight": (4, 16)}, errors.MalformedArtifact),
    "two names of one half": ({}, {**SHAPES, f"{Q}.lora_A.x.weight": (4, 16)}, errors.MalformedArtifact),
    "no half": ({}, {**SHAPES, f"{Q}.weight": (16, 16)}, errors.FeatureUnsupported),
    "a magnitude": ({}, {**SHAPES, f"{Q}.lora_magnitude_vector": (16,)}, errors.FeatureUnsupported),
    "another rank": ({"r": 8}, SHAPES, errors.MalformedArtifact),
    "no rank": ({"r": 0}, SHAPES, errors.MalformedArtifact),
    "a rank in words": ({"r": "four"}, SHAPES, errors.MalformedArtifact),
    "an alpha that is none": ({"lora_alpha": float("nan")}, SHAPES, errors.MalformedArtifact),
    "no pattern": ({"alpha_pattern": [1]}, SHAPES, errors.MalformedArtifact),
    "no regular expression": ({"alpha_pattern": {"(": 1}}, SHAPES, errors.MalformedArtifact),
    "an endless one": ({"alpha_pattern": {"(a+)+x": 1}}, SHAPES, errors.MalformedArtifact),
    "many repeats": ({"alpha_pattern": {".*.*.*.*.*": 1}}, SHAPES, errors.MalformedArtifact),
    "a long one": ({"alpha_pattern": {"a" * 257: 1}}, SHAPES, errors.MalformedArtifact),
    "a cube": ({}, {**SHAPES, f"base_model.model.{Q}.lora_A.weight": (4, 16, 1)}, errors.MalformedArtifact),
}


@pytest.mark.parametrize("what", WRONG)
def test_config_and_tensors_that_contradict_each_other_are_refused(what: str) -> None:
    fields, shapes, error = WRONG[what]
    with pytest.raises(error):
        plan({"r": 4, "lora_alpha": 8, **fields}, shapes, MODULES, 8)


def test_a_plan_says_rank_and_scaling_also_with_an_adapters_name_in_the_names() -> None:
    """B06: 16 and 32 by rsLoRA is 8, without it 2."""
    shapes = {f"{Q}.lora_A.default.weight": (16, 16), f"{Q}.base_layer.lora_B.default.weight": (16, 16)}
    for rslora, scaling in ((True, 8.0), (False, 2.0)):
        (pair,) = plan({"r": 16, "lora_alpha": 32, "use_rslora": rslora}, shapes, MODULES, 16)
        assert (pair.name, pair.rank, pair.scaling) == (Q, 16, scaling)


def test_patterns_of_users_are_taken() -> None:
    patterns = {"k_proj": 1, r".*\.layers\.(0|1)\..*q_proj": 40}
    (pair,) = plan({"r": 4, "lora_alpha": 8, "alpha_pattern": patterns}, SHAPES, MODULES, 8)
    assert pair.scaling == 10.0
