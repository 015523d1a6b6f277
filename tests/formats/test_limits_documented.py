"""docs/formats.md has every limit, with the default that holds."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from warmshelfd.formats.base import FormatLimits

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "formats.md"


def test_the_table_of_limits_is_current() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", DOCUMENT.read_text(), re.MULTILINE)
    assert {name: int(value) for name, value in rows} == dataclasses.asdict(FormatLimits())
