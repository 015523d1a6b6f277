"""What engines make of adapters: the tables, row by row, as they were read."""

from __future__ import annotations

import json

import pytest

from warmshelf.types import AdapterInspection, EngineOutcome, EngineVerdict
from warmshelfd.domain.engines import ENGINES, engine_verdicts

SERVES, IF, UNKNOWN = EngineOutcome.SERVES, EngineOutcome.CONDITIONAL, EngineOutcome.UNKNOWN
MISSERVES, REFUSES = EngineOutcome.MISSERVES, EngineOutcome.REFUSES
PLAIN: dict[str, object] = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}


def verdict(engine: str, *features: str, rank: int = 8, **fields: object) -> EngineVerdict:
    config = {name: value for name, value in {**PLAIN, **fields}.items() if value is not ...}
    adapter = AdapterInspection(rank_max=rank, features=features, config_json=json.dumps(config).encode())
    (found,) = (one for one in engine_verdicts(adapter) if one.engine == engine)
    return found


def test_plain_lora_is_served_by_all() -> None:
    assert [
        (one.outcome, one.reasons) for one in engine_verdicts(AdapterInspection(config_json=json.dumps(PLAIN).encode()))
    ] == [(SERVES, ())] * 3
    assert [(one.name, one.version) for one in ENGINES] == [("peft", "0.21"), ("vllm", "0.32"), ("sglang", "0.5.23")]


@pytest.mark.parametrize(
    ("feature", "outcome"),
    [
        *[(feature, SERVES) for feature in ("rslora", "rank_pattern", "alpha_pattern")],
        *[(feature, REFUSES) for feature in ("bias", "dora", "lora_bias", "alora", "layer_replication")],
        *[(feature, REFUSES) for feature in ("bdlora", "qalora", "unknown_bias:x", "vocabulary:10->12")],
        *[(f"init:{name}", REFUSES) for name in ("pissa", "pissa_niter", "olora", "corda", "loftq", "future")],
        ("init:lora_ga", MISSERVES),
        ("embedding", IF),
        *[(feature, UNKNOWN) for feature in ("trainable_tokens", "target_parameters", "kasa", "unknown_field:x")],
    ],
)
def test_vllm_does_with_a_feature_what_was_read_there(feature: str, outcome: EngineOutcome) -> None:
    """B06, B07, B10."""
    found = verdict("vllm", feature)
    assert found.outcome is outcome
    assert [reason.startswith(f"{feature}: ") for reason in found.reasons] == [True] * (outcome is not SERVES)


@pytest.mark.parametrize(
    ("module", "fields", "features", "reason"),
    [
        ("layers.0.v_proj", {}, (), "target_modules does not name layers.0.v_proj"),
        ("layers.0.my_q_proj", {}, (), "target_modules does not name layers.0.my_q_proj"),
        ("layers.0.q_proj", {"use_dora": False}, ("dora",), "use_dora is not set"),
    ],
)
def test_peft_leaves_out_tensors_of_which_the_config_does_not_tell(
    module: str, fields: dict[str, object], features: tuple[str, ...], reason: str
) -> None:
    """B07, B15: tried with PEFT's own from_pretrained, which says nothing."""
    config = json.dumps({**PLAIN, **fields}).encode()
    peft, *_ = engine_verdicts(AdapterInspection(features=features, module_names=(module,), config_json=config))
    assert peft.outcome is MISSERVES
    assert any(reason in text for text in peft.reasons)


@pytest.mark.parametrize("module", ["q_proj", "model.layers.0.q_proj"])
def test_peft_serves_modules_that_the_config_names(module: str) -> None:
    peft, *_ = engine_verdicts(AdapterInspection(module_names=(module,), config_json=json.dumps(PLAIN).encode()))
    assert peft.outcome is SERVES


@pytest.mark.parametrize(
    ("rank", "pattern", "outcome", "reason"),
    [
        (16, {}, SERVES, None),
        (17, {}, IF, "rank 17: needs max_lora_rank 32, it is 16 by default"),
        (8, {"v_proj": 100}, IF, "rank 100: needs max_lora_rank 128, it is 16 by default"),
        (512, {}, IF, "rank 512: needs max_lora_rank 512, it is 16 by default"),
        (513, {}, REFUSES, "rank 513: takes at most 512"),
    ],
)
def test_vllm_takes_ranks_up_to_the_next_limit_that_can_be_chosen(
    rank: int, pattern: dict[str, int], outcome: EngineOutcome, reason: str | None
) -> None:
    """B08: said at registration, with both numbers."""
    found = verdict("vllm", rank=rank, rank_pattern=pattern)
    assert (found.outcome, found.reasons) == (outcome, (reason,) if reason else ())


def test_vllm_saves_no_modules_but_those_that_classify() -> None:
    saved = "modules_to_save"
    assert verdict("vllm", saved, modules_to_save=["classifier", "score"]).outcome is IF
    assert verdict("vllm", saved, modules_to_save=["score", "lm_head"]).outcome is REFUSES
    assert verdict("peft", saved, modules_to_save=["lm_head"]).outcome is SERVES


def test_vllm_needs_three_fields() -> None:
    found = verdict("vllm", r=..., target_modules=...)
    assert (found.outcome, found.reasons) == (REFUSES, ("the config must have r and target_modules",))
    assert verdict("vllm", target_modules=None).outcome is SERVES
    assert verdict("peft", r=...).outcome is SERVES


def test_the_worst_decides_and_every_reason_is_told_worst_first() -> None:
    found = verdict("vllm", "dora", "embedding", "kasa", "rslora", rank=64)
    assert found.outcome is REFUSES
    assert [reason.partition(":")[0] for reason in found.reasons] == ["dora", "kasa", "rank 64", "embedding"]


@pytest.mark.parametrize(
    ("feature", "outcome"),
    [
        *[(feature, SERVES) for feature in ("adapter_name:x", "key_prefix:none", "key_wrapper:module")],
        *[(feature, MISSERVES) for feature in ("rslora", "alpha_pattern", "alora", "lora_bias", "modules_to_save")],
        *[(feature, MISSERVES) for feature in ("init:pissa", "trainable_tokens", "vocabulary:10->12")],
        *[(feature, MISSERVES) for feature in ("unknown_field:x", "unknown_tensor:x")],
        *[(feature, REFUSES) for feature in ("bias", "dora", "layer_replication", "rank_pattern")],
        ("embedding", IF),
        *[(feature, UNKNOWN) for feature in ("bdlora", "kasa", "stacked_experts", "target_parameters", "weight_tying")],
    ],
)
def test_sglang_does_with_a_feature_what_was_read_there(feature: str, outcome: EngineOutcome) -> None:
    """B06, B07, B10. The sources are looked at again by the tests of its wheel."""
    found = verdict("sglang", feature)
    assert found.outcome is outcome
    assert [reason.startswith(f"{feature}: ") for reason in found.reasons] == [True] * (outcome is not SERVES)


@pytest.mark.parametrize(
    ("targets", "outcome"),
    [
        (["q_proj"], SERVES),
        ("all-linear", SERVES),
        ("all", SERVES),
        (".*_proj", REFUSES),
        (None, REFUSES),
        (..., REFUSES),
    ],
)
def test_sglang_takes_no_pattern_of_modules(targets: object, outcome: EngineOutcome) -> None:
    assert verdict("sglang", target_modules=targets).outcome is outcome


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("q_proj", "v_proj", "o_proj"), None),
        (("q_proj", "k_proj", "v_proj"), None),
        (("gate_proj", "down_proj"), None),
        (("q_proj", "o_proj"), "layers.0.q_proj: needs a pair of v_proj beside it"),
        (("k_proj", "v_proj"), "layers.0.k_proj: needs a pair of q_proj beside it"),
        (("up_proj",), "layers.0.up_proj: needs a pair of gate_proj beside it"),
    ],
)
def test_sglang_stacks_modules_that_belong_together(names: tuple[str, ...], reason: str | None) -> None:
    config = json.dumps({**PLAIN, "target_modules": [*names]}).encode()
    adapter = AdapterInspection(module_names=tuple(f"layers.0.{name}" for name in names), config_json=config)
    *_, sglang = engine_verdicts(adapter)
    assert sglang.reasons == ((reason,) if reason else ())
    assert sglang.outcome is (REFUSES if reason else SERVES)


@pytest.mark.parametrize("config", [b"", b"\xff", b"[]", b"[" * 100_000])
def test_a_config_that_cannot_be_read_is_one_without_fields(config: bytes) -> None:
    found = engine_verdicts(AdapterInspection(config_json=config))
    assert [one.outcome for one in found] == [SERVES, REFUSES, REFUSES]
