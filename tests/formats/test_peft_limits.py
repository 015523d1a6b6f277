"""What an adapter's files may ask for: each limit holds, and stands in docs/formats.md."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.adapters import CONFIG, PREFIX, WEIGHTS, adapter_files, config_bytes, pair
from kit.models import safetensors_bytes
from warmshelf.errors import MalformedArtifact
from warmshelfd.formats.base import FormatLimits
from warmshelfd.formats.peft import AdapterLimits, PeftFormat
from warmshelfd.formats.peft_config import config_features, parse_config
from warmshelfd.formats.peft_names import parse_name

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "formats.md"


def files_asking_for(limit: str, count: int) -> dict[str, bytes]:
    """Return an adapter that asks for exactly so much of one thing."""
    files = adapter_files(pair("q"))
    if limit == "config_bytes_max":
        return files | {CONFIG: config_bytes().ljust(count)}
    if limit == "header_bytes_max":
        weights = files[WEIGHTS]
        size = int.from_bytes(weights[:8], "little")
        return files | {WEIGHTS: count.to_bytes(8, "little") + weights[8 : 8 + size].ljust(count) + weights[8 + size :]}
    if limit == "metadata_bytes_max":
        longest = count - len(' {"": ""')
        return files | {WEIGHTS: safetensors_bytes({"w": ("U8", (1,), b"x")}, {"": "x" * longest})}
    if limit == "tensor_count_max":
        return adapter_files({f"{PREFIX}m{i}.weight": (1,) for i in range(count)})
    if limit == "tensor_bytes_max":
        return adapter_files({"a.weight": (1,), "b.weight": (count // 2 - 1,)})
    return adapter_files({"w": (count,)})


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(AdapterLimits)])
def test_a_limit_is_reached_and_not_passed(field: str, memory_files: Any) -> None:
    limit = 1000
    limits = dataclasses.replace(AdapterLimits(), **{field: limit})
    step = 2 if field == "tensor_bytes_max" else 1

    def inspect(count: int) -> None:
        PeftFormat(limits=limits).inspect(memory_files(files_asking_for(field, count)), FormatLimits())

    inspect(limit)
    for count in (limit + step, 10 * limit):
        with pytest.raises(MalformedArtifact):
            inspect(count)


def test_the_limits_of_all_formats_hold_for_adapters_too(memory_files: Any) -> None:
    files = memory_files(adapter_files(pair("q")))
    with pytest.raises(MalformedArtifact, match="more than 1 tensors"):
        PeftFormat().inspect(files, FormatLimits(tensor_count_max=1))


def test_a_config_that_is_too_long_is_not_read(memory_files: Any) -> None:
    files = memory_files(files_asking_for("config_bytes_max", (64 << 10) + 1))
    with pytest.raises(MalformedArtifact, match=f"{CONFIG}: has 65537 bytes, at most 65536"):
        PeftFormat().inspect(files, FormatLimits())
    assert files.read_names == []


def test_the_table_of_limits_is_current() -> None:
    rows = re.findall(r"^\| `AdapterLimits\.(\w+)` \| (\d+) \|", DOCUMENT.read_text(), re.MULTILINE)
    assert {name: int(value) for name, value in rows} == dataclasses.asdict(AdapterLimits())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(["r", "rank_pattern", "bias", "init_lora_weights", "use_dora", "kasa_config", "x"])


@given(st.dictionaries(FIELDS, JSON, max_size=4))
def test_odd_values_of_fields_are_features_or_no_json(fields: dict[str, object]) -> None:
    try:
        features = config_features(parse_config(config_bytes(**fields)))
    except MalformedArtifact:  # NaN, and half a surrogate pair
        return
    assert all(feature.isprintable() for feature in features)


@given(st.text(alphabet="ab._lorAB", max_size=30) | st.text(max_size=12))
def test_any_name_says_something(name: str) -> None:
    parsed = parse_name(name)
    assert len(parsed.module) <= len(name)
