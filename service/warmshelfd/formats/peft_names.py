"""What the name of an adapter's tensor says: which module of the base, and which part of the adapter.

PEFT writes ``base_model.model.``, the module, and the part: ``lora_A.weight``. What
dumps a training run's state keeps the adapter's name in it: ``lora_A.default.weight``.
So does training leave the names of what it wraps modules in: ``_orig_mod``. Names are
only read here: nothing is ever renamed.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from enum import Enum

_LEAVES = ("weight", "bias")

_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""What training puts around modules, wherever in a name: no module of a base is called so."""

_OUTER = re.compile(rf"((?:(?:module|{'|'.join(_WRAPPERS)})\.)*)base_model\.model\.")
"""PEFT's prefix, and what is put around the whole in front of it; elsewhere ``module`` may be the base's own."""


NO_PREFIX = "key_prefix:none"
"""The feature of names without PEFT's prefix."""


class Part(Enum):
    """A part of an adapter."""

    LORA_A = "lora_A"
    LORA_B = "lora_B"
    LORA_BIAS = "lora_B.bias"
    EMBEDDING_A = "lora_embedding_A"
    EMBEDDING_B = "lora_embedding_B"
    MAGNITUDE = "lora_magnitude_vector"
    TOKEN_ROWS = "trainable_tokens_delta"  # noqa: S105 - tokens of text
    WHOLE = "whole"
    """A tensor that takes the place of the base's own."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a name says.

    Attributes:
        part: which part.
        stem: what stands before it, as written: the same for the parts that belong together.
        module: as the base names it.
        leaf: for WHOLE the tensor's own name in the module; for OTHER the part's name.
        adapter_name: "" unless the name has one.
        spelling: what is unusual about the name, so that PEFT does not find it: a wrapper's name, or NO_PREFIX.
    """

    part: Part
    stem: str
    module: str
    leaf: str = ""
    adapter_name: str = ""
    spelling: tuple[str, ...] = ()


def parse_name(name: str) -> Parsed:
    """Return what a tensor's name says."""
    bare, spelling = _unwrapped(name)
    parsed = _parse(bare)
    return dataclasses.replace(parsed, spelling=spelling) if spelling else parsed


def _unwrapped(name: str) -> tuple[str, tuple[str, ...]]:
    """Return the name without PEFT's prefix and what training has put around modules, and what was unusual."""
    found = _OUTER.match(name)
    rest = name[found.end() :] if found else name
    words = rest.split(".")
    inner = [word for word in words if word in _WRAPPERS]
    outer = found[1].split(".")[:-1] if found else ()
    unusual = [*(f"key_wrapper:{word}" for word in (*outer, *inner)), *(() if found else (NO_PREFIX,))]
    return ".".join(word for word in words if word not in _WRAPPERS) if inner else rest, tuple(unusual)


def _parse(name: str) -> Parsed:
    words = name.split(".")
    at = next((at for at in reversed(range(len(words))) if _is_mark(words[at])), None)
    if at is None:
        return _whole(words)
    mark, tail = words[at], words[at + 1 :]
    stem = ".".join(words[:at])
    module = _module(words[:at])
    if mark == "modules_to_save" and tail:
        *names, leaf = tail
        inner = names[1:]
        return Parsed(Part.WHOLE, stem, ".".join([module, *inner]), leaf, "".join(names[:1]))
    leaf = tail.pop() if tail and tail[-1] in _LEAVES else ""
    part = _part(mark, leaf)
    if part is Part.OTHER or len(tail) > 1:
        return Parsed(Part.OTHER, stem, module, mark)
    return Parsed(part, stem, module, leaf, "".join(tail))


def _is_mark(word: str) -> bool:
    return word.startswith("lora_") or word in ("modules_to_save", "original_module", Part.TOKEN_ROWS.value)


def _part(mark: str, leaf: str) -> Part:
    match mark, leaf:
        case (("lora_A" | "lora_B"), "weight"):
            return Part(mark)
        case "lora_B", "bias":
            return Part.LORA_BIAS
        case (("lora_embedding_A" | "lora_embedding_B" | "lora_magnitude_vector"), ("" | "weight")):
            return Part(mark)
        case "trainable_tokens_delta", "":
            return Part.TOKEN_ROWS
    return Part.OTHER


def _whole(words: list[str]) -> Parsed:
    *module, leaf = words
    return Parsed(Part.WHOLE, ".".join(module), _module(module), leaf)


def _module(words: list[str]) -> str:
    """Return the module's name without the wrappers that PEFT puts around modules."""
    return ".".join(word for word in words if word not in ("base_layer", "token_adapter"))
