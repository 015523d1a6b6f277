"""Compares an adapter with a base: does every module that the adapter changes exist there, in the right shape?

Names are compared as they stand. A base whose modules are called otherwise, be it
only by a prefix, does not have them: nobody could say what an engine would make of
it. Three things are no mismatch: a vocabulary that the adapter brings grown, an output
layer that the base leaves out because it is tied to the input embedding, and layers of
the base that the adapter's config uses twice, under numbers that the base does not have.

Knows names and shapes only: no dtype, no file, no registry.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from warmshelf.errors import BaseMismatch
from warmshelf.types import BaseCheck
from warmshelfd.domain.adapter_shapes import AdapterShapes, Need

_Shape = tuple[int, ...]
_Base = Mapping[str, _Shape]

_OUTPUT = re.compile(r"(?:lm_head|embed_out|output)\Z")
"""How output layers are called, by the last part of their name."""

_INPUT = re.compile(r"(?:.*\.)?(?:embed_tokens|tok_embeddings|word_embeddings|embed_in|wte|shared|emb)\.weight\Z")
"""How the input embedding's tensor is called."""

_VOCABULARY = re.compile(r"(?:(?!.*pos).*emb.*|wte|shared|lm_head|output)\Z", re.IGNORECASE)
"""Modules with a row per token, by the last part of their name. Positions are no vocabulary."""


def is_input_embedding(tensor_name: str) -> bool:
    """Say whether a tensor is called as input embeddings are."""
    return _INPUT.match(tensor_name) is not None


def is_output_layer(tensor_name: str) -> bool:
    """Say whether a tensor is called as the weight of an output layer is."""
    module, _, leaf = tensor_name.rpartition(".")
    return leaf == "weight" and _OUTPUT.match(_last_part(module)) is not None


@dataclass(frozen=True, slots=True)
class BaseResult:
    """How far an adapter and a base belong together.

    Attributes:
        check: how much of the adapter the base has.
        matched: modules of the adapter that the base has, sorted.
        unmatched: those that it does not have, sorted.
        vocabulary: rows in the base and in the adapter, if the adapter brings more.
    """

    check: BaseCheck
    matched: tuple[str, ...]
    unmatched: tuple[str, ...]
    vocabulary: tuple[int, int] | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """What follows for a worker, in the words of an adapter's features."""
        return () if self.vocabulary is None else (f"vocabulary:{self.vocabulary[0]}->{self.vocabulary[1]}",)


def check_against_base(adapter: AdapterShapes, base: Mapping[str, tuple[int, ...]]) -> BaseResult:
    """Compare an adapter with the names and shapes of a base's tensors.

    Raises:
        BaseMismatch: a shape differs, or the base has none of the adapter's modules.
    """
    tied = _tied_shape(base)
    needs = [(need.module, adapter.of_base(need)) for need in adapter.needs]
    parents = _parents(base, {name for _, need in needs for name in (need.module, need.tensor_name)})
    absent: dict[str, str] = {}  # modules, and of each the first tensor that the base lacks
    grown: set[tuple[int, int]] = set()
    for module, need in needs:
        held = base.get(need.tensor_name, _tied_to(need, tied))
        if held is None:
            if not _is_inside(need, parents):
                absent.setdefault(module, need.tensor_name)
        elif not (_fits(need, held, adapter, base) or _is_packed(need, base, parents)):
            grown.add(_grown(need, held))
    return _result(adapter, absent, max(grown, default=None), base)


def _result(
    adapter: AdapterShapes, absent: Mapping[str, str], vocabulary: tuple[int, int] | None, base: _Base
) -> BaseResult:
    modules = adapter.module_names
    if not modules:
        return BaseResult(BaseCheck.UNCHECKED, (), ())
    matched = tuple(name for name in modules if name not in absent)
    unmatched = tuple(name for name in modules if name in absent)
    if not matched:
        raise _nothing_matches(unmatched, absent, base)
    return BaseResult(BaseCheck.PARTIAL if unmatched else BaseCheck.MATCHED, matched, unmatched, vocabulary)


# --- one need ----------------------------------------------------------------


def _fits(need: Need, held: _Shape, adapter: AdapterShapes, base: _Base) -> bool:
    if need.shape is None or _same(need.shape, held):
        return True
    return need.paired and _same(need.shape, held[::-1]) and _is_transposed(need, adapter, base)


def _is_transposed(need: Need, adapter: AdapterShapes, base: _Base) -> bool:
    """Say whether the base stores the weight as (in, out).

    The adapter's config says so, or the bias shows it. Where a model has layers of
    both kinds, the config knows only of the last that PEFT came to.
    """
    return adapter.fan_in_fan_out or base.get(f"{need.module}.bias") == (need.shape or ())[:1]


def _same(shape: _Shape, held: _Shape) -> bool:
    return len(shape) == len(held) and all(dim in (0, other) for dim, other in zip(shape, held, strict=True))


def _grown(need: Need, held: _Shape) -> tuple[int, int]:
    """Return the rows of base and adapter, if their shapes differ because the adapter's vocabulary has grown.

    Raises:
        BaseMismatch: they differ for another reason.
    """
    match need.shape, held:
        case (int(rows), *columns), (int(held_rows), *held_columns) if (
            len(columns) == 1
            and columns == held_columns
            and rows > held_rows
            and _VOCABULARY.match(_last_part(need.module))
        ):
            return held_rows, rows
    raise BaseMismatch(
        f"module {need.module!r}: expected {need.leaf} of shape {list(held)} as in the base, "
        f"got an adapter for {list(need.shape or ())}",
        module=need.module,
        expected_shape=str(list(held)),
        got_shape=str(list(need.shape or ())),
    )


def _is_inside(need: Need, parents: Collection[str]) -> bool:
    """Say whether the base has the module, only without a tensor of that name.

    So it is with quantised modules (``qweight``), experts kept in one tensor, and
    attention with one tensor for three projections.
    """
    return need.module in parents and (need.paired or need.shape is None)


def _is_packed(need: Need, base: _Base, parents: Collection[str]) -> bool:
    """Say whether the base's tensor is quantised into another shape, as what lies beside it shows."""
    return need.paired and (need.tensor_name in parents or f"{need.tensor_name}_scale_2" in base)


def _tied_to(need: Need, tied: _Shape | None) -> _Shape | None:
    """Return the input embedding's shape, if the need is for an output layer that is tied to it."""
    if tied is None or need.leaf != "weight" or not _OUTPUT.match(_last_part(need.module)):
        return None
    return tied if need.shape is None or need.shape[1:] == tied[1:] else None


# --- the base's names --------------------------------------------------------


def _parents(base: _Base, wanted: Collection[str]) -> set[str]:
    """Return those of the wanted names that the base has something below."""
    found: set[str] = set()
    for name in base:
        parent, dot, _ = name.rpartition(".")
        while dot and parent not in found:
            if parent in wanted:
                found.add(parent)
            parent, dot, _ = parent.rpartition(".")
    return found


def _tied_shape(base: _Base) -> _Shape | None:
    """Return the input embedding's shape, if it is the only one and the base has no output layer."""
    if any(_OUTPUT.match(_last_part(name.removesuffix(".weight"))) for name in base):
        return None
    match list(islice((shape for name, shape in base.items() if _INPUT.match(name)), 2)):
        case [shape]:
            return shape
    return None


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


# --- refusal -----------------------------------------------------------------


def _nothing_matches(modules: Collection[str], absent: Mapping[str, str], base: Iterable[str]) -> BaseMismatch:
    """Return the refusal; where the base has the module, only the tensor says what is missing."""
    first = min(modules)
    tensor = absent[first]
    end = f"{_last_part(first)}.weight"
    like = next((name for name in base if name == end or name.endswith(f".{end}")), None)
    hint = "" if like is None else f"; the base has {like.removesuffix('.weight')!r}"
    return BaseMismatch(
        f"the base has none of the adapter's {len(modules)} modules, such as {first!r}{hint}: "
        f"it has no tensor {tensor!r}",
        module=first,
        tensor=tensor,
        unmatched_count=len(modules),
    )
