"""Which part of a tensor each rank takes. The oracle cuts with numpy, which the arithmetic does not use."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmshelf.errors import InvalidRequest
from warmshelf.layout import TensorSpec
from warmshelf.shard import (
    LLAMA_RULES,
    PIECE_ALIGN_BYTES,
    Rule,
    Shard,
    TensorSlice,
    layer_of,
    packed_size_bytes,
    pieces_of,
    runs_of,
    slices_of,
)

ITEM_BYTES = {"U8": 1, "BF16": 2, "F32": 4, "I64": 8}


def spec(name: str, shape: tuple[int, ...], dtype: str = "BF16", offset: int = 4096) -> TensorSpec:
    return TensorSpec(name, dtype, shape, offset, prod(shape) * ITEM_BYTES[dtype])


def part(name: str, shape: tuple[int, ...], rank: int = 1, world: int = 2) -> TensorSlice:
    (one,) = slices_of([spec(name, shape)], Shard(rank, world))
    return one


@given(
    shape=st.lists(st.integers(0, 6), min_size=1, max_size=4).map(tuple),
    dtype=st.sampled_from(sorted(ITEM_BYTES)),
    data=st.data(),
)
def test_the_runs_of_every_slice_are_the_bytes_that_numpy_cuts(
    shape: tuple[int, ...], dtype: str, data: st.DataObject
) -> None:
    dim = data.draw(st.integers(0, len(shape) - 1))
    start = data.draw(st.integers(0, shape[dim]))
    stop = data.draw(st.integers(start, shape[dim]))
    size = prod(shape) * ITEM_BYTES[dtype]
    segment = np.random.default_rng(1).integers(0, 256, 64 + size, np.uint8)
    whole = segment[64:].reshape(*shape, ITEM_BYTES[dtype])
    cut = np.take(whole, range(start, stop), axis=dim).tobytes()
    (piece,) = pieces_of([spec("w", shape, dtype, 64)], [TensorSlice(0, dim, start, stop)])
    assert piece.size_bytes == len(cut)
    first = data.draw(st.integers(0, len(cut)))
    last = data.draw(st.integers(first, len(cut)))
    assert b"".join(segment[a:b].tobytes() for a, b in runs_of(piece, first, last)) == cut[first:last]


@given(st.lists(st.integers(0, 5), max_size=6), st.integers(1, 4))
def test_slices_are_packed_one_after_another_at_aligned_places(rows: list[int], world: int) -> None:
    specs = [spec(f"model.layers.{i}.mlp.up_proj.weight", (count * world, 3)) for i, count in enumerate(rows)]
    pieces = pieces_of(specs, slices_of(specs, Shard(world - 1, world)))
    end = 0
    for piece, count in zip(pieces, rows, strict=True):
        assert piece.packed_bytes % PIECE_ALIGN_BYTES == 0
        assert end <= piece.packed_bytes < end + PIECE_ALIGN_BYTES
        assert piece.shape == (count, 3)
        end = piece.packed_bytes + piece.size_bytes
    assert packed_size_bytes(pieces) == end


@pytest.mark.parametrize(
    ("name", "dim"),
    [
        ("model.layers.0.self_attn.q_proj.weight", 0),
        ("model.layers.0.self_attn.k_proj.bias", 0),
        ("model.layers.0.mlp.down_proj.weight", 1),
        ("model.layers.0.mlp.down_proj.bias", None),
        ("model.layers.0.input_layernorm.weight", None),
        ("model.embed_tokens.weight", 0),
        ("lm_head.weight", 0),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", None),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", 0),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight", 0),
        ("base_model.model.model.layers.0.mlp.down_proj.lora_A.weight", 1),
        ("base_model.model.model.layers.0.mlp.down_proj.lora_B.weight", None),
        ("base_model.model.model.layers.0.mlp.up_proj.lora_magnitude_vector", 0),
        ("base_model.model.model.layers.0.mlp.down_proj.lora_magnitude_vector", None),
        ("my_q_proj.weight", None),
    ],
)
def test_the_rules_for_llama_names_split_outputs_of_columns_and_inputs_of_rows(name: str, dim: int | None) -> None:
    assert part(name, (8, 8)) == (TensorSlice(0, -1, 0, 0) if dim is None else TensorSlice(0, dim, 4, 8))


def test_the_first_rule_that_fits_counts() -> None:
    rules = (Rule(r".*\.q_proj\.weight", None), *LLAMA_RULES)
    (one,) = slices_of([spec("a.q_proj.weight", (8, 8))], Shard(0, 2, rules))
    assert one.dim == -1


def test_a_size_that_does_not_divide_is_refused_with_tensor_and_numbers() -> None:
    with pytest.raises(InvalidRequest) as caught:
        part("model.layers.3.self_attn.k_proj.weight", (9, 64), world=2)
    assert "model.layers.3.self_attn.k_proj.weight" in str(caught.value)
    assert (caught.value.details["size"], caught.value.details["world"]) == (9, 2)


def test_a_rule_for_a_dimension_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"o_proj\.weight.*dimension 1"):
        part("o_proj.weight", (8,))


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (0, 0), (0, -1)])
def test_a_rank_outside_its_world_is_refused(rank: int, world: int) -> None:
    with pytest.raises(InvalidRequest):
        Shard(rank, world)


def test_a_pattern_that_is_none_is_refused_where_it_is_given() -> None:
    with pytest.raises(InvalidRequest, match="regular expression"):
        Shard(0, 1, (Rule("(", 0),))


@pytest.mark.parametrize(
    "forged",
    [
        TensorSlice(1, -1, 0, 0),
        TensorSlice(-1, -1, 0, 0),
        TensorSlice(0, 2, 0, 1),
        TensorSlice(0, -2, 0, 1),
        TensorSlice(0, 0, 3, 2),
        TensorSlice(0, 0, -1, 2),
        TensorSlice(0, 0, 0, 2**62),
    ],
)
def test_a_slice_outside_its_tensor_is_refused(forged: TensorSlice) -> None:
    with pytest.raises(InvalidRequest):
        pieces_of([spec("w", (4, 4))], [forged])


def test_packed_elements_are_cut_at_whole_bytes_only() -> None:
    packed = TensorSpec("w", "F4", (2, 8), 4096, 8)
    assert pieces_of([packed], [TensorSlice(0, 1, 2, 4)])[0].run_bytes == 1
    with pytest.raises(InvalidRequest, match="whole bytes"):
        pieces_of([packed], [TensorSlice(0, 1, 1, 4)])


def test_layers_are_in_the_order_of_their_numbers() -> None:
    names = ["layers.10.w", "layers.2.w", "embed.w", "layers.2.experts.3.w"]
    assert sorted(names, key=lambda name: layer_of(spec(name, (1,)))) == [
        "embed.w", "layers.2.w", "layers.2.experts.3.w", "layers.10.w"
    ]  # fmt: skip
