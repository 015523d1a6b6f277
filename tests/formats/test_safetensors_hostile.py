"""Hostile, broken and sloppy safetensors headers: each is refused, and says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kit.hostile_safetensors import GOOD, LIMITS, Hostile, blob, tensor
from warmshelf.errors import SourceTruncated, UnsupportedDtype, WarmshelfError

Detect = Callable[..., Any]


@pytest.mark.parametrize("hostile", Hostile.__subclasses__(), ids=lambda cls: cls.__name__)
def test_a_hostile_file_is_refused(hostile: type[Hostile], detect_in: Detect) -> None:
    """B20, B23: a typed error that names the file and what is wrong with it."""
    with pytest.raises(WarmshelfError) as caught:
        detect_in({"model.safetensors": hostile().content()}, LIMITS)
    assert type(caught.value) is hostile.error
    assert hostile.says in caught.value.message
    assert "model.safetensors" in caught.value.message
    assert len(caught.value.message) < 1000


def test_the_unknown_dtype_is_named_with_its_tensor(detect_in: Detect) -> None:
    """B23."""
    with pytest.raises(UnsupportedDtype) as caught:
        detect_in({"m.safetensors": blob({"layer.w": tensor("X9")}, bytes(4))})
    assert caught.value.details == {"file": "m.safetensors", "tensor": "layer.w", "dtype": "X9"}


def test_a_file_cut_anywhere_is_refused_with_both_sizes(detect_in: Detect) -> None:
    """B20, S1: inside the length, the header and every tensor."""
    whole = blob({"a": tensor(), "b": tensor("U8", [3], [4, 7])}, bytes(7))
    assert len(detect_in({"m.safetensors": whole}).entries) == 2
    for size in range(len(whole)):
        with pytest.raises(SourceTruncated) as caught:
            detect_in({"m.safetensors": whole[:size]})
        assert caught.value.details["size_bytes"] == size
        assert size < int(caught.value.details["expected_bytes"]) <= len(whole)


def test_a_header_of_just_the_limit_is_read(detect_in: Detect) -> None:
    raw = json.dumps({"a": GOOD}).encode().ljust(LIMITS.header_bytes_max)
    assert len(detect_in({"m.safetensors": blob(raw, bytes(4))}, LIMITS).entries) == 1


def test_limits_are_the_last_that_is_accepted(detect_in: Detect) -> None:
    names = {"é" * 256: tensor("U8", [1] * 8, [0, 1]), **{str(i): tensor("U8", [0], [0, 0]) for i in range(99)}}
    header = json.dumps({**names, "__metadata__": {"k": "x" * 980}}, ensure_ascii=False).encode()
    assert len(detect_in({"m.safetensors": blob(header, b"x")}, LIMITS).entries) == 100
