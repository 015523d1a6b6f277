"""What an adapter's tensors are by their names and shapes: LoRA pairs that fit together, and what else.

Knows names, shapes and the config; reads nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from warmshelf.errors import MalformedArtifact
from warmshelf.types import AdapterInspection
from warmshelfd.domain.adapter_shapes import AdapterShapes, Need, adapter_shapes
from warmshelfd.formats.peft_config import (
    CONFIG_NAME,
    Config,
    config_features,
    declared_ranks,
    replicated_layers,
    token_row_counts,
)
from warmshelfd.formats.peft_names import Parsed, Part, parse_name

_Shape = tuple[int, ...]

_FACTORS = {Part.LORA_A: 0, Part.LORA_B: 1, Part.EMBEDDING_A: 0, Part.EMBEDDING_B: 1}
"""Which of a pair's two factors a part is."""

_FEATURES = {
    Part.LORA_BIAS: "lora_bias",
    Part.EMBEDDING_A: "embedding",
    Part.EMBEDDING_B: "embedding",
    Part.MAGNITUDE: "dora",
    Part.TOKEN_ROWS: "trainable_tokens",
}
_COMPANIONS = {"use_dora": Part.MAGNITUDE, "lora_bias": Part.LORA_BIAS}
"""What stands beside every pair, by the field that asks for it."""

_INITS = frozenset({"init:pissa", "init:pissa_niter", "init:olora", "init:corda"})
"""Ways to begin that take the base's weight apart, so that a narrow layer has a smaller rank than the config says."""

_OTHER_FEATURES = {"lora_diag": "kasa", "lora_monteclora_sampler": "monteclora", "lora_velora_embed": "velora"}


@dataclass(frozen=True, slots=True)
class AdapterTensors:
    """What the tensors told.

    Attributes:
        rank_max: the largest rank of a pair; 0 if there is none.
        features: what they and the config need beyond plain LoRA, sorted.
        shapes: what they need of the base.
    """

    rank_max: int
    features: tuple[str, ...]
    shapes: AdapterShapes

    def inspection(self, config_json: bytes) -> AdapterInspection:
        """Return what they and their config say of the adapter."""
        return AdapterInspection(
            rank_max=self.rank_max,
            module_names=self.shapes.module_names,
            features=self.features,
            config_json=config_json,
        )


@dataclass(frozen=True, slots=True)
class _Pair:
    """The two factors of one module's change; a is [rank, in], b is [out, rank]."""

    module: str
    is_embedding: bool
    a: _Shape
    b: _Shape

    @property
    def is_stacked(self) -> bool:
        """Whether there is one pair for each of several experts: [experts, rank, in] and [experts, out, rank]."""
        match self.a, self.b:
            case (experts, rank, _), (others, _, columns):
                return experts == others and rank == columns and self.a[0] != self.b[1]
        return False


def inspect_tensors(file: str, shapes: Mapping[str, _Shape], config: Config) -> AdapterTensors:
    """Check an adapter's tensors, given by name and shape, and say what they are.

    Raises:
        MalformedArtifact: factors do not make pairs, or a tensor is empty; names module and shapes.
    """
    parsed = {name: parse_name(name) for name in shapes}
    features = config_features(config)
    for each in parsed.values():
        features.update(_name_features(each, features))
    pairs = _pairs(file, shapes, parsed)
    rank_max = max((_rank(file, pair, config, features) for pair in pairs), default=0)
    _check_not_empty(file, shapes)
    _check_token_rows(file, shapes, parsed, token_row_counts(config))
    _check_complete(file, parsed.values(), config)
    needs = [*_pair_needs(pairs, features), *_other_needs(shapes, parsed)]
    features.update(_pair_features(pairs))
    return AdapterTensors(
        rank_max=rank_max,
        features=tuple(sorted(features)),
        shapes=adapter_shapes(
            needs, fan_in_fan_out=bool(config.get("fan_in_fan_out")), layers=replicated_layers(config)
        ),
    )


# --- features ----------------------------------------------------------------


def _name_features(parsed: Parsed, known: Collection[str]) -> Iterator[str]:
    if parsed.part in _FEATURES:
        yield _FEATURES[parsed.part]
    elif parsed.part is Part.WHOLE and not (parsed.leaf == "bias" and "bias" in known):
        yield "modules_to_save"
    elif parsed.part is Part.OTHER:
        yield _OTHER_FEATURES.get(parsed.leaf, f"unknown_tensor:{parsed.leaf}")
    if parsed.adapter_name:
        yield f"adapter_name:{parsed.adapter_name}"
    yield from parsed.spelling


def _pair_features(pairs: Iterable[_Pair]) -> Iterator[str]:
    for pair in pairs:
        if pair.is_stacked:
            yield "stacked_experts"
        elif len(pair.a) > 2:  # noqa: PLR2004 - more than [rank, in]
            yield "convolution"


# --- pairs -------------------------------------------------------------------


def _pairs(file: str, shapes: Mapping[str, _Shape], parsed: Mapping[str, Parsed]) -> list[_Pair]:
    """Return the pairs, of which every factor has its other."""
    found: dict[tuple[str, bool], dict[int, str]] = {}
    for name, each in parsed.items():
        if each.part in _FACTORS:
            is_embedding = each.part in (Part.EMBEDDING_A, Part.EMBEDDING_B)
            factors = found.setdefault((each.stem, is_embedding), {})
            other = factors.setdefault(_FACTORS[each.part], name)
            if other != name:
                raise _malformed(file, each.module, f"{other!r} and {name!r} are the same factor of one pair")
    return [_pair(file, factors, shapes, parsed) for factors in found.values()]


def _pair(file: str, factors: Mapping[int, str], shapes: Mapping[str, _Shape], parsed: Mapping[str, Parsed]) -> _Pair:
    some = parsed[next(iter(factors.values()))]
    if len(factors) == 1:
        (name,) = factors.values()
        raise _malformed(
            file, some.module, f"{name!r} of shape {list(shapes[name])} lacks the other factor of its pair"
        )
    a, b = (shapes[factors[number]] for number in (0, 1))
    return _Pair(some.module, some.part in (Part.EMBEDDING_A, Part.EMBEDDING_B), a, b)


def _rank(file: str, pair: _Pair, config: Config, features: Collection[str]) -> int:
    """Return the rank of a pair whose shapes make one."""
    a, b = pair.a, pair.b
    if min(len(a), len(b)) < 2 or 0 in (*a, *b):  # noqa: PLR2004 - a matrix
        raise _not_a_pair(file, pair, "a factor is empty or one-dimensional, as where shards were saved apart")
    declared = declared_ranks(config)
    if not pair.is_stacked and a[0] != b[1] and not ("bdlora" in features and a[0] % b[1] == 0):
        raise _not_a_pair(file, pair, f"the ranks {a[0]} and {b[1]} differ")
    held = a[1] if pair.is_stacked else a[0]
    if held in declared or (held < max(declared) and held == _full_rank(pair) and _INITS.intersection(features)):
        return held
    if "target_parameters" in features and not pair.is_stacked:
        # All experts of a parameter stand in one pair, so its rank is a multiple of the adapter's.
        divisors = [rank for rank in declared if held % rank == 0]
        if divisors:
            return max(divisors)
    raise _other_rank(file, pair.module, held, declared)


def _full_rank(pair: _Pair) -> int:
    """Return the rank of the whole weight: what takes it apart finds no more."""
    return min(pair.a[-1], pair.b[-2])


def _check_not_empty(file: str, shapes: Mapping[str, _Shape]) -> None:
    for name, shape in shapes.items():
        if 0 in shape:
            raise MalformedArtifact(
                f"{file}: tensor {name!r} of shape {list(shape)} is empty, which nothing of an adapter can be",
                file=file,
                tensor=name,
            )


def _check_token_rows(
    file: str, shapes: Mapping[str, _Shape], parsed: Mapping[str, Parsed], row_counts: Collection[int]
) -> None:
    """Check that there is a row for each token trained: which rows they are stands in the config only."""
    for name, each in parsed.items():
        if each.part is Part.TOKEN_ROWS and (not shapes[name] or shapes[name][0] not in row_counts):
            wanted = " or ".join(map(str, sorted(row_counts))) or "none"
            raise _malformed(
                file,
                each.module,
                f"{name!r} of shape {list(shapes[name])} has the rows of trained tokens, "
                f"and trainable_token_indices of {CONFIG_NAME} names {wanted}",
            )


def _check_complete(file: str, parsed: Collection[Parsed], config: Config) -> None:
    """Check that each pair has what the config says that each has."""
    for field, part in _COMPANIONS.items():
        having = {each.stem for each in parsed if each.part is part}
        for each in parsed:
            if config.get(field) and each.part is Part.LORA_B and each.stem not in having:
                raise _malformed(file, each.module, f"{field} is set, and there is no {part.value} beside its pair")


# --- needs -------------------------------------------------------------------


def _pair_needs(pairs: Iterable[_Pair], features: Collection[str]) -> Iterator[Need]:
    is_plain = not {"bdlora", "qalora"}.intersection(features)  # those keep one factor smaller than the base's weight
    for pair in pairs:
        shape = (pair.a[1], pair.b[0]) if pair.is_embedding else (pair.b[0], *pair.a[1:])
        yield Need(pair.module, "weight", shape if is_plain and not pair.is_stacked else None, paired=True)


def _other_needs(shapes: Mapping[str, _Shape], parsed: Mapping[str, Parsed]) -> Iterator[Need]:
    paired = {each.stem for each in parsed.values() if each.part in _FACTORS}
    for name, each in parsed.items():
        if each.part is Part.WHOLE:
            yield Need(each.module, each.leaf, shapes[name], paired=False)
        elif each.part is Part.TOKEN_ROWS:
            yield Need(each.module, "weight", (0, *shapes[name][1:]), paired=False)
        elif each.part not in _FACTORS and each.stem not in paired:
            yield Need(each.module, "weight", None, paired=True)


# --- refusal -----------------------------------------------------------------


def _not_a_pair(file: str, pair: _Pair, why: str) -> MalformedArtifact:
    names = (Part.EMBEDDING_A, Part.EMBEDDING_B) if pair.is_embedding else (Part.LORA_A, Part.LORA_B)
    shown = " and ".join(f"{part.value} {list(shape)}" for part, shape in zip(names, (pair.a, pair.b), strict=True))
    return _malformed(file, pair.module, f"{shown} are no LoRA pair: {why}")


def _other_rank(file: str, module: str, held: int, declared: Collection[int]) -> MalformedArtifact:
    said = " or ".join(map(str, sorted(declared)))
    error = _malformed(file, module, f"the tensors have rank {held}, and {CONFIG_NAME} says {said}")
    error.details.update(tensor_rank=held, config_rank=said)
    return error


def _malformed(file: str, module: str, what: str) -> MalformedArtifact:
    return MalformedArtifact(f"{file}: module {module!r}: {what}", file=file, module=module)
