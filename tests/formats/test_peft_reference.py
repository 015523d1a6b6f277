"""Adapters as PEFT itself writes them."""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.adapters import CONFIG, WEIGHTS
from warmshelf.types import BaseCheck
from warmshelfd.domain.base_check import check_against_base
from warmshelfd.formats.base import FormatLimits, Inspected
from warmshelfd.formats.peft import PeftFormat
from warmshelfd.formats.peft_config import KNOWN_FIELDS

torch = importlib.import_module("torch")
peft = importlib.import_module("peft")
pytorch_utils = importlib.import_module("transformers.pytorch_utils")

Save = Callable[..., tuple[Inspected, dict[str, tuple[int, ...]]]]

WIDTH, VOCABULARY, EXPERTS = 8, 10, 3
Q = tuple(f"model.layers.{i}.q_proj" for i in (0, 1))
V = tuple(f"model.layers.{i}.v_proj" for i in (0, 1))
C = tuple(f"model.layers.{i}.c_attn" for i in (0, 1))
BOTH = (Q[0], V[0], Q[1], V[1])
ALL_BIASED = (C[0], "model.layers.0.conv", Q[0], V[0], C[1], "model.layers.1.conv", Q[1], V[1])
LINEAR = ("lm_head", C[0], Q[0], V[0], C[1], Q[1], V[1])


def tiny_model(*, tied: bool = False) -> Any:
    """A model of two layers, each with two projections, a convolution and experts in one parameter."""
    nn = torch.nn
    model = nn.Module()
    model.model = nn.Module()
    model.model.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
    model.model.layers = nn.ModuleList()
    for _ in range(2):
        layer = nn.Module()
        layer.q_proj, layer.v_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        layer.conv, layer.c_attn = nn.Conv2d(4, 6, 3), pytorch_utils.Conv1D(3 * WIDTH, WIDTH)
        layer.experts = nn.Module()
        layer.experts.gate_up_proj = nn.Parameter(torch.zeros(EXPERTS, WIDTH, 32))
        layer.experts.down_proj = nn.Parameter(torch.zeros(EXPERTS, 16, WIDTH))
        model.model.layers.append(layer)
    model.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    return model


@pytest.fixture
def save(tmp_path: Path, memory_files: Any) -> Save:
    """Save an adapter with a config of the given fields; return what is read, and the base's names and shapes."""

    def run(*, tied: bool = False, **fields: Any) -> tuple[Inspected, dict[str, tuple[int, ...]]]:
        model = tiny_model(tied=tied)
        base = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT warns of what these adapters are for
            config = peft.LoraConfig(**{"r": 4, "target_modules": ["q_proj", "v_proj"], **fields})
            peft.get_peft_model(model, config).save_pretrained(str(tmp_path))
        content = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        inspected = PeftFormat().inspect(memory_files(content), FormatLimits())
        assert inspected.adapter
        assert inspected.adapter.config_json == content[CONFIG]
        assert {entry.name: list(entry.shape) for entry in inspected.entries} == header(content[WEIGHTS])
        return inspected, base

    return run


def header(content: bytes) -> dict[str, list[int]]:
    """Return every tensor's shape, read without the format."""
    size = int.from_bytes(content[:8], "little")
    rows = json.loads(content[8 : 8 + size])
    return {name: row["shape"] for name, row in rows.items() if name != "__metadata__"}


@pytest.mark.parametrize(
    ("fields", "features", "module_names", "rank_max"),
    [
        ({}, (), BOTH, 4),
        ({"use_rslora": True, "r": 16}, ("rslora",), BOTH, 16),
        ({"use_dora": True}, ("dora",), BOTH, 4),
        (
            {"rank_pattern": {"v_proj": 16}, "alpha_pattern": {"v_proj": 64}},
            ("alpha_pattern", "rank_pattern"),
            BOTH,
            16,
        ),
        ({"modules_to_save": ["lm_head"]}, ("modules_to_save",), ("lm_head", *BOTH), 4),
        ({"bias": "lora_only"}, ("bias",), BOTH, 4),
        ({"bias": "all"}, ("bias",), ALL_BIASED, 4),
        ({"lora_bias": True}, ("lora_bias",), BOTH, 4),
        (
            {"trainable_token_indices": {"embed_tokens": [1, 2]}},
            ("trainable_tokens",),
            ("model.embed_tokens", *BOTH),
            4,
        ),
        ({"target_modules": ["embed_tokens", "q_proj"]}, ("embedding",), ("model.embed_tokens", *Q), 4),
        ({"target_modules": ["conv"]}, ("convolution",), ("model.layers.0.conv", "model.layers.1.conv"), 4),
        ({"target_modules": "all-linear"}, (), LINEAR, 4),
        ({"target_modules": ["c_attn"]}, (), C, 4),
        ({"target_modules": ["c_attn"], "fan_in_fan_out": True}, (), C, 4),
        ({"target_modules": r".*layers\.[01]\.[qv]_proj"}, (), BOTH, 4),
        ({"target_modules": "all-linear", "exclude_modules": ["c_attn"]}, (), ("lm_head", *BOTH), 4),
        ({"target_modules": ["q_proj"], "layers_to_transform": 1, "layers_pattern": "layers"}, (), Q[1:], 4),
        ({"trainable_token_indices": [3, 1, 2]}, ("trainable_tokens",), ("model.embed_tokens", *BOTH), 4),
        (
            {"trainable_token_indices": {"embed_tokens": [1, 2], "lm_head": [4]}},
            ("trainable_tokens",),
            ("lm_head", "model.embed_tokens", *BOTH),
            4,
        ),
        ({"rank_pattern": {"layers.1.v_proj": 2}, "r": 6}, ("rank_pattern",), BOTH, 6),
        ({"use_rslora": True, "use_dora": True}, ("dora", "rslora"), BOTH, 4),
        ({"alora_invocation_tokens": [5, 6]}, ("alora",), BOTH, 4),
        (
            {"target_modules": ["q_proj"], "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]},
            ("target_parameters",),
            ("model.layers.0.experts", Q[0], "model.layers.1.experts", Q[1]),
            4,
        ),
        ({"init_lora_weights": "pissa"}, ("init:pissa",), BOTH, 4),
        ({"init_lora_weights": "olora"}, ("init:olora",), BOTH, 4),
        ({"init_lora_weights": "lora_ga"}, ("init:lora_ga",), BOTH, 4),
        ({"init_lora_weights": "gaussian"}, (), BOTH, 4),
        ({"init_lora_weights": "eva"}, (), BOTH, 4),
        ({"init_lora_weights": "mica", "r": 2}, (), BOTH, 2),
        ({"init_lora_weights": "orthogonal"}, (), BOTH, 4),
        ({"tied": True, "modules_to_save": ["lm_head"]}, ("modules_to_save",), ("lm_head", *BOTH), 4),
        (
            {"tied": True, "target_modules": ["embed_tokens", "q_proj"], "ensure_weight_tying": True},
            ("embedding", "weight_tying"),
            ("model.embed_tokens", *Q),
            4,
        ),
    ],
)
def test_what_peft_saves_is_read_and_fits_its_base(
    fields: dict[str, Any], features: tuple[str, ...], module_names: tuple[str, ...], rank_max: int, save: Save
) -> None:
    """B06, B07, B08, B10, B12, B13."""
    inspected, base = save(**fields)
    assert inspected.adapter
    assert inspected.adapter.features == features
    assert inspected.adapter.rank_max == rank_max
    assert inspected.adapter.module_names == module_names
    assert inspected.adapter_shapes
    result = check_against_base(inspected.adapter_shapes, base)
    assert (result.check, result.unmatched, result.vocabulary) == (BaseCheck.MATCHED, (), None)
    assert result.matched == inspected.adapter.module_names


def test_an_output_layer_that_is_saved_fits_a_base_that_leaves_it_out(save: Save) -> None:
    """B12: the base's file has one name for the two tied tensors."""
    inspected, base = save(tied=True, modules_to_save=["lm_head"])
    del base["lm_head.weight"]
    assert inspected.adapter_shapes
    assert check_against_base(inspected.adapter_shapes, base).check is BaseCheck.MATCHED


def test_every_field_that_peft_writes_is_known() -> None:
    """B13: a newer PEFT's fields are to be sorted into those that matter and those that do not."""
    assert set(peft.LoraConfig().to_dict()) - KNOWN_FIELDS == set()
