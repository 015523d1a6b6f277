"""Which files are read where several could be meant: every row of the table in docs/formats.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kit.adapters import config_bytes, pair, weights_bytes
from kit.models import safetensors_bytes
from kit.tensors_file import Written, tensors_file
from warmshelf.errors import WarmshelfError
from warmshelfd.formats.base import FormatLimits
from warmshelfd.formats.detect import detect

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
Row = tuple[list[str], str, list[str]]


def rows() -> list[Row]:
    """Return what each row says: the files that are there, ``refused`` or "", and the files read or the reason."""
    section = PAGE.read_text().partition("### Which files")[2].partition("\n## ")[0]
    cells = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [(names(there), "refused" if "refused" in read else "", names(read)) for there, read in cells]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def content(name: str, there: list[str]) -> bytes:
    """Return a good file of that name; an index names the numbered files that are there, or one that is not."""
    shards = [one for one in there if re.fullmatch(r"model-\d\.safetensors", one)] or ["model-9.safetensors"]
    if name == "adapter_config.json":
        return config_bytes()
    if name == "adapter_model.safetensors":
        return weights_bytes(pair("q_proj"))
    if name.endswith(".index.json"):
        return json.dumps({"metadata": {}, "weight_map": {f"tensor of {shard}": shard for shard in shards}}).encode()
    if name.endswith(".safetensors"):
        return safetensors_bytes({f"tensor of {name}": ("U8", (4,), b"1234")})
    if name.endswith(".tensors"):
        shapes = pair("q_proj") if name.startswith("adapter") else {f"tensor of {name}": (32,)}
        return tensors_file(
            [Written(tensor.encode(), b"<f4", shape, bytes(128)) for tensor, shape in shapes.items()]
        ).content
    return b"{}" if name.endswith(".json") else b"\x80\x04."


@pytest.mark.parametrize(("there", "refused", "read"), rows(), ids=lambda value: " ".join(value) or "read")
def test_what_the_page_says_is_read_and_nothing_else(
    there: list[str], refused: str, read: list[str], memory_files: Any
) -> None:
    """B21, B27."""
    files = memory_files({name: content(name, there) for name in there})
    if refused:
        with pytest.raises(WarmshelfError) as caught:
            detect(files, FormatLimits())
        assert caught.value.reason == read[0]
        return
    inspected = detect(files, FormatLimits())
    assert list(inspected.file_names) == read
    weights = {name for name in files.read_names if not name.endswith(".json")}
    assert weights == set(read)


def test_the_page_has_the_table() -> None:
    assert len(rows()) == 20
