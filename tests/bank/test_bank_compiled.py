"""A model with a bank compiles as one program, which serves other adapters without being compiled again."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

import warmshelf
from bank.conftest import artifact_id
from kit.llama import VOCABULARY
from warmshelf.torch import AdapterBank, apply_bank

BACKEND = "inductor" if shutil.which("g++") else "aot_eager"
"""Inductor needs a C++ compiler on a CPU; without one the program is traced and made functional all the same."""

BATCHES = [["plain", "rank1", None], ["rslora", None, "rslora"], [None, "rank8", "plain"]]


class Counting:
    """A backend that counts its programs and runs them as they are traced."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, program: Any, inputs: Any) -> Any:
        self.count += 1
        return program


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def batch(token_count: int) -> torch.Tensor:
    torch.manual_seed(token_count)
    return torch.randint(1, VOCABULARY, (3, token_count))


@torch.no_grad()
def ask(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=tokens, use_cache=False).logits
    return found


@pytest.mark.parametrize("token_count", [1, 20])
def test_one_whole_program_serves_every_batch(shelf: warmshelf.Shelf, model: Any, token_count: int) -> None:
    """Decode and prefill; ``fullgraph`` fails where anything would be left out of the program."""
    counting = Counting()
    bank = AdapterBank(model, slot_count=4, rank_max=8)
    tokens = batch(token_count)
    with apply_bank(model, bank):
        compiled = torch.compile(model, backend=counting, fullgraph=True)
        for rows in BATCHES:
            with bank.slots_for(shelf, [row and artifact_id(row) for row in rows]) as slots, bank.select(slots):
                torch.testing.assert_close(ask(compiled, tokens), ask(model, tokens), rtol=0, atol=1e-5)
    assert counting.count == 1


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # Inductor's own, as it starts
def test_what_the_compiler_makes_of_it_counts_the_same(
    shelf: warmshelf.Shelf, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One layer, in machine code: the whole model would take it a minute."""
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)  # no processes for one kernel
    layer = model.model.layers[0].mlp.down_proj
    bank = AdapterBank(model, slot_count=4, rank_max=8)
    x = torch.randn(2, 1, layer.in_features)
    with torch.no_grad(), apply_bank(model, bank):
        compiled = torch.compile(layer, backend=BACKEND, fullgraph=True)
        base = layer(x)
        for rows in (["rank8", None], ["plain", "rank8"]):
            with bank.slots_for(shelf, [row and artifact_id(row) for row in rows]) as slots, bank.select(slots):
                found = compiled(x)
                torch.testing.assert_close(found, layer(x), rtol=0, atol=1e-5)
                assert not torch.allclose(found, base, atol=1e-2)
