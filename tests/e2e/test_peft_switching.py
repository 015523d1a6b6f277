"""Adapters of one model by their IDs: added, switched, removed, and their memory given back."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import warmshelf
import warmshelf.peft
import warmshelf.transformers
from kit.llama import load_by_peft, logits, save_adapter, save_model, tiny_llama
from kit.processes import Daemon, eventually
from warmshelf import errors

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

KINDS: dict[str, dict[str, Any]] = {
    "acme/plain:v1.2": {},
    "acme/rslora": {"use_rslora": True, "r": 16},
    "acme/dora": {"use_dora": True, "r": 2},
    "acme/pattern": {"rank_pattern": {"v_proj": 8}, "alpha_pattern": {"v_proj": 64}},
    "acme/saved": {"modules_to_save": ["lm_head"]},
    "acme/tokens": {"trainable_token_indices": [5, 9]},
}


@pytest.fixture
def shelf(shared: Daemon) -> Iterator[warmshelf.Shelf]:
    with shared.connect(timeout=30) as it:
        yield it


@pytest.fixture
def sources(shelf: warmshelf.Shelf, tmp_path: Path) -> dict[str, Path]:
    """Registers a base and an adapter of each kind, and says where they lie."""
    model = tiny_llama()
    shelf.register("base", save_model(model, tmp_path / "base"))
    found = {}
    for i, (artifact_id, fields) in enumerate(KINDS.items()):
        found[artifact_id] = save_adapter(model, tmp_path / f"a{i}", seed=i, **fields)
        shelf.register(artifact_id, found[artifact_id], base="base")
    return found


def adapted_by(shelf: warmshelf.Shelf, artifact_ids: Iterator[str] | list[str]) -> Any:
    model = warmshelf.transformers.load_model(shelf, "base")
    for artifact_id in artifact_ids:
        model = warmshelf.peft.load_adapter(model, shelf, artifact_id)
    return model


def test_a_model_says_what_the_adapter_that_it_is_switched_to_says(
    shelf: warmshelf.Shelf, sources: dict[str, Path]
) -> None:
    """B06, B07, B08, B10: there and back, bit for bit, without a lease and without a gradient."""
    model = adapted_by(shelf, list(KINDS))
    assert shelf.leases() == []
    for artifact_id in [*KINDS, *reversed(KINDS)]:
        warmshelf.peft.switch(model, artifact_id)
        assert torch.equal(logits(model), logits(load_by_peft(tiny_llama(), sources[artifact_id])))
        assert not any(part.requires_grad for part in model.parameters())


def test_what_is_removed_is_said_no_more_and_its_memory_is_given_back(
    shelf: warmshelf.Shelf, sources: dict[str, Path]
) -> None:
    first, second, *_ = KINDS
    model = adapted_by(shelf, [first, second])
    assert warmshelf.peft.remove(model, first) is model
    assert torch.equal(logits(model), logits(load_by_peft(tiny_llama(), sources[second])))
    model = warmshelf.peft.remove(model, second)
    assert torch.equal(logits(model), logits(tiny_llama()))
    gc.collect()
    for artifact_id in (first, second):
        shelf.evict(artifact_id)
    eventually(lambda: shelf.capacity().unnamed_bytes == 0, "nothing of the adapters is mapped any more")
    model = warmshelf.peft.load_adapter(model, shelf, first)
    warmshelf.peft.switch(model, first)
    assert torch.equal(logits(model), logits(load_by_peft(tiny_llama(), sources[first])))


def test_an_adapter_that_a_model_has_not_is_named(shelf: warmshelf.Shelf, sources: dict[str, Path]) -> None:
    first, second, *_ = KINDS
    model = adapted_by(shelf, [first])
    for act in (warmshelf.peft.switch, warmshelf.peft.remove):
        with pytest.raises(errors.InvalidRequest, match=f"no adapter '{second}'"):
            act(model, second)
        with pytest.raises(errors.InvalidRequest, match="no adapter"):
            act(tiny_llama(), first)
    with pytest.raises(errors.InvalidRequest, match="already"):
        warmshelf.peft.load_adapter(model, shelf, first)
    model.merge_adapter()
    said = logits(model)
    with pytest.raises(errors.InvalidRequest, match=r"cannot remove 'acme/plain:v1.2'"):
        warmshelf.peft.remove(model, first)
    assert torch.equal(logits(model), said)


def test_what_changed_its_base_is_not_taken_off(shelf: warmshelf.Shelf, tmp_path: Path) -> None:
    """PEFT took the base's weights apart for it, so without it the model would say what nobody trained."""
    shelf.register("acme/pissa", save_adapter(tiny_llama(), tmp_path / "a", init_lora_weights="pissa"))
    model = warmshelf.peft.load_adapter(tiny_llama(), shelf, "acme/pissa")
    said = logits(model)
    with pytest.raises(errors.FeatureUnsupported, match="init:pissa"):
        warmshelf.peft.remove(model, "acme/pissa")
    assert torch.equal(logits(model), said)
