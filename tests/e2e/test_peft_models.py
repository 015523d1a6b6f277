"""Adapters through the daemon into a model of PEFT: what it computes is what it computes with PEFT's own loading."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft.tuners.lora.config import BdLoraConfig, VeloraConfig

import warmshelf
import warmshelf.peft
import warmshelf.torch
import warmshelf.transformers
from kit.llama import LAYER_COUNT, VOCABULARY, load_by_peft, logits, save_adapter, save_model, tiny_llama
from kit.processes import Daemon
from warmshelf import EngineOutcome, errors

pytestmark = [
    # What PEFT says of these adapters and of transformers.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning"),
]

ID = "acme/support-lora:v1.2+x@y"
"""With every kind of sign that an ID may have."""


@pytest.fixture
def shelf(shared: Daemon) -> Iterator[warmshelf.Shelf]:
    with shared.connect(timeout=30) as it:
        yield it


DIFFERENT: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"use_rslora": True, "r": 16, "lora_alpha": 32},
    "dora": {"use_dora": True},
    "dora of everything": {"use_dora": True, "use_rslora": True, "target_modules": "all-linear"},
    "patterns": {
        "target_modules": ["q_proj", "v_proj", "down_proj"],
        "rank_pattern": {"v_proj": 8, r"layers\.1\.self_attn\.q_proj": 2},
        "alpha_pattern": {"v_proj": 64},
    },
    "a regex": {"target_modules": r".*layers\.[02]\.mlp\.(up|gate)_proj", "exclude_modules": ["gate_proj"]},
    "some layers": {"layers_to_transform": [1], "layers_pattern": "layers"},
    "modules to save": {"modules_to_save": ["lm_head", "norm"]},
    "embeddings to save": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "an embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "tokens of the input": {"trainable_token_indices": [5, 9, 30]},
    "tokens of both ends": {"trainable_token_indices": {"embed_tokens": [5, 9], "lm_head": [1, 2, 3]}},
    "bias of the adapted": {"bias": "lora_only"},
    "all biases": {"bias": "all"},
    "bias of the pairs": {"lora_bias": True},
    "layers used twice": {"layer_replication": [[0, 2], [1, LAYER_COUNT]]},
    "pissa": {"init_lora_weights": "pissa"},
    "olora": {"init_lora_weights": "olora"},
    "velora": {"velora_config": VeloraConfig()},
    "qalora": {"use_qalora": True, "qalora_group_size": 4},
    "blocks": {
        "use_bdlora": BdLoraConfig(nblocks=2, target_modules_bd_a=["o_proj"], target_modules_bd_b=["q_proj"]),
        "target_modules": ["q_proj", "o_proj"],
    },
    "mica": {"init_lora_weights": "mica"},
    "gaussian": {"init_lora_weights": "gaussian"},
    "eva": {"init_lora_weights": "eva"},
    "orthogonal": {"init_lora_weights": "orthogonal"},
    "tied tokens": {"tied": True, "trainable_token_indices": [5, 9, 30]},
    "tied embeddings": {"tied": True, "target_modules": ["embed_tokens", "q_proj"], "ensure_weight_tying": True},
    "a tied output to save": {"tied": True, "modules_to_save": ["lm_head"]},
    "tied ends to save": {"tied": True, "modules_to_save": ["embed_tokens", "lm_head"]},
    "both ends tied to save": {"tied": True, "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    "alora": {"alora_invocation_tokens": [9, 2]},
}


@pytest.mark.parametrize("kind", sorted(DIFFERENT))
def test_a_model_says_what_it_says_with_pefts_own_loading(shelf: warmshelf.Shelf, tmp_path: Path, kind: str) -> None:
    """B06, B07, B08, B10, B12: bit for bit, and nothing is cast on either side."""
    fields = dict(DIFFERENT[kind])
    _compare(shelf, tmp_path, tiny_llama(tied=fields.pop("tied", False)), fields)


@pytest.mark.parametrize("seed", range(3))
def test_random_adapters_say_what_they_say_with_pefts_own_loading(
    shelf: warmshelf.Shelf, tmp_path: Path, seed: int
) -> None:
    """B06, B07, B08, B10: whatever comes together, in the dtype in which PEFT trains by default."""
    chance = random.Random(seed)
    modules = chance.sample(["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj"], 3)
    fields: dict[str, Any] = {
        "r": chance.choice([1, 3, 8]),
        "lora_alpha": chance.choice([1, 7, 32, 0.5]),
        "target_modules": modules,
        "use_rslora": chance.random() < 0.5,
        "use_dora": chance.random() < 0.5,
        "rank_pattern": {name: chance.randint(1, 9) for name in modules[:2]},
        "alpha_pattern": {modules[2]: chance.randint(1, 99)},
        "modules_to_save": chance.choice([None, ["norm"], ["lm_head"]]),
        "trainable_token_indices": chance.choice([None, chance.sample(range(VOCABULARY), 3)]),
        "bias": chance.choice(["none", "lora_only", "all"]),
    }
    _compare(shelf, tmp_path, tiny_llama(dtype=torch.float32), fields)


def _compare(shelf: warmshelf.Shelf, tmp_path: Path, model: Any, fields: dict[str, Any]) -> None:
    plain = logits(model)
    source = save_adapter(model, tmp_path / "adapter", **fields)
    expected = logits(load_by_peft(model, source))
    assert not torch.equal(expected, plain)
    shelf.register("base", save_model(model, tmp_path / "base"))
    artifact = shelf.register(ID, source, base="base")
    adapter = artifact.inspection.adapter  # type: ignore[union-attr]
    assert adapter is not None
    assert adapter.base_check is warmshelf.BaseCheck.MATCHED
    assert adapter.engine_verdicts[0].outcome in (EngineOutcome.SERVES, EngineOutcome.CONDITIONAL), adapter
    with shelf.acquire("base", timeout=30) as lease:
        leased = warmshelf.transformers.load_model(lease)
    assert torch.equal(logits(leased), plain)
    adapted = warmshelf.peft.load_adapter(leased, shelf, ID)
    assert torch.equal(logits(adapted), expected)
    assert not adapted.training


def test_several_adapters_share_a_model_and_copy_nothing(shelf: warmshelf.Shelf, tmp_path: Path) -> None:
    """B10: each says its own, whatever the others train; their parameters are the leases' memory."""
    model = tiny_llama()
    kinds: list[dict[str, Any]] = [{}, {"use_dora": True, "r": 2}, {"modules_to_save": ["lm_head"]}]
    kinds.append({"trainable_token_indices": [1, 5]})
    sources = [save_adapter(model, tmp_path / f"a{i}", seed=i, **fields) for i, fields in enumerate(kinds)]
    adapted, leases = model, []
    for i, source in enumerate(sources):
        shelf.register(f"a.{i}", source)
        leases.append(shelf.acquire(f"a.{i}", timeout=30))
        adapted = warmshelf.peft.load_adapter(adapted, leases[-1])
    for i, source in enumerate(sources):
        adapted.set_adapter(warmshelf.peft.adapter_name(f"a.{i}"))
        assert torch.equal(logits(adapted), logits(load_by_peft(tiny_llama(), source)))
    with adapted.disable_adapter():
        assert torch.equal(logits(adapted), logits(tiny_llama()))
    for lease in leases:
        at = {tensor.data_ptr() for tensor in warmshelf.torch.tensors(lease).values()}
        name = warmshelf.peft.adapter_name(lease.artifact.artifact_id)
        held = {part.data_ptr() for key, part in adapted.named_parameters() if f".{name}." in f"{key}."}
        assert held == at
        lease.release()
    with pytest.raises(errors.InvalidRequest, match="already"):
        warmshelf.peft.load_adapter(adapted, shelf, "a.0")
