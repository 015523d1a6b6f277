"""Every row of a batch is answered as peft answers it with that row's adapter alone, and without one as the base."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import warmshelf
import warmshelf.torch
from bank.conftest import ADAPTERS, artifact_id
from kit.llama import VOCABULARY, load_by_peft, tiny_llama
from warmshelf.torch import AdapterBank, apply_bank

TOLERANCE = 1e-5
"""Of logits in f32: sums are taken in another order."""

ERROR_RATIO_MAX = 1.5
"""In bf16 the rounding of each layer is carried through all that follow, in peft as here. So both are compared
with the same in f32: the mean error may be so many times peft's own, which it is now above and now below.
"""

ROWS: list[str | None] = ["plain", None, "patterns", "plain", "rslora", None, "rank8", "rank1", "one layer"]


def prompts(row_count: int, token_count: int) -> torch.Tensor:
    torch.manual_seed(row_count)
    return torch.randint(1, VOCABULARY, (row_count, token_count))


@torch.no_grad()
def answers(model: Any, tokens: torch.Tensor, step_count: int = 3) -> torch.Tensor:
    """Return the logits of a prompt and of tokens after it, which are decoded one by one with the cache."""
    prompt, rest = tokens[:, :-step_count], tokens[:, -step_count:]
    cache = transformers.DynamicCache()
    parts = [model(input_ids=part, cache=cache).logits for part in (prompt, *rest.split(1, dim=1))]
    return torch.cat(parts, dim=1)


def ids(rows: list[str | None]) -> list[str | None]:
    return [row and artifact_id(row) for row in rows]


def expect_as_peft(found: torch.Tensor, model: Any, directory: Path, tokens: torch.Tensor) -> None:
    expected = answers(load_by_peft(model, directory), tokens)
    if model.dtype == torch.float32:
        torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)
        return
    exact = answers(load_by_peft(copy.deepcopy(model).float(), directory), tokens)
    error, error_of_peft = (float((one.float() - exact).abs().mean()) for one in (found, expected))
    assert 0 < error <= ERROR_RATIO_MAX * error_of_peft < 0.02 * exact.abs().max()


@pytest.mark.parametrize(("dtype", "slot_count"), [(torch.float32, 5), (torch.float32, 40), (torch.bfloat16, 5)])
def test_each_row_is_as_with_peft_and_its_adapter_alone(
    shelf: warmshelf.Shelf, directories: dict[str, Path], dtype: torch.dtype, slot_count: int
) -> None:
    """B06, B08: mixed ranks, rsLoRA, patterns, missing modules, prefill and decode, few and many slots.

    40 slots are too many to be multiplied by as one even in a decode step; with 5, it is done so.
    """
    model = tiny_llama(dtype=dtype)
    rows = ROWS if slot_count > 5 else ROWS[:6]
    tokens = prompts(len(rows), 20)
    base = answers(model, tokens)
    bank = AdapterBank(model, slot_count=slot_count, rank_max=8)
    with apply_bank(model, bank), bank.slots_for(shelf, ids(rows)) as slots, bank.select(slots):
        found = answers(model, tokens)
    for name in {row for row in rows if row}:
        mine = [i for i, row in enumerate(rows) if row == name]
        expect_as_peft(found[mine], model, directories[name], tokens[mine])
        assert (found[mine] - base[mine]).abs().max() > 0.3
    without = [i for i, row in enumerate(rows) if row is None]
    assert torch.equal(found[without].view(torch.uint8), base[without].view(torch.uint8))


def test_a_bank_may_hold_its_copies_in_another_dtype(shelf: warmshelf.Shelf, directories: dict[str, Path]) -> None:
    model = tiny_llama(dtype=torch.bfloat16)
    tokens = prompts(2, 12)
    base = answers(model, tokens)
    bank = AdapterBank(model, slot_count=2, rank_max=8, dtype=torch.bfloat16)
    with apply_bank(model, bank), bank.slots_for(shelf, ids(["plain", None])) as slots, bank.select(slots):
        found = answers(model, tokens)
    expect_as_peft(found[:1], model, directories["plain"], tokens[:1])
    assert torch.equal(found[1:], base[1:])


def test_negative_zeros_of_a_row_without_an_adapter_stay_negative(shelf: warmshelf.Shelf) -> None:
    """Bit by bit, not only in value."""
    model = tiny_llama(dtype=torch.float32)
    layer = model.model.layers[0].mlp.down_proj
    bank = AdapterBank(model, rank_max=8)
    x = torch.zeros(2, 1, layer.in_features)
    with torch.no_grad(), apply_bank(model, bank), bank.slots_for(shelf, ids(["plain", None])) as slots:
        layer.weight.fill_(-1.0)
        x[1] = -0.0
        before = layer(x)
        with bank.select(slots):
            found = layer(x)
    assert torch.equal(found[1].signbit(), before[1].signbit())


def test_outside_a_selection_and_after_removal_the_model_is_its_own(shelf: warmshelf.Shelf, model: Any) -> None:
    tokens = prompts(2, 8)
    base = answers(model, tokens)
    bank = AdapterBank(model, rank_max=8)
    names = [name for name, _ in model.named_modules()]
    applied = apply_bank(model, bank)
    with bank.slots_for(shelf, ids(["plain", "rank8"])) as slots:
        with bank.select(slots):
            assert not torch.equal(answers(model, tokens), base)
        assert torch.equal(answers(model, tokens), base)
    assert [name for name, _ in model.named_modules()] == names
    applied.remove()
    applied.remove()
    assert not any(module._forward_hooks for module in model.modules())


def test_the_stacks_have_padded_ranks_and_the_scaling_and_the_shelf_keeps_its_bytes(
    shelf: warmshelf.Shelf, model: Any
) -> None:
    """[slots, rank_max, in] and [slots, out, rank_max]; folding the scaling changes the bank's own copy only."""
    list(shelf.load(artifact_id("rank1")))
    digest = shelf.get(artifact_id("rank1")).digest
    bank = AdapterBank(model, slot_count=3, rank_max=8)
    with bank.slots_for(shelf, ids(["rank1"])) as slots, shelf.acquire(artifact_id("rank1")) as lease:
        (stack,) = bank.stacks("model.layers.0.self_attn.v_proj")
        tensors = warmshelf.torch.tensors(lease)
        name = "base_model.model.model.layers.0.self_attn.v_proj"
        a, b = stack.a[slots[0] - 1], stack.b[slots[0] - 1]
        assert stack.a.shape == (3, 8, 16)
        assert stack.b.shape == (3, 8, 8)
        assert torch.equal(a[:1], tensors[f"{name}.lora_A.weight"])
        torch.testing.assert_close(b[:, :1], tensors[f"{name}.lora_B.weight"] * 3)
        assert not a[1:].any()
        assert not b[:, 1:].any()
    assert shelf.verify(artifact_id("rank1")) > 0
    assert shelf.get(artifact_id("rank1")).digest == digest


def test_every_kind_of_adapter_is_in_the_rows() -> None:
    assert {row for row in ROWS if row} == ADAPTERS.keys()
