"""What a model of PEFT cannot take is refused by its name, and leaves the model as it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import warmshelf
import warmshelf.peft
import warmshelf.torch
import warmshelf.transformers
from kit.llama import VOCABULARY, WIDTH, load_by_peft, logits, save_adapter, save_model, tiny_llama
from kit.processes import Daemon
from warmshelf import EngineOutcome, errors

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def shelf(shared: Daemon) -> Iterator[warmshelf.Shelf]:
    with shared.connect(timeout=30) as it:
        yield it


def change(directory: Path, rename: Callable[[str], str] = str, **fields: Any) -> Path:
    """Change the names of a saved adapter's tensors, and fields of its config."""
    weights, config = directory / "adapter_model.safetensors", directory / "adapter_config.json"
    save_file({rename(name): tensor for name, tensor in load_file(weights).items()}, weights)
    config.write_text(json.dumps({**json.loads(config.read_text()), **fields}))
    return directory


def named(part: str) -> Callable[[str], str]:
    return lambda name: name.replace("lora_A.", f"lora_A.{part}.").replace("lora_B.", f"lora_B.{part}.")


UNFIT: dict[str, tuple[Callable[[str], str], dict[str, Any]]] = {
    "unknown_field:future_scaling": (str, {"future_scaling": {"x": 1}}),
    "unknown_bias:future": (str, {"bias": "future"}),
    "init:pissa_niter": (str, {"init_lora_weights": "pissa_niter_4"}),
    "init:corda": (str, {"init_lora_weights": "corda"}),
    "init:lora_ga": (str, {"init_lora_weights": "lora_ga"}),
    "init:loftq": (str, {"init_lora_weights": "loftq", "loftq_config": {"loftq_bits": 4}}),
    "init:future": (str, {"init_lora_weights": "future"}),
    "key_prefix:none": (lambda name: name.removeprefix("base_model.model."), {}),
    "key_wrapper:_orig_mod": (lambda name: f"_orig_mod.{name}", {}),
    "key_wrapper:module": (lambda name: f"module.{name}", {}),
    "key_wrapper:_fsdp_wrapped_module": (lambda name: name.replace("layers", "layers._fsdp_wrapped_module"), {}),
    "unknown_tensor:lora_C": (lambda name: name.replace("lora_A", "lora_C").replace("lora_B", "lora_C.b"), {}),
}


@pytest.mark.parametrize("feature", sorted(UNFIT))
def test_what_peft_does_not_honour_is_refused_by_its_name_before_a_byte_moves(
    feature: str, shared: Daemon, shelf: warmshelf.Shelf, tmp_path: Path
) -> None:
    """B07, B13, B15: with a lease too, and also where PEFT itself would take no notice."""
    rename, fields = UNFIT[feature]
    source = change(save_adapter(tiny_llama(), tmp_path / "a"), rename, **fields)
    artifact = shelf.register("a", source)
    adapter = artifact.inspection.adapter  # type: ignore[union-attr]
    assert adapter is not None
    assert feature in adapter.features
    assert adapter.engine_verdicts[0].outcome not in (EngineOutcome.SERVES, EngineOutcome.CONDITIONAL), adapter
    model = tiny_llama()
    with pytest.raises(errors.FeatureUnsupported, match=feature):
        warmshelf.peft.load_adapter(model, shelf, "a")
    assert shared.segments() == []
    with shelf.acquire("a", timeout=30) as lease, pytest.raises(errors.FeatureUnsupported, match=feature):
        warmshelf.peft.load_adapter(model, lease)
    assert torch.equal(logits(model), logits(tiny_llama()))


@pytest.mark.parametrize("spelling", ["key_prefix:none", "key_wrapper:_orig_mod"])
@pytest.mark.filterwarnings("ignore:Found missing adapter keys:UserWarning")
def test_the_spellings_that_are_refused_are_those_that_peft_itself_does_not_find(spelling: str, tmp_path: Path) -> None:
    """B15: it warns at most, and computes something else than what was trained."""
    trained = logits(load_by_peft(tiny_llama(), save_adapter(tiny_llama(), tmp_path / "a")))
    source = change(tmp_path / "a", UNFIT[spelling][0])
    assert not torch.equal(logits(load_by_peft(tiny_llama(), source, "other")), trained)


@pytest.mark.filterwarnings("ignore:Found missing adapter keys:UserWarning")
def test_tensors_with_an_adapters_name_in_theirs_are_found_by_peft_under_that_name_only(
    shelf: warmshelf.Shelf, tmp_path: Path
) -> None:
    """B15: and it is known here by its ID, so it is refused."""
    trained = logits(load_by_peft(tiny_llama(), save_adapter(tiny_llama(), tmp_path / "a")))
    source = change(tmp_path / "a", named("default"))
    assert torch.equal(logits(load_by_peft(tiny_llama(), source, "default")), trained)
    assert not torch.equal(logits(load_by_peft(tiny_llama(), source, "other")), trained)
    adapter = shelf.register("a", source).inspection.adapter  # type: ignore[union-attr]
    assert adapter is not None
    assert adapter.engine_verdicts[0].outcome is EngineOutcome.CONDITIONAL
    with pytest.raises(errors.FeatureUnsupported, match="adapter_name:default"):
        warmshelf.peft.load_adapter(tiny_llama(), shelf, "a")


def test_the_ways_to_begin_that_are_refused_are_those_that_peft_itself_does_not_bring_back(tmp_path: Path) -> None:
    """The weights that training began with are gone, or are computed anew from other data."""
    for init, fields in (("corda", {}), ("loftq", {"loftq_config": {"loftq_bits": 4, "loftq_iter": 1}})):
        source = change(save_adapter(tiny_llama(), tmp_path / init), init_lora_weights=init, **fields)
        with pytest.raises((ValueError, ImportError)):
            load_by_peft(tiny_llama(), source)


def test_a_first_adapter_that_does_not_fit_leaves_the_model_as_it_was(shelf: warmshelf.Shelf, tmp_path: Path) -> None:
    """B17, B21."""
    model = tiny_llama()
    shelf.register("bad", change(save_adapter(tiny_llama(), tmp_path / "a"), lambda name: name.replace("rs.2", "rs.9")))
    with pytest.raises(errors.BaseMismatch, match=r"no place for .*layers\.9"):
        warmshelf.peft.load_adapter(model, shelf, "bad")
    assert torch.equal(logits(model), logits(tiny_llama()))
    assert not any("lora" in name for name, _ in model.named_modules())


def test_a_further_adapter_that_does_not_fit_leaves_the_others(shelf: warmshelf.Shelf, tmp_path: Path) -> None:
    """B17, B21: too few tensors, tensors of a wider model, modules that are not there."""
    good = save_adapter(tiny_llama(), tmp_path / "good")
    expected = logits(load_by_peft(tiny_llama(), good))
    few = save_adapter(tiny_llama(), tmp_path / "few")
    weights = load_file(few / "adapter_model.safetensors")
    save_file({k: v for k, v in weights.items() if "layers.1" not in k}, few / "adapter_model.safetensors")
    shelf.register("few", few)
    wide = {k: torch.zeros(4, 2 * WIDTH) if "lora_A" in k else v for k, v in weights.items()}
    save_file(wide, change(save_adapter(tiny_llama(), tmp_path / "wide")) / "adapter_model.safetensors")
    shelf.register("wide", tmp_path / "wide")
    shelf.register("gone", change(save_adapter(tiny_llama(), tmp_path / "gone"), target_modules=["nowhere"]))
    shelf.register("good", good)
    adapted = warmshelf.peft.load_adapter(tiny_llama(), shelf, "good")
    for name, why in (("few", "lacks a tensor for .*layers.1"), ("wide", "size mismatch"), ("gone", "nowhere")):
        with pytest.raises(errors.BaseMismatch, match=why):
            warmshelf.peft.load_adapter(adapted, shelf, name)
        assert torch.equal(logits(adapted), expected)
        assert list(adapted.peft_config) == ["good"]


@pytest.mark.parametrize(
    "fields", [{"init_lora_weights": "pissa"}, {"layer_replication": [[0, 2], [1, 3]]}], ids=["pissa", "replication"]
)
def test_an_adapter_that_changes_the_model_comes_first_or_not_at_all(
    fields: dict[str, Any], shelf: warmshelf.Shelf, tmp_path: Path
) -> None:
    shelf.register("good", save_adapter(tiny_llama(), tmp_path / "good"))
    shelf.register("changes", save_adapter(tiny_llama(), tmp_path / "changes", **fields))
    adapted = warmshelf.peft.load_adapter(tiny_llama(), shelf, "good")
    before = logits(adapted)
    with pytest.raises(errors.FeatureUnsupported, match=r"init:pissa|layer_replication"):
        warmshelf.peft.load_adapter(adapted, shelf, "changes")
    assert torch.equal(logits(adapted), before)


def test_a_grown_vocabulary_fits_a_model_that_was_resized(shelf: warmshelf.Shelf, tmp_path: Path) -> None:
    """B10: 32 tokens in the base, 35 in the adapter; the base's other users see nothing of it."""
    grown = tiny_llama()
    grown.resize_token_embeddings(VOCABULARY + 3, mean_resizing=False)
    source = save_adapter(grown, tmp_path / "a", modules_to_save=["embed_tokens", "lm_head"])
    expected = logits(load_by_peft(grown, source))
    shelf.register("base", save_model(tiny_llama(), tmp_path / "base"))
    adapter = shelf.register("a", source, base="base").inspection.adapter  # type: ignore[union-attr]
    assert adapter is not None
    assert "vocabulary:32->35" in adapter.features
    with shelf.acquire("base", timeout=30) as lease:
        model = warmshelf.transformers.load_model(lease)
    with pytest.raises(errors.BaseMismatch, match="size mismatch"):
        warmshelf.peft.load_adapter(model, shelf, "a")
    model.resize_token_embeddings(VOCABULARY + 3, mean_resizing=False)
    assert torch.equal(logits(warmshelf.peft.load_adapter(model, shelf, "a")), expected)
    with shelf.acquire("base", timeout=30) as lease:
        assert torch.equal(logits(warmshelf.transformers.load_model(lease)), logits(tiny_llama()))


def test_what_is_no_adapter_is_refused(shelf: warmshelf.Shelf, tmp_path: Path) -> None:
    shelf.register("base", save_model(tiny_llama(), tmp_path / "base"))
    with pytest.raises(errors.InvalidRequest, match="'base' is no adapter"):
        warmshelf.peft.load_adapter(tiny_llama(), shelf, "base")
    with pytest.raises(errors.InvalidRequest, match="an adapter's ID is needed"):
        warmshelf.peft.load_adapter(tiny_llama(), shelf)
    shelf.register("a", save_adapter(tiny_llama(), tmp_path / "a"))
    with shelf.acquire("a", timeout=30) as lease:
        with pytest.raises(errors.InvalidRequest, match="the lease is on 'a', not on 'b'"):
            warmshelf.peft.load_adapter(tiny_llama(), lease, "b")
        with pytest.raises(errors.InvalidRequest, match="'a' is an adapter"):
            warmshelf.transformers.load_model(lease)
