"""What an adapter needs of its base is kept and read back the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmshelfd.domain.adapter_shapes import Need, adapter_shapes, shapes_from_record, shapes_to_record

NAMES = st.sampled_from(["", "a", "a.b", "lm_head"])
SHAPES = st.none() | st.lists(st.integers(0, 99), max_size=5).map(tuple)
NEEDS = st.builds(Need, NAMES, st.sampled_from(["weight", "bias"]), SHAPES, st.booleans())

GROUP: dict[str, Any] = {"leaf": "weight", "shape": [8, 8], "paired": True, "modules": [0]}
RECORD: dict[str, Any] = {"fan_in_fan_out": False, "groups": [GROUP]}


@given(st.lists(NEEDS, max_size=8), st.booleans(), st.lists(st.integers(0, 99), max_size=4))
def test_shapes_are_read_back_from_json_the_same(needs: list[Need], fan_in_fan_out: bool, layers: list[int]) -> None:
    shapes = adapter_shapes(needs, fan_in_fan_out=fan_in_fan_out, layers=layers)
    record = json.loads(json.dumps(shapes_to_record(shapes)))
    assert shapes_from_record(record, shapes.module_names) == shapes
    assert set(shapes.needs) == set(needs)


def test_a_shape_is_written_once_for_all_its_modules() -> None:
    needs = [Need(f"model.layers.{i:05}.q_proj", "weight", (4096, 4096), paired=True) for i in range(10_000)]
    text = json.dumps(shapes_to_record(adapter_shapes(needs, fan_in_fan_out=False)))
    assert text.count("[4096, 4096]") == 1
    assert len(text) < 7 * len(needs)


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        {},
        {"groups": []},
        {**RECORD, "more": 1},
        {**RECORD, "fan_in_fan_out": 0},
        {**RECORD, "groups": {}},
        {**RECORD, "layers": 1},
        {**RECORD, "layers": [-1]},
        {**RECORD, "layers": [True]},
        {**RECORD, "groups": [5]},
        *[
            {**RECORD, "groups": [{**GROUP, **change}]}
            for change in (
                {"leaf": 5},
                {"shape": [-1]},
                {"shape": [True]},
                {"shape": [1.0]},
                {"shape": [1] * 17},
                {"shape": "8"},
                {"paired": 1},
                {"modules": [1]},
                {"modules": [-1]},
                {"modules": [False]},
                {"modules": "0"},
                {"more": 1},
            )
        ],
    ],
)
def test_what_is_no_record_is_refused(record: object) -> None:
    assert shapes_from_record(RECORD, ["q"]).needs == (Need("q", "weight", (8, 8), paired=True),)
    with pytest.raises(ValueError, match="adapter"):
        shapes_from_record(record, ["q"])
