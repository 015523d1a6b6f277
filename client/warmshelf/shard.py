"""Which part of each tensor one rank of a tensor-parallel group takes, and how the parts are packed.

Pure arithmetic over names, dtypes and shapes, used by both sides: the client says which
slices it wants, and both compute the same packed space from them. Knows no bytes, no
stream and no engine.

The rules for Llama-style names are those of Megatron-LM's layers: a column-parallel
layer splits its outputs, a row-parallel one its inputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from warmshelf.dtypes import DTYPES
from warmshelf.errors import InvalidRequest
from warmshelf.layout import TensorSpec, round_up

PIECE_ALIGN_BYTES = 64
"""Where a slice begins in the packed space: enough for every dtype and for vector loads."""

SLICES_MAX = 32_768
"""Most slices of one read: with the longest numbers they take less than the 1 MiB of a request."""

WHOLE = -1
"""The dimension of a slice that is the whole tensor."""

_COLUMN = r"(?:.*\.)?(?:q_proj|k_proj|v_proj|gate_proj|up_proj|lm_head|embed_tokens)"
_ROW = r"(?:.*\.)?(?:o_proj|down_proj)"
_LORA = r"(?:\.[^.]+)?\.weight"  # peft may put the adapter's name between


@dataclass(frozen=True, slots=True)
class Rule:
    """How tensors of some names are split.

    Attributes:
        pattern: a regular expression for the whole name.
        dim: the dimension that is split into as many equal parts as there are ranks; None: every
            rank takes the tensor whole.
    """

    pattern: str
    dim: int | None


LLAMA_RULES = (
    Rule(rf"{_COLUMN}\.(?:weight|bias)", 0),
    Rule(rf"{_ROW}\.weight", 1),
    Rule(rf"{_COLUMN}\.lora_B{_LORA}", 0),
    Rule(rf"{_ROW}\.lora_A{_LORA}", 1),
    Rule(rf"{_COLUMN}\.lora_magnitude_vector(?:{_LORA})?", 0),
    Rule(r".*\.lora_embedding_A(?:\.[^.]+)?", 1),
)
"""For separate q, k, v, gate and up projections. Fused ones, and heads that are copied because there
are fewer of them than ranks, need rules of their own."""


@dataclass(frozen=True, slots=True)
class Shard:
    """What one rank takes.

    Attributes:
        rank: which, from 0.
        world: how many there are.
        rules: the first whose pattern fits a name counts; a name that none fits is taken whole.

    Raises:
        InvalidRequest: there is no such rank, or a pattern is no regular expression.
    """

    rank: int
    world: int
    rules: tuple[Rule, ...] = LLAMA_RULES

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise InvalidRequest(f"rank {self.rank} of {self.world}", rank=self.rank, world=self.world)
        for rule in self.rules:
            _compiled(rule.pattern)


EVERYTHING = Shard(0, 1, ())
"""What one worker alone takes."""


class TensorSlice(NamedTuple):
    """A part of one tensor: elements ``start`` to ``stop`` of dimension ``dim``; all of it if ``dim`` is WHOLE."""

    tensor_index: int
    dim: int
    start: int
    stop: int


class Piece(NamedTuple):
    """Where a slice lies in its tensor, as runs of bytes at equal distances, and in the packed space.

    Attributes:
        spec: the tensor.
        shape: of the slice.
        strides: in elements, of a view of the slice inside the tensor.
        first_bytes: where the first run begins, from the start of the segment.
        run_bytes, run_count, step_bytes: length and number of the runs, and from one's start to the next's.
        packed_bytes: where the slice begins in the packed space.
    """

    spec: TensorSpec
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    first_bytes: int
    run_bytes: int
    run_count: int
    step_bytes: int
    packed_bytes: int

    @property
    def size_bytes(self) -> int:
        """Length of the slice."""
        return self.run_bytes * self.run_count

    @property
    def is_dense(self) -> bool:
        """Whether the slice is one run."""
        return self.run_count <= 1


def slices_of(specs: Sequence[TensorSpec], shard: Shard) -> list[TensorSlice]:
    """Return the rank's slice of each tensor, in the order of the tensors.

    Raises:
        InvalidRequest: a tensor has no such dimension, or it does not divide; names the tensor and the numbers.
    """
    return [_slice(index, spec, shard) for index, spec in enumerate(specs)]


def pieces_of(specs: Sequence[TensorSpec], slices: Sequence[TensorSlice]) -> list[Piece]:
    """Return where each slice lies.

    Raises:
        InvalidRequest: a slice is not inside its tensor, or does not begin and end at whole bytes.
    """
    pieces, at = [], 0
    for one in slices:
        if not 0 <= one.tensor_index < len(specs):
            raise InvalidRequest(f"there is no tensor {one.tensor_index} of {len(specs)}", tensor_count=len(specs))
        pieces.append(_piece(specs[one.tensor_index], one, at))
        at = round_up(at + pieces[-1].size_bytes, PIECE_ALIGN_BYTES)
    return pieces


def packed_size_bytes(pieces: Sequence[Piece]) -> int:
    """Return how long the packed space is."""
    return pieces[-1].packed_bytes + pieces[-1].size_bytes if pieces else 0


def runs_of(piece: Piece, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Return the ranges of the segment whose bytes are ``start`` to ``stop`` of the slice."""
    while start < stop:
        run, inside = divmod(start, piece.run_bytes)
        size = min(piece.run_bytes - inside, stop - start)
        first = piece.first_bytes + run * piece.step_bytes + inside
        yield first, first + size
        start += size


def layer_of(spec: TensorSpec) -> tuple[int, ...]:
    """Return what sorts tensors as a forward pass meets their layers: the numbers in the name.

    Names without a number, such as embeddings and the head, come first.
    """
    return tuple(int(part[:9]) for part in spec.name.split(".") if part.isascii() and part.isdigit())


def _slice(index: int, spec: TensorSpec, shard: Shard) -> TensorSlice:
    rule = next((rule for rule in shard.rules if _compiled(rule.pattern).fullmatch(spec.name)), None)
    if rule is None or rule.dim is None:
        return TensorSlice(index, WHOLE, 0, 0)
    if not 0 <= rule.dim < len(spec.shape):
        raise InvalidRequest(
            f"tensor {spec.name!r} of shape {spec.shape} has no dimension {rule.dim} to split", tensor=spec.name
        )
    size = spec.shape[rule.dim]
    if size % shard.world:
        raise InvalidRequest(
            f"tensor {spec.name!r} of shape {spec.shape}: {shard.world} ranks do not divide dimension {rule.dim}",
            tensor=spec.name,
            size=size,
            world=shard.world,
        )
    part = size // shard.world
    return TensorSlice(index, rule.dim, shard.rank * part, (shard.rank + 1) * part)


def _piece(spec: TensorSpec, one: TensorSlice, at: int) -> Piece:
    strides = tuple(prod(spec.shape[dim + 1 :]) for dim in range(len(spec.shape)))
    if one.dim == WHOLE:
        return Piece(spec, spec.shape, strides, spec.offset_bytes, spec.size_bytes, 1, spec.size_bytes, at)
    if not 0 <= one.dim < len(spec.shape) or not 0 <= one.start <= one.stop <= spec.shape[one.dim]:
        raise InvalidRequest(
            f"tensor {spec.name!r} of shape {spec.shape} has no {one.start} to {one.stop} in dimension {one.dim}",
            tensor=spec.name,
        )
    bits = strides[one.dim] * DTYPES[spec.dtype].bits
    if (one.start * bits) % 8 or (one.stop * bits) % 8 or (spec.shape[one.dim] * bits) % 8:
        raise InvalidRequest(
            f"tensor {spec.name!r} of dtype {spec.dtype} is not split at whole bytes", tensor=spec.name
        )
    shape = (*spec.shape[: one.dim], one.stop - one.start, *spec.shape[one.dim + 1 :])
    first = spec.offset_bytes + one.start * bits // 8
    run, step = (one.stop - one.start) * bits // 8, spec.shape[one.dim] * bits // 8
    return Piece(spec, shape, strides, first, run, prod(spec.shape[: one.dim]) if run else 0, step, at)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.DOTALL)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidRequest(f"the pattern {pattern!r} is no regular expression: {error}") from error
