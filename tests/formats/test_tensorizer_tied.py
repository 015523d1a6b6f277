"""An output layer that a `.tensors` file holds a second time beside the input embedding."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from kit.tensors_file import Written, tensors_file
from warmshelfd.formats.base import FormatLimits, Inspected
from warmshelfd.formats.tensorizer import TensorizerFormat

ROWS = bytes(range(256)) * 2
EMBED = Written(b"model.embed_tokens.weight", b"<f4", (16, 8), ROWS)
NORM = Written(b"model.norm.weight", b"<f4", (8,), bytes(32))
HEAD = Written(b"lm_head.weight", b"<f4", (16, 8), ROWS)
TIES = {"tie_word_embeddings": True}


@pytest.fixture
def inspect(memory_files: Any) -> Any:
    def run(*tensors: Written, config: object = TIES, **options: int) -> Inspected:
        files = {"model.tensors": tensors_file(list(tensors), **options).content}
        if config is not None:
            files["config.json"] = config if isinstance(config, bytes) else json.dumps(config).encode()
        return TensorizerFormat().inspect(memory_files(files), FormatLimits())

    return run


def places(inspected: Inspected) -> dict[str, int]:
    return {entry.name: entry.offset_bytes for entry in inspected.entries}


def is_tied(inspected: Inspected) -> bool:
    found = places(inspected)
    return found["lm_head.weight"] == found["model.embed_tokens.weight"]


@pytest.mark.parametrize("config", [TIES, {"text_config": TIES}], ids=["itself", "its text_config"])
def test_equal_tensors_of_which_the_config_says_so_are_one(inspect: Any, config: object) -> None:
    """B12: both names stay, with one place in the file."""
    found = inspect(EMBED, NORM, HEAD, config=config)
    assert is_tied(found)
    assert [entry.name for entry in found.entries] == [
        "lm_head.weight",
        "model.embed_tokens.weight",
        "model.norm.weight",
    ]
    assert {entry.name: (entry.shape, entry.size_bytes) for entry in found.entries} == {
        t.name.decode(): (t.shape, len(t.data)) for t in (EMBED, NORM, HEAD)
    }


def test_the_first_in_the_file_is_the_one_that_is_read(inspect: Any) -> None:
    first = places(inspect(HEAD, NORM, EMBED, config=None))["lm_head.weight"]
    assert set(places(inspect(HEAD, NORM, EMBED)).values()) >= {first}
    assert is_tied(inspect(HEAD, NORM, EMBED))


def test_each_name_keeps_hashes_of_its_own_for_the_same_bytes(inspect: Any) -> None:
    checks = {check.name: check for check in inspect(EMBED, NORM, HEAD).checks}
    assert checks.keys() == {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        checks[name].check_crc32(zlib.crc32(ROWS), len(ROWS))
        checks[name].check_sha256([ROWS])


@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {"tie_word_embeddings": False},
        {"tie_word_embeddings": 1},
        {"vision_config": TIES},
        [TIES],
        b"{",
        b"[" * 9999,
    ],
    ids=["no config", "nothing said", "denied", "a number", "another level", "a list", "broken", "nested"],
)
def test_equal_bytes_alone_are_no_tie(inspect: Any, config: object) -> None:
    """B12: a config that does not say so, or says so at a level that is not the model's, ties nothing."""
    assert not is_tied(inspect(EMBED, NORM, HEAD, config=config))


@pytest.mark.parametrize(
    "head",
    [
        Written(b"lm_head.weight", b"<f4", (16, 8), ROWS[:-1] + b"x"),
        Written(b"lm_head.weight", b"<f4", (8, 16), ROWS),
        Written(b"lm_head.weight", b"<i4", (16, 8), ROWS),
    ],
    ids=["other bytes", "another shape", "another dtype"],
)
def test_what_differs_is_no_tie_whatever_the_config_says(inspect: Any, head: Written) -> None:
    """B12: a real lm_head is never thrown away."""
    assert not is_tied(inspect(EMBED, NORM, head))


def test_with_two_output_layers_nothing_is_tied(inspect: Any) -> None:
    second = Written(b"draft.lm_head.weight", b"<f4", (16, 8), ROWS)
    assert len(set(places(inspect(EMBED, HEAD, second)).values())) == 3


def test_other_equal_tensors_stay_apart(inspect: Any) -> None:
    twin = Written(b"model.other.weight", b"<f4", (16, 8), ROWS)
    found = places(inspect(EMBED, twin, HEAD))
    assert found["model.other.weight"] != found["lm_head.weight"]
