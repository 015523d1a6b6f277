"""Reads ``adapter_config.json``: is it a LoRA adapter, and what does it need beyond plain LoRA?

The file travels byte for byte. What is read here decides only what is said about
the adapter, so a field of a newer PEFT stops nothing: it is named. Fields that
change what the adapter computes are features, the others are known and passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from warmshelf.errors import MalformedArtifact, UnsupportedFormat
from warmshelfd.formats.base import Files
from warmshelfd.formats.peft_fields import DEFAULT_RANK, check_fields
from warmshelfd.formats.strict_json import StrictJson

CONFIG_NAME = "adapter_config.json"

_BOM = b"\xef\xbb\xbf"
"""Some editors put it in front. It is no part of the JSON, but of the bytes handed on."""

_SHOWN_CHARS_MAX = 128
"""How much of a name out of the config stands in features and messages."""

_SWITCHES: Mapping[str, str] = {
    "alpha_pattern": "alpha_pattern",
    "ensure_weight_tying": "weight_tying",
    "layer_replication": "layer_replication",
    "lora_bias": "lora_bias",
    "megatron_config": "megatron",
    "modules_to_save": "modules_to_save",
    "rank_pattern": "rank_pattern",
    "target_parameters": "target_parameters",
    "trainable_token_indices": "trainable_tokens",
    "use_dora": "dora",
    "use_qalora": "qalora",
    "use_rslora": "rslora",
}
"""Features by the field that asks for them, by being neither null, false nor empty."""

_VARIANTS: Mapping[str, str] = {
    "alora_invocation_tokens": "alora",
    "arrow_config": "arrow",
    "kasa_config": "kasa",
    "monteclora_config": "monteclora",
    "use_bdlora": "bdlora",
    "velora_config": "velora",
}
"""Features by the field that asks for them, by being there at all: an empty object means its defaults."""

_PLAIN_INITS = ("gaussian", "eva", "orthogonal", "mica")
"""Ways to begin training that leave no trace: loaded, such an adapter is as any other. Others change the base."""

_BIASES = ("all", "lora_only")

_OTHERS = frozenset(
    {
        # said of the adapter, its base and its training
        "auto_mapping",
        "base_model_name_or_path",
        "inference_mode",
        "lora_dropout",
        "peft_type",
        "peft_version",
        "revision",
        "runtime_config",
        "task_type",
        # looked at elsewhere
        "bias",
        "fan_in_fan_out",
        "init_lora_weights",
        "r",
        # how much the pairs count, which every engine reads
        "lora_alpha",
        # which modules, as the tensors' names say too
        "exclude_modules",
        "layers_pattern",
        "layers_to_transform",
        "target_modules",
        # details of what another field switches on
        "corda_config",
        "eva_config",
        "loftq_config",
        "lora_ga_config",
        "megatron_core",
        "qalora_group_size",
    }
)

KNOWN_FIELDS = _OTHERS | _SWITCHES.keys() | _VARIANTS.keys()
"""All that PEFT 0.21 writes."""

Config = Mapping[str, object]


def read_config(files: Files, bytes_max: int) -> bytes:
    """Return the config file's bytes.

    Raises:
        MalformedArtifact: it is too long.
    """
    size = files.files()[CONFIG_NAME]
    if size > bytes_max:
        raise _malformed(f"has {size} bytes, at most {bytes_max} are allowed", size_bytes=size)
    return files.read(CONFIG_NAME, 0, size)


def parse_config(data: bytes) -> Config:
    """Return the fields of a LoRA adapter's config.

    Raises:
        MalformedArtifact: it is no JSON object, does not say what kind of adapter it is, or a
            field that it is read by holds what it cannot.
        UnsupportedFormat: it is another kind than LoRA; names it.
    """
    config = _object(data.removeprefix(_BOM))
    match config.get("peft_type"):
        case "LORA":
            check_fields(CONFIG_NAME, config)
            return config
        case str(other):
            raise UnsupportedFormat(
                f"{CONFIG_NAME}: peft_type is {_shown(other)!r}, and only LORA is read",
                file=CONFIG_NAME,
                peft_type=_shown(other),
            )
    raise _malformed("has no peft_type, which must be LORA")


def config_features(config: Config) -> set[str]:
    """Return what the config asks for beyond plain LoRA."""
    features = {feature for field, feature in _SWITCHES.items() if config.get(field) not in (None, False, [], {})}
    features.update(feature for field, feature in _VARIANTS.items() if config.get(field) not in (None, False))
    features.update(_init_feature(config.get("init_lora_weights")))
    features.update(_bias_feature(config.get("bias")))
    unknown = (field for field, value in config.items() if value is not None and field not in KNOWN_FIELDS)
    features.update(f"unknown_field:{_shown(field)}" for field in unknown)
    return features


def declared_ranks(config: Config) -> set[int]:
    """Return every rank that the config names, or PEFT's default if it has no ``r``."""
    pattern = config.get("rank_pattern")
    named = [config.get("r", DEFAULT_RANK), *(pattern.values() if isinstance(pattern, dict) else ())]
    return {rank for rank in named if type(rank) is int}


def token_row_counts(config: Config) -> set[int]:
    """Return how many rows there may be for trained tokens: those of one list, or of one list for each module."""
    tokens: Any = config.get("trainable_token_indices")
    lists = tokens.values() if isinstance(tokens, dict) else [tokens or ()]
    return {len(one) for one in lists} - {0}


def replicated_layers(config: Config) -> tuple[int, ...]:
    """Return which of the base's layers each layer is, where layers are used more than once; else nothing."""
    ranges: Any = config.get("layer_replication") or ()
    return tuple(layer for begin, end in ranges for layer in range(begin, end))


def _bias_feature(bias: object) -> Iterator[str]:
    if bias in _BIASES:
        yield "bias"
    elif isinstance(bias, str) and bias != "none":
        yield f"unknown_bias:{_shown(bias)}"


def _init_feature(init: object) -> Iterator[str]:
    if isinstance(init, str) and init not in _PLAIN_INITS:
        yield f"init:{'pissa_niter' if init.startswith('pissa_niter_') else _shown(init)}"


def _object(text: bytes) -> dict[str, object]:
    reader = StrictJson(text, CONFIG_NAME)
    reader.skip(len(text))  # refuses equal keys and deep nesting, which the parser below would let pass
    reader.end()
    try:
        value = json.loads(text)
    except ValueError as error:  # numbers of thousands of digits
        raise _malformed(f"cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise _malformed("is not a JSON object")
    return value


def _shown(text: str) -> str:
    return (text if text.isprintable() else ascii(text)[1:-1])[:_SHOWN_CHARS_MAX]


def _malformed(what: str, **details: int) -> MalformedArtifact:
    return MalformedArtifact(f"{CONFIG_NAME}: {what}", file=CONFIG_NAME, **details)
