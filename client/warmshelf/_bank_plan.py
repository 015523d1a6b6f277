"""What an adapter's config, names and shapes mean for the modules of a bank, or why it is refused.

Pure: it sees shapes, and no tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from warmshelf.errors import BaseMismatch, FeatureUnsupported, MalformedArtifact, RankTooLarge

HONOURED_FEATURES = ("rslora", "rank_pattern", "alpha_pattern")
"""What a bank honours beyond plain LoRA, as ``Shelf.acquire`` is told."""

PATTERN_CHARS_MAX = 256
PATTERN_REPEAT_COUNT_MAX = 4
"""Patterns are regular expressions of the adapter's author, matched with hundreds of names.

Their cost grows with the power of their repeats: those that PEFT's users write have one or two.
"""

_DEFAULT_RANK, _DEFAULT_ALPHA = 8, 8  # PEFT's, where the config says nothing
_PREFIX = "base_model.model."
_REPEAT = re.compile(r"[*+?{]")

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """A place of the model that pairs can change.

    Attributes:
        module: the module in the model.
        in_features, out_features: of the place.
        start: its first output in the module: above 0 only in fused modules.
    """

    module: str
    in_features: int
    out_features: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class Pair:
    """One pair of an adapter, and what it changes.

    Attributes:
        name: its module, as the adapter calls it.
        a_name, b_name: its tensors.
        rank: of both.
        scaling: what the product of both is multiplied by.
    """

    name: str
    a_name: str
    b_name: str
    rank: int
    scaling: float


class Modules:
    """What adapters may name: the places of a model, and fused modules as a whole, which are several places."""

    def __init__(self, places: Mapping[str, tuple[Target, ...]]) -> None:
        self._places = places

    def places(self, name: str) -> tuple[Target, ...]:
        """Return what a pair of that name changes, in the order of its outputs.

        Raises:
            BaseMismatch: the model has no such module, or the bank leaves it out.
        """
        places = self._places.get(name)
        if places is None:
            raise BaseMismatch(
                f"the adapter changes {name!r}: expected one of the bank's {len(self._places)} modules, "
                f"such as {next(iter(self._places))!r}, got none of them",
                module=name,
                expected=next(iter(self._places)),
                got=name,
            )
        return places

    def check(self, names: Iterable[str]) -> None:
        """Refuse an adapter by the names of its modules alone."""
        for name in names:
            self.places(name)


def plan(config: Mapping[str, Any], shapes: Mapping[str, Shape], modules: Modules, rank_max: int) -> list[Pair]:
    """Return every pair of an adapter.

    Raises:
        BaseMismatch: it is of another base; names module, expected and got.
        RankTooLarge: a pair's rank is above the bank's.
        FeatureUnsupported: it has a tensor that is no half of a pair.
        MalformedArtifact: config and tensors contradict each other.
    """
    pairs = [_pair(name, *halves, config, shapes) for name, halves in _halves(shapes).items()]
    claimed: dict[Target, str] = {}
    for pair in pairs:
        if pair.rank > rank_max:
            raise RankTooLarge(
                f"{pair.name!r} has rank {pair.rank}, the bank takes at most {rank_max}",
                module=pair.name,
                adapter_rank_max=pair.rank,
                rank_max=rank_max,
            )
        for place in _fitting(pair, shapes, modules):
            other = claimed.setdefault(place, pair.name)
            if other != pair.name:
                raise MalformedArtifact(f"{other!r} and {pair.name!r} change the same outputs", module=pair.name)
    return pairs


def _halves(shapes: Mapping[str, Shape]) -> dict[str, tuple[str, str]]:
    """Return the names of A and B by module."""
    found: dict[str, dict[str, str]] = {}
    for name in shapes:
        module, half = _parse(name)
        if found.setdefault(module, {}).setdefault(half, name) != name:
            raise MalformedArtifact(f"{module!r} has two {half}: {name!r} is one", tensor=name)
    for module, halves in found.items():
        if len(halves) != 2:  # noqa: PLR2004 - a pair
            raise MalformedArtifact(f"{module!r} has no pair: only {next(iter(halves))}", module=module)
    return {module: (halves["lora_A"], halves["lora_B"]) for module, halves in found.items()}


def _parse(name: str) -> tuple[str, str]:
    """Return module and half of a tensor: ``MODULE.lora_A.weight``, or with an adapter's name before the last word."""
    match name.removeprefix(_PREFIX).split("."):
        case [*module, "lora_A" | "lora_B" as half, "weight"] | [*module, "lora_A" | "lora_B" as half, _, "weight"] if (
            module
        ):
            return ".".join(word for word in module if word != "base_layer"), half
    raise FeatureUnsupported(f"tensor {name!r} is no half of a LoRA pair, and a bank takes nothing else", tensor=name)


def _pair(name: str, a_name: str, b_name: str, config: Mapping[str, Any], shapes: Mapping[str, Shape]) -> Pair:
    rank = _number(config, "rank_pattern", name, config.get("r", _DEFAULT_RANK))
    alpha = _number(config, "alpha_pattern", name, config.get("lora_alpha", _DEFAULT_ALPHA))
    if rank < 1 or rank != int(rank):
        raise MalformedArtifact(f"{name!r} has rank {rank:g} in the config", module=name)
    for tensor, dim in ((a_name, 0), (b_name, 1)):
        shape = shapes[tensor]
        if len(shape) != 2 or shape[dim] != rank:  # noqa: PLR2004 - matrices
            raise MalformedArtifact(
                f"tensor {tensor!r}: expected rank {rank:g} as in the config, got shape {shape}", tensor=tensor
            )
    divisor = math.sqrt(rank) if config.get("use_rslora") else rank
    return Pair(name, a_name, b_name, int(rank), alpha / divisor)


def _fitting(pair: Pair, shapes: Mapping[str, Shape], modules: Modules) -> tuple[Target, ...]:
    """Return what a pair changes, if its shapes fit there."""
    places = modules.places(pair.name)
    expected = (places[0].in_features, sum(place.out_features for place in places))
    got = (shapes[pair.a_name][1], shapes[pair.b_name][0])
    if got != expected:
        raise BaseMismatch(
            f"the adapter changes {pair.name!r}: expected {expected[0]} inputs and {expected[1]} outputs, "
            f"got {got[0]} and {got[1]}",
            module=pair.name,
            expected=str(expected),
            got=str(got),
        )
    return places


def _number(config: Mapping[str, Any], field: str, name: str, otherwise: object) -> float:
    """Return a module's number: of the first pattern that its name ends in, else the one of all modules."""
    patterns = config.get(field) or {}
    if not isinstance(patterns, Mapping):
        raise MalformedArtifact(f"{field} is no object", field=field)
    value = next((patterns[key] for key in _matching(patterns, field, name)), otherwise)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise MalformedArtifact(
            f"{field} or its default says {value!r} of {name!r}, no number", field=field, module=name
        )
    return value


def _matching(patterns: Iterable[str], field: str, name: str) -> Iterator[str]:
    for key in patterns:
        _check_pattern(key, field)
        try:
            found = re.match(rf"(.*\.)?({key})$", name)
        except re.error as error:
            raise MalformedArtifact(f"{field} has {key!r}, no regular expression: {error}", field=field) from None
        if found:
            yield key


def _check_pattern(key: str, field: str) -> None:
    """Refuse what could take forever to match: a repeated group, or many repeats."""
    repeated_group = re.search(r"\)[*+?{]", key)
    if len(key) > PATTERN_CHARS_MAX or repeated_group or len(_REPEAT.findall(key)) > PATTERN_REPEAT_COUNT_MAX:
        raise MalformedArtifact(
            f"{field} has {key[:PATTERN_CHARS_MAX]!r}: patterns have at most {PATTERN_CHARS_MAX} characters, "
            f"{PATTERN_REPEAT_COUNT_MAX} repeats and no repeated group",
            field=field,
        )
