"""What engines make of an adapter: serve it, refuse it, or take it for something else. Pure.

The rules are data, by the features that an adapter needs, and were read from, or tried
with, one version of each engine, which is named. They are told to people. Nothing is refused by
them: a worker says itself what it honours. What is not in a table is not known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from warmshelf.types import AdapterInspection, EngineOutcome, EngineVerdict

_SERVES, _IF, _UNKNOWN = EngineOutcome.SERVES, EngineOutcome.CONDITIONAL, EngineOutcome.UNKNOWN
_MISSERVES, _REFUSES = EngineOutcome.MISSERVES, EngineOutcome.REFUSES

_RECIPES_MAX = 64
"""Verdicts remembered: thousands of adapters are trained by a few recipes."""

Rule = tuple[EngineOutcome, str]
"""What an engine does with a feature, and why."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What is known of one version of an engine.

    Attributes:
        name: as people call it.
        version: the version whose rules these are.
        rules: by a feature's name, or by what stands before its colon. The whole name goes first.
        required: fields that a config must have.
        ranks: the limits that may be chosen for it, in order; none: any rank.
        rank_default: the limit if none is chosen.
        saved_modules: names in ``modules_to_save`` that it takes; None: any.
        goes_by_config: whether it makes only the modules that the config tells of, and leaves out other tensors.
        target_words: texts that it takes in place of a list of target modules; None: any pattern.
        beside: modules that it stacks, by the last part of their names, and which it must find beside them.
    """

    name: str
    version: str
    rules: Mapping[str, Rule]
    required: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    rank_default: int = 0
    saved_modules: frozenset[str] | None = None
    goes_by_config: bool = False
    target_words: tuple[str, ...] | None = None
    beside: Mapping[str, str] = field(default_factory=dict)


_ALIKE: Rule = (_SERVES, "")

# Tried with PEFT 0.21.2: its own from_pretrained with adapters that it had saved, changed where the feature is a fault.
_PEFT = Engine(
    name="peft",
    version="0.21",
    goes_by_config=True,
    rules={
        **dict.fromkeys(
            (
                *("alora", "alpha_pattern", "bias", "convolution", "dora", "embedding", "lora_bias", "modules_to_save"),
                *("bdlora", "qalora", "rank_pattern", "rslora", "target_parameters", "trainable_tokens", "velora"),
                "weight_tying",
            ),
            _ALIKE,
        ),
        "vocabulary": (_IF, "the model's embeddings must be resized before"),
        "init:pissa": (_IF, "takes the base's weights apart again: only as the first adapter of a model"),
        "init:olora": (_IF, "takes the base's weights apart again: only as the first adapter of a model"),
        "init:pissa_niter": (_MISSERVES, "takes the base's weights apart by chance, each time otherwise"),
        "init:corda": (_REFUSES, "needs what was gathered from data before training"),
        "init:lora_ga": (_MISSERVES, "does not change the base's weights as training had"),
        "layer_replication": (_IF, "changes the model's layers: only as the first adapter of a model"),
        "megatron": (_IF, "needs megatron-core"),
        "stacked_experts": (_REFUSES, "has pairs of two dimensions"),
        "adapter_name": (_IF, "only under that name"),
        "key_prefix": (_MISSERVES, "does not find the tensors, and leaves them out"),
        "key_wrapper": (_MISSERVES, "does not find the tensors, and leaves them out"),
        "unknown_field": (_MISSERVES, "leaves the field out"),
        "unknown_tensor": (_MISSERVES, "leaves the tensors out"),
        "unknown_bias": (_REFUSES, "knows none, all and lora_only"),
    },
)

# Read in vLLM 0.32.0, and the same in 0.33.0: its lora/peft_helper.py, lora/lora_model.py, and the choices of ranks.
_NOT_IN_VLLM: Rule = (_REFUSES, "is not supported")
_VLLM = Engine(
    name="vllm",
    version="0.32",
    required=("r", "lora_alpha", "target_modules"),
    ranks=(1, 8, 16, 32, 64, 128, 256, 320, 512),
    rank_default=16,
    saved_modules=frozenset({"classifier", "score"}),
    rules={
        **dict.fromkeys(("alpha_pattern", "rank_pattern", "rslora"), _ALIKE),
        **dict.fromkeys(("alora", "bdlora", "bias", "dora", "layer_replication", "lora_bias", "qalora"), _NOT_IN_VLLM),
        "unknown_bias": _NOT_IN_VLLM,
        "init": (_REFUSES, "takes no adapter whose training began by changing the base"),
        "init:lora_ga": (_MISSERVES, "does not change the base's weights as training had"),
        "modules_to_save": (_IF, "takes classifier and score only, of models that classify"),
        "embedding": (_IF, "lora_embedding_A must be as wide as the model's vocabulary"),
        "vocabulary": (_REFUSES, "takes no other vocabulary than the model's"),
        "key_wrapper": (_REFUSES, "has no modules of these names"),
    },
)

# Read in SGLang 0.5.23: srt/lora/lora_config.py has the fields that it looks at, lora.py the scaling and what it
# stacks, lora_manager.py (validate_new_adapter) what it refuses, mem_pool.py (load_lora_weight_to_buffer) what becomes
# of each tensor, utils.py (get_target_module_name) that names count by what is in them. Never run: it needs CUDA.
_SGLANG = Engine(
    name="sglang",
    version="0.5.23",
    required=("r", "lora_alpha", "target_modules"),
    target_words=("all", "all-linear"),
    beside={"q_proj": "v_proj", "k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"},
    rules={
        **dict.fromkeys(("adapter_name", "key_prefix", "key_wrapper"), _ALIKE),
        "embedding": (_IF, "only with embed_tokens or lm_head among its --lora-target-modules"),
        "rslora": (_MISSERVES, "scales by alpha / r"),
        "alpha_pattern": (_MISSERVES, "scales every module by lora_alpha / r"),
        "alora": (_MISSERVES, "has it in force for every token"),
        "init": (_MISSERVES, "does not change the base's weights as training had"),
        "lora_bias": (_MISSERVES, "leaves it out, or takes it for lora_B"),
        "modules_to_save": (_MISSERVES, "leaves them out"),
        "trainable_tokens": (_MISSERVES, "leaves them out"),
        "vocabulary": (_MISSERVES, "leaves the embeddings out; where added_tokens.json comes along, it refuses"),
        "unknown_field": (_MISSERVES, "leaves the field out"),
        "unknown_tensor": (_MISSERVES, "leaves it out, or takes it for lora_B"),
        "bias": (_REFUSES, "takes it for lora_B, and fails at the first request"),
        "dora": (_REFUSES, "is not supported"),
        "layer_replication": (_REFUSES, "has no place for the copies' tensors"),
        "rank_pattern": (_REFUSES, "takes every pair to have rank r, and fails at the first request"),
    },
)

ENGINES = (_PEFT, _VLLM, _SGLANG)


def engine_verdicts(adapter: AdapterInspection) -> tuple[EngineVerdict, ...]:
    """Return what each engine makes of an adapter."""
    return _verdicts(adapter.config_json, adapter.module_names, adapter.rank_max, adapter.features)


@lru_cache(maxsize=_RECIPES_MAX)
def _verdicts(
    config_json: bytes, module_names: tuple[str, ...], rank_max: int, features: tuple[str, ...]
) -> tuple[EngineVerdict, ...]:
    config = _config(config_json)
    adapter = AdapterInspection(
        rank_max=rank_max, module_names=module_names, features=features, config_json=config_json
    )
    return tuple(_verdict(engine, adapter, config) for engine in ENGINES)


def _verdict(engine: Engine, adapter: AdapterInspection, config: Mapping[str, Any]) -> EngineVerdict:
    found = [
        *_of_config(engine, config),
        *(_of_tensors(adapter, config) if engine.goes_by_config else ()),
        *_of_stacks(engine, adapter.module_names),
        *_of_rank(engine, adapter.rank_max, config),
        *(_of_feature(engine, feature, config) for feature in adapter.features),
    ]
    worst = max((outcome for outcome, _ in found), key=[*EngineOutcome].index, default=_SERVES)
    ordered = sorted(found, key=lambda rule: -[*EngineOutcome].index(rule[0]))
    return EngineVerdict(engine.name, engine.version, worst, tuple(why for outcome, why in ordered if why))


def _of_feature(engine: Engine, feature: str, config: Mapping[str, Any]) -> Rule:
    rule = engine.rules.get(feature) or engine.rules.get(feature.partition(":")[0])
    if rule is None:
        return _UNKNOWN, f"{feature}: not known"
    outcome, why = rule
    if feature == "modules_to_save" and _others(config.get("modules_to_save"), engine.saved_modules):
        outcome = _REFUSES
    return outcome, f"{feature}: {why}" if why else ""


def _others(names: object, taken: frozenset[str] | None) -> bool:
    return taken is not None and isinstance(names, list) and not taken.issuperset(map(str, names))


def _of_config(engine: Engine, config: Mapping[str, Any]) -> Iterator[Rule]:
    missing = [field for field in engine.required if field not in config]
    if missing:
        yield _REFUSES, f"the config must have {' and '.join(missing)}"
    targets = config.get("target_modules", [])
    if engine.target_words is not None and not isinstance(targets, list) and targets not in engine.target_words:
        yield _REFUSES, f"takes target_modules as a list, or one of {' and '.join(engine.target_words)}"


def _of_tensors(adapter: AdapterInspection, config: Mapping[str, Any]) -> Iterator[Rule]:
    """What tensors there are that the config does not tell of. A pattern is not tried on them: it may be hostile."""
    targets = config.get("target_modules")
    if "target_modules" in config and targets is None and not config.get("target_parameters"):
        yield _IF, "target_modules is not set: only models for which PEFT has a default"
    if "dora" in adapter.features and not config.get("use_dora"):
        yield _MISSERVES, "dora: leaves the magnitudes out, as use_dora is not set"
    if (
        isinstance(targets, list)
        and not any(config.get(field) for field in _TELL_OF_OTHERS)
        and config.get("bias") != "all"
    ):
        names = tuple(name for name in adapter.module_names if not _named(targets, name, config))
        if names:
            yield _MISSERVES, f"target_modules does not name {names[0]}: leaves its tensors out"


def _of_stacks(engine: Engine, module_names: Iterable[str]) -> Iterator[Rule]:
    """What an engine stacks and finds only in part; one of them is told."""
    names = frozenset(module_names)
    for name in sorted(names) if engine.beside else ():
        place, _, kind = name.rpartition(".")
        wanted = engine.beside.get(kind)
        if wanted and place and f"{place}.{wanted}" not in names:
            yield _REFUSES, f"{name}: needs a pair of {wanted} beside it"
            return


_TELL_OF_OTHERS = ("target_parameters", "trainable_token_indices", "ensure_weight_tying")
"""Fields by which an adapter has tensors of modules that only the model can tell, such as its embeddings."""


def _named(targets: list[Any], name: str, config: Mapping[str, Any]) -> bool:
    """Whether a config names a module as PEFT compares them: to save, by how its name ends, were it within a word."""
    saved = config.get("modules_to_save")
    if isinstance(saved, list) and name.endswith(tuple(map(str, saved))):
        return True
    return any(name == target or name.endswith(f".{target}") for target in targets)


def _of_rank(engine: Engine, rank_max: int, config: Mapping[str, Any]) -> Iterator[Rule]:
    """An engine sets its buffers up for the largest rank that tensors or config have."""
    rank = max([rank_max, *_ranks(config)])
    if not engine.ranks or rank <= engine.rank_default:
        return
    enough = next((limit for limit in engine.ranks if limit >= rank), 0)
    if enough:
        yield _IF, f"rank {rank}: needs max_lora_rank {enough}, it is {engine.rank_default} by default"
    else:
        yield _REFUSES, f"rank {rank}: takes at most {engine.ranks[-1]}"


def _ranks(config: Mapping[str, Any]) -> Iterable[int]:
    pattern = config.get("rank_pattern")
    named = [config.get("r"), *(pattern.values() if isinstance(pattern, dict) else ())]
    return [rank for rank in named if type(rank) is int]


def _config(config_json: bytes) -> Mapping[str, Any]:
    """Return the config's fields; it was checked when the adapter was inspected."""
    try:
        config = json.loads(config_json.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}
