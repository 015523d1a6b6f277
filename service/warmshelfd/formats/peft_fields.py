"""What the fields of ``adapter_config.json`` may hold, where a wrong value would change what an adapter means.

PEFT checks few of them. A value of another kind either stops a worker long after
the bytes have moved, or is taken for something else. Fields not named here may hold
anything. Null means that a field is not given, as in PEFT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from warmshelf.errors import MalformedArtifact

RANK_MAX = 1 << 16
"""Largest rank. More than a layer's width adds nothing; the widest known are 53,248."""

ALPHA_MAX = 1 << 30
"""Largest alpha; usual ones are below 1,000."""

TOKEN_MAX = 1 << 31
"""Above every token's number; the largest vocabularies have some 2**18."""

LAYER_COUNT_MAX = 4096
"""Most layers that a replication may make; the deepest known models have some 130."""

DEFAULT_RANK = 8
"""What PEFT takes where a config has no ``r``."""

_SHOWN_CHARS_MAX = 64


@dataclass(frozen=True, slots=True)
class _Form:
    """What a value must be, as a rule and in words."""

    holds: Callable[[object], bool]
    words: str


def check_fields(file: str, config: Mapping[str, object]) -> None:
    """Check every field that has a form.

    Raises:
        MalformedArtifact: one does not hold what it must; names field, value and what it must be.
    """
    for field, form in _FORMS.items():
        value = config.get(field)
        is_given = value is not None or (field in config and field in _NEVER_NULL)
        if is_given and not form.holds(value):
            shown = _shown(value)
            raise MalformedArtifact(
                f"{file}: {field} is {shown}, it must be {form.words}", file=file, field=field, value=shown
            )


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."


# --- forms -------------------------------------------------------------------


def _is_natural(value: object, end: int) -> bool:
    return type(value) is int and 0 <= value < end


def _is_rank(value: object) -> bool:
    return _is_natural(value, RANK_MAX + 1) and value != 0


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and -ALPHA_MAX <= value <= ALPHA_MAX  # type: ignore[operator]


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_token(value: object) -> bool:
    return _is_natural(value, TOKEN_MAX)


def _list_of(one: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(one, value))


def _map_to(one: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, dict) and all(map(one, value.values()))


def _either(*holds: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: any(one(value) for one in holds)


def _is_replication(value: object) -> bool:
    if not _list_of(_is_range)(value):
        return False
    return sum(end - begin for begin, end in value) <= LAYER_COUNT_MAX  # type: ignore[attr-defined]


def _is_range(value: object) -> bool:
    match value:
        case [int(begin), int(end)]:
            return _is_natural(begin, LAYER_COUNT_MAX) and _is_natural(end, LAYER_COUNT_MAX + 1) and begin < end
    return False


_TEXTS = _list_of(_is_text)
_TOKENS = _list_of(_is_token)
_FLAG = _Form(_is_flag, "true or false")
_MODULES = _Form(_either(_is_text, _TEXTS), "a text or a list of texts")
_NAMES = _Form(_TEXTS, "a list of texts")
_LAYERS = _Form(_either(_is_token, _TOKENS), "a number of a layer or a list of them")

_FORMS: Mapping[str, _Form] = {
    "r": _Form(_is_rank, f"a whole number from 1 to {RANK_MAX}"),
    "rank_pattern": _Form(_map_to(_is_rank), f"an object of whole numbers from 1 to {RANK_MAX}"),
    "lora_alpha": _Form(_is_number, f"a number up to {ALPHA_MAX}"),
    "alpha_pattern": _Form(_map_to(_is_number), f"an object of numbers up to {ALPHA_MAX}"),
    "bias": _Form(_is_text, "a text"),
    "use_rslora": _FLAG,
    "use_dora": _FLAG,
    "lora_bias": _FLAG,
    "fan_in_fan_out": _FLAG,
    "ensure_weight_tying": _FLAG,
    "init_lora_weights": _Form(_either(_is_flag, _is_text), "true, false or a text"),
    "target_modules": _MODULES,
    "exclude_modules": _MODULES,
    "modules_to_save": _NAMES,
    "target_parameters": _NAMES,
    "layers_to_transform": _LAYERS,
    "layers_pattern": _MODULES,
    "layer_replication": _Form(
        _is_replication, f"a list of [begin, end) of layers, of at most {LAYER_COUNT_MAX} together"
    ),
    "trainable_token_indices": _Form(
        _either(_TOKENS, _map_to(_TOKENS)), "a list of token numbers, or an object of such lists"
    ),
    "alora_invocation_tokens": _Form(_TOKENS, "a list of token numbers"),
}

_NEVER_NULL = ("r", "lora_alpha")
"""PEFT has defaults for these, and takes no null."""
