"""Fused layers: adapters name the parts, as trained on a model that has them apart, or the whole."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import warmshelf
from kit.llama import TOKENS, VOCABULARY, load_by_peft, logits, save_adapter
from kit.processes import Daemon
from warmshelf import errors
from warmshelf.torch import AdapterBank, apply_bank

WIDTH, KEYS, INNER = 16, 8, 24
PARTS = {
    "self_attn.qkv_proj": {"q_proj": WIDTH, "k_proj": KEYS, "v_proj": KEYS},
    "mlp.gate_up_proj": {"gate_proj": INNER, "up_proj": INNER},
}


@pytest.fixture(scope="module")
def phi() -> Any:
    """A tiny model with fused layers."""
    torch.manual_seed(3)
    config = transformers.Phi3Config(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.3,
    )
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def save_parts(directory: Path, ranks: dict[str, int]) -> Path:
    """Save an adapter of the parts that have a rank, each with pairs of its own, and scaling 2."""
    torch.manual_seed(5)
    tensors = {}
    for layer in range(2):
        for module, parts in PARTS.items():
            for part, size in parts.items():
                rank = ranks.get(part)
                if rank:
                    stem = f"base_model.model.model.layers.{layer}.{module.rpartition('.')[0]}.{part}"
                    tensors[f"{stem}.lora_A.weight"] = torch.randn(rank, WIDTH) * 0.3
                    tensors[f"{stem}.lora_B.weight"] = torch.randn(size, rank) * 0.3
    directory.mkdir(exist_ok=True)
    save_file(tensors, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": list(ranks)}
    pattern = {part: rank for part, rank in ranks.items() if rank != 4}
    patterns = {"rank_pattern": pattern, "alpha_pattern": {part: 2 * rank for part, rank in pattern.items()}}
    (directory / "adapter_config.json").write_text(json.dumps({**config, **patterns}))
    return directory


def merged(phi: Any, directory: Path) -> Any:
    """Return a copy with the pairs added to the weights: what the parts mean."""
    model = copy.deepcopy(phi)
    tensors = load_file(directory / "adapter_model.safetensors")
    for layer in range(2):
        for module, parts in PARTS.items():
            weight = model.get_submodule(f"model.layers.{layer}.{module}").weight
            start = 0
            for part, size in parts.items():
                stem = f"base_model.model.model.layers.{layer}.{module.rpartition('.')[0]}.{part}"
                if f"{stem}.lora_A.weight" in tensors:
                    product = tensors[f"{stem}.lora_B.weight"] @ tensors[f"{stem}.lora_A.weight"]
                    weight.data[start : start + size] += 2 * product
                start += size
    return model


@pytest.fixture
def made(daemon: Daemon, phi: Any, shelf: warmshelf.Shelf) -> Iterator[dict[str, Any]]:
    """What each adapter must answer, by its ID."""
    whole = save_adapter(phi, daemon.models / "whole", target_modules=["qkv_proj", "gate_up_proj", "down_proj"])
    apart = save_parts(daemon.models / "apart", {"q_proj": 4, "k_proj": 2, "v_proj": 4, "gate_proj": 4, "up_proj": 1})
    some = save_parts(daemon.models / "some", {"v_proj": 3, "up_proj": 4})
    directories = {"fused/whole": whole, "fused/apart": apart, "fused/some": some}
    for name, directory in directories.items():
        shelf.register(name, directory)
    yield {
        "fused/whole": logits(load_by_peft(phi, whole)),
        "fused/apart": logits(merged(phi, apart)),
        "fused/some": logits(merged(phi, some)),
    }
    for name in directories:
        shelf.remove(name)


def test_rows_name_parts_or_wholes_in_one_batch(shelf: warmshelf.Shelf, phi: Any, made: dict[str, Any]) -> None:
    bank = AdapterBank(phi, slot_count=3, rank_max=4)
    assert [stack.b.shape for stack in bank.stacks("model.layers.1.self_attn.qkv_proj")] == [
        (3, 16, 4),
        (3, 8, 4),
        (3, 8, 4),
    ]
    base = logits(phi)
    rows = [None, *made]
    with apply_bank(phi, bank), bank.slots_for(shelf, rows) as slots, bank.select(slots), torch.no_grad():
        found = phi(input_ids=TOKENS.expand(4, -1)).logits
    assert torch.equal(found[:1], phi(input_ids=TOKENS.expand(4, -1)).logits[:1])
    for row, name in enumerate(made, start=1):
        torch.testing.assert_close(found[row : row + 1], made[name], rtol=0, atol=1e-4)
        assert (made[name] - base).abs().max() > 0.1


def test_sizes_of_parts_can_be_said_and_must_add_up(shelf: warmshelf.Shelf, phi: Any, made: dict[str, Any]) -> None:
    bank = AdapterBank(phi, rank_max=4, fused={"qkv_proj": {"q_proj": 16, "k_proj": 8, "v_proj": 8}})
    with pytest.raises(errors.BaseMismatch, match="gate_proj"):
        bank.slots_for(shelf, ["fused/apart"])
    bank.slots_for(shelf, ["fused/whole"]).release()
    with pytest.raises(errors.InvalidRequest, match="has 32 outputs"):
        AdapterBank(phi, fused={"qkv_proj": {"q_proj": 16, "k_proj": 8}})
