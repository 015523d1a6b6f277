"""What ``adapter_config.json`` says, and which of its faults stop a registration."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kit.adapters import CONFIG, WEIGHTS, config_bytes, pair, weights_bytes
from warmshelf.errors import MalformedArtifact, UnsupportedFormat
from warmshelf.types import AdapterInspection
from warmshelfd.formats.base import FormatLimits
from warmshelfd.formats.peft import PeftFormat
from warmshelfd.formats.peft_config import config_features, declared_ranks, parse_config, replicated_layers


@pytest.fixture
def inspect(memory_files: Any) -> Any:
    """Inspect an adapter with the given config."""

    def run(config: bytes) -> AdapterInspection:
        files = memory_files({CONFIG: config, WEIGHTS: weights_bytes(pair("q_proj"))})
        adapter = PeftFormat().inspect(files, FormatLimits()).adapter
        assert adapter
        return adapter

    return run


@pytest.mark.parametrize(
    ("fields", "features"),
    [
        ({}, set()),
        ({"use_rslora": True}, {"rslora"}),
        ({"use_dora": True}, {"dora"}),
        ({"rank_pattern": {"v_proj": 16}}, {"rank_pattern"}),
        ({"alpha_pattern": {"v_proj": 64}}, {"alpha_pattern"}),
        ({"modules_to_save": ["lm_head"]}, {"modules_to_save"}),
        ({"bias": "all"}, {"bias"}),
        ({"bias": "lora_only"}, {"bias"}),
        ({"lora_bias": True}, {"lora_bias"}),
        ({"trainable_token_indices": [1, 2]}, {"trainable_tokens"}),
        ({"trainable_token_indices": {"emb": [1]}}, {"trainable_tokens"}),
        ({"layer_replication": [[0, 2], [1, 3]]}, {"layer_replication"}),
        ({"alora_invocation_tokens": [5, 6]}, {"alora"}),
        ({"target_parameters": ["experts.down_proj"]}, {"target_parameters"}),
        ({"ensure_weight_tying": True}, {"weight_tying"}),
        ({"megatron_config": {"x": 1}}, {"megatron"}),
        ({"use_qalora": True}, {"qalora"}),
        ({"use_bdlora": {}}, {"bdlora"}),
        ({"arrow_config": {}}, {"arrow"}),
        ({"kasa_config": {"beta": 1e-4}}, {"kasa"}),
        ({"monteclora_config": {}}, {"monteclora"}),
        ({"velora_config": {}}, {"velora"}),
        ({"init_lora_weights": "pissa"}, {"init:pissa"}),
        ({"init_lora_weights": "pissa_niter_16"}, {"init:pissa_niter"}),
        ({"init_lora_weights": "olora"}, {"init:olora"}),
        ({"init_lora_weights": "loftq", "loftq_config": {"loftq_bits": 4}}, {"init:loftq"}),
        ({"init_lora_weights": "corda"}, {"init:corda"}),
        ({"init_lora_weights": "future"}, {"init:future"}),
        *[
            ({"init_lora_weights": init}, set())
            for init in (True, False, None, "gaussian", "eva", "mica", "orthogonal")
        ],
        ({"init_lora_weights": "lora_ga"}, {"init:lora_ga"}),
        ({"bias": "future"}, {"unknown_bias:future"}),
        ({"use_rslora": True, "use_dora": True}, {"rslora", "dora"}),
        ({"use_rslora": False, "rank_pattern": {}, "modules_to_save": [], "bias": "none", "lora_bias": None}, set()),
        ({"fan_in_fan_out": True, "lora_dropout": 0.5, "base_model_name_or_path": "x/y"}, set()),
    ],
)
def test_fields_that_change_the_meaning_are_features(fields: dict[str, object], features: set[str]) -> None:
    """B06, B07, B08, B10."""
    assert config_features(parse_config(config_bytes(**fields))) == features


def test_unknown_fields_stop_nothing_and_those_that_say_something_are_named(inspect: Any) -> None:
    """B13."""
    config = config_bytes(
        future_field=None, future_field2={"x": 1}, future_flag=False, peft_version="9.9", **{"nul\0": 1}
    )
    adapter = inspect(config)
    assert adapter.features == ("unknown_field:future_field2", "unknown_field:future_flag", r"unknown_field:nul\x00")
    assert adapter.config_json == config


def test_a_byte_order_mark_is_passed_over_and_kept(inspect: Any) -> None:
    """B13."""
    config = b"\xef\xbb\xbf" + config_bytes(use_rslora=True)
    assert inspect(config) == AdapterInspection(
        rank_max=4, module_names=("q_proj",), features=("rslora",), config_json=config
    )


def test_the_bases_name_is_nothing_but_a_hint(inspect: Any) -> None:
    """B17: null, a path of the trainer's, a name on the hub: none is looked up."""
    for name in (None, "/home/trainer/model", "org/gone", ...):
        assert inspect(config_bytes(base_model_name_or_path=name)).features == ()


@pytest.mark.parametrize("peft_type", ["IA3", "ADALORA", "lora", "PROMPT_TUNING", ""])
def test_another_kind_of_adapter_is_refused_by_its_name(peft_type: str, inspect: Any) -> None:
    """B13."""
    with pytest.raises(UnsupportedFormat, match=f"{CONFIG}: peft_type is '{peft_type}'") as caught:
        inspect(config_bytes(peft_type=peft_type))
    assert caught.value.details["peft_type"] == peft_type


@pytest.mark.parametrize("peft_type", [..., None, 5, ["LORA"]])
def test_a_config_that_does_not_say_its_kind_is_refused(peft_type: object, inspect: Any) -> None:
    """B13: PEFT cannot load it either."""
    with pytest.raises(MalformedArtifact, match=f"{CONFIG}: has no peft_type"):
        inspect(config_bytes(peft_type=peft_type))


@pytest.mark.parametrize(
    "config",
    [
        b"",
        b"not json",
        b"null",
        b'"LORA"',
        b'["peft_type"]',
        b'{"peft_type": "LORA"',
        b'{"peft_type": "LORA"} x',
        b'{"peft_type": "LORA", "peft_type": "IA3"}',
        b'{"peft_type": "LORA", "r": NaN}',
        b'{"peft_type": "LORA", "x": "\xff"}',
        b'{"peft_type": "LORA", "x": "\\ud800"}',
        b'{"peft_type": "LORA", "x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b'{"peft_type": "LORA", "x": ' + b"9" * 5000 + b"}",
        json.dumps({"peft_type": "LORA"}).encode("utf-16"),
        b"\x80\x04.",
        bytes(64),
    ],
)
def test_what_is_no_json_object_is_refused_by_the_files_name(config: bytes, inspect: Any) -> None:
    """B13."""
    with pytest.raises(MalformedArtifact, match=CONFIG) as caught:
        inspect(config)
    assert caught.value.details["file"] == CONFIG


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("r", value) for value in (0, -1, 4.0, "4", True, None, [4], 1 << 17)],
        *[("lora_alpha", value) for value in ("8", None, True, 1e300, 10**400)],
        *[("rank_pattern", value) for value in ([16], {"v_proj": 0}, {"v_proj": "16"}, {"v_proj": None})],
        *[("alpha_pattern", value) for value in ({"v_proj": "64"}, 5)],
        *[("target_modules", value) for value in (5, [5], {"q_proj": 1})],
        *[("modules_to_save", value) for value in ("lm_head", [None])],
        *[
            ("layer_replication", value)
            for value in ([[2, 1]], [[0, 2, 3]], [[0, 5000]], [[-1, 2]], "0-2", [[0, True]])
        ],
        *[("trainable_token_indices", value) for value in ([-1], {"emb": 1}, {"emb": [True]}, "all", [1 << 40])],
        *[("alora_invocation_tokens", value) for value in ([1.5], "<s>")],
        *[("use_rslora", value) for value in ("yes", 1)],
        ("use_dora", "no"),
        ("bias", False),
        ("init_lora_weights", 5),
    ],
)
def test_a_field_that_holds_what_it_cannot_is_refused_by_its_name(field: str, value: object, inspect: Any) -> None:
    """B13, B08."""
    with pytest.raises(MalformedArtifact, match=f"{CONFIG}: {field} is ") as caught:
        inspect(config_bytes(**{field: value}))
    assert caught.value.details["field"] == field


@pytest.mark.parametrize(
    "fields",
    [
        *[{"target_modules": value} for value in (["q_proj"], r".*\.q_proj", "all-linear", None, [], ...)],
        *[{"exclude_modules": value} for value in (["v_proj"], r".*v.*", None)],
        *[{"layers_to_transform": value} for value in (0, [0, 1], None)],
        {"layers_pattern": "layers", "layers_to_transform": [0]},
        {"rank_pattern": None, "alpha_pattern": {}},
        {"lora_alpha": 0.5},
        {"lora_alpha": ...},
    ],
)
def test_every_form_that_peft_writes_is_taken_as_it_stands(fields: dict[str, object], inspect: Any) -> None:
    """B13: which modules is said by the tensors too, so the forms of the field need nothing of a worker."""
    adapter = inspect(config_bytes(**fields))
    assert adapter.features == ()
    assert adapter.config_json == config_bytes(**fields)


def test_the_ranks_of_the_config_are_all_that_it_names() -> None:
    assert declared_ranks({"r": 4, "rank_pattern": {"a": 16, "b": 2}}) == {2, 4, 16}
    assert declared_ranks({"rank_pattern": None}) == {8}
    assert declared_ranks({}) == {8}


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"r": 8}, "8"), ({"r": ...}, "8"), ({"r": 2, "rank_pattern": {"v_proj": 16}}, "2 or 16")],
)
def test_a_rank_that_the_tensors_do_not_have_is_refused_with_both_numbers(
    fields: dict[str, object], said: str, inspect: Any
) -> None:
    """B08: the tensors have 4."""
    with pytest.raises(
        MalformedArtifact, match=f"'q_proj': the tensors have rank 4, and {CONFIG} says {said}"
    ) as caught:
        inspect(config_bytes(**fields))
    assert (caught.value.details["tensor_rank"], caught.value.details["config_rank"]) == (4, said)


def test_layers_used_twice_are_counted_out() -> None:
    assert replicated_layers({"layer_replication": [[0, 2], [1, 3]]}) == (0, 1, 1, 2)
    assert replicated_layers({}) == replicated_layers({"layer_replication": None}) == ()
