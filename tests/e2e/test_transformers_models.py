"""Bases through the daemon into models of transformers: the same answers, and nothing copied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import warmshelf
import warmshelf.peft
import warmshelf.torch
import warmshelf.transformers
from kit.llama import TOKENS, VOCABULARY, WIDTH, load_by_peft, logits, save_adapter, save_model, tiny_llama
from kit.processes import Daemon
from warmshelf import errors


@pytest.fixture
def shelf(shared: Daemon) -> Iterator[warmshelf.Shelf]:
    with shared.connect(timeout=30) as it:
        yield it


@pytest.fixture
def lease_of(shelf: warmshelf.Shelf, tmp_path: Path) -> Any:
    """Save a model, register it, and lease it."""

    def lease(model: Any) -> warmshelf.Lease:
        shelf.register("base", save_model(model, tmp_path / "base"), replace=True)
        return shelf.acquire("base", timeout=30)

    return lease


def tiny_mixture() -> Any:
    """A model of which transformers keeps several tensors of a checkpoint as one."""
    torch.manual_seed(7)
    config = transformers.MixtralConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=2,
        pad_token_id=0,
        dtype=torch.bfloat16,
    )
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_the_parameters_are_the_leases_memory(tied: bool, lease_of: Any) -> None:
    """B12: a name that is absent because it is tied is not missing, and the two stay one."""
    with lease_of(tiny_llama(tied=tied)) as lease:
        model = warmshelf.transformers.load_model(lease)
        tensors = warmshelf.torch.tensors(lease)
    assert torch.equal(logits(model), logits(tiny_llama(tied=tied)))
    assert {part.data_ptr() for part in model.parameters()} == {tensor.data_ptr() for tensor in tensors.values()}
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied
    assert ("lm_head.weight" in tensors) is not tied
    assert not model.training


def test_writing_to_a_model_changes_nobody_elses(lease_of: Any, shelf: warmshelf.Shelf) -> None:
    """B45."""
    with lease_of(tiny_llama()) as lease:
        model = warmshelf.transformers.load_model(lease)
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    with shelf.acquire("base", timeout=30) as lease:
        assert torch.equal(logits(warmshelf.transformers.load_model(lease)), logits(tiny_llama()))


def test_tensors_that_transformers_keeps_as_one_are_brought_there(lease_of: Any) -> None:
    with lease_of(tiny_mixture()) as lease:
        assert any("experts.0." in name for name in lease)
        model = warmshelf.transformers.load_model(lease)
    assert torch.equal(logits(model), logits(tiny_mixture()))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_an_adapter_of_all_experts_says_what_it_says_with_pefts_own_loading(
    lease_of: Any, shelf: warmshelf.Shelf, tmp_path: Path
) -> None:
    """B06, B15: pairs for parameters of three dimensions, on a base whose file has each expert by itself."""
    model = tiny_mixture()
    parameters = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    source = save_adapter(model, tmp_path / "a", target_modules=["q_proj"], target_parameters=parameters)
    expected = logits(load_by_peft(model, source))
    with lease_of(model) as lease:
        leased = warmshelf.transformers.load_model(lease)
    adapter = shelf.register("a", source, base="base").inspection.adapter  # type: ignore[union-attr]
    assert adapter is not None
    assert (adapter.features, adapter.rank_max) == (("target_parameters",), 4)
    assert "model.layers.0.mlp.experts" in adapter.module_names
    assert torch.equal(logits(warmshelf.peft.load_adapter(leased, shelf, "a")), expected)
    assert not torch.equal(expected, logits(model))


def test_a_class_may_be_the_configs_or_a_callers(lease_of: Any) -> None:
    torch.manual_seed(7)
    config = transformers.LlamaConfig(**{**tiny_llama().config.to_dict(), "num_labels": 3})
    scorer = transformers.LlamaForSequenceClassification._from_config(config, dtype=torch.bfloat16).eval()
    with lease_of(scorer) as lease:
        model = warmshelf.transformers.load_model(lease)
        assert type(model) is transformers.LlamaForSequenceClassification
        assert torch.equal(logits(model), logits(scorer))
    body = tiny_llama().model
    with lease_of(body) as lease:
        model = warmshelf.transformers.load_model(lease, model_class=transformers.LlamaModel)
        assert torch.equal(model(input_ids=TOKENS)[0], body(input_ids=TOKENS)[0])


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("num_hidden_layers", 4, "lacks 'model.layers.3.*and 10 more, and has nothing"),
        ("num_hidden_layers", 2, "lacks nothing, and has 'model.layers.2.* beyond it"),
        ("vocab_size", VOCABULARY + 1, "size mismatch"),
    ],
)
def test_a_config_of_another_model_is_refused_by_what_differs(
    field: str, value: object, why: str, lease_of: Any
) -> None:
    """B17, B21: never a parameter that nobody gave a value."""
    with lease_of(tiny_llama()) as lease:
        config = transformers.LlamaConfig(**{**lease.config, field: value})
        with pytest.raises(errors.InvalidRequest, match=why):
            warmshelf.transformers.load_model(lease, config=config)


def test_two_tensors_are_not_tied_because_a_config_says_so(lease_of: Any) -> None:
    """B12: the flag may stem from another level of the config; the artifact has both."""
    with lease_of(tiny_llama()) as lease:
        config = transformers.LlamaConfig(**{**lease.config, "tie_word_embeddings": True})
        model = warmshelf.transformers.load_model(lease, config=config)
    assert torch.equal(logits(model), logits(tiny_llama()))
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


def test_a_config_that_is_missing_or_not_known_is_said(shelf: warmshelf.Shelf, tmp_path: Path) -> None:
    path = save_model(tiny_llama(), tmp_path / "base")
    shelf.register("alone", path / "model.safetensors")
    with shelf.acquire("alone", timeout=30) as lease:
        with pytest.raises(errors.MalformedArtifact, match=r"'alone' has no config.json"):
            warmshelf.transformers.load_model(lease)
        model = warmshelf.transformers.load_model(lease, config=tiny_llama().config)
        assert torch.equal(logits(model), logits(tiny_llama()))
    (path / "config.json").write_text('{"model_type": "of tomorrow", "auto_map": {"AutoConfig": "evil.Config"}}')
    shelf.register("new", path)
    with shelf.acquire("new", timeout=30) as lease, pytest.raises(errors.InvalidRequest, match="of tomorrow"):
        warmshelf.transformers.load_model(lease)
