"""Daemons with two tenants, by token and by certificate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.tenants import Estate, estate_in


@pytest.fixture
def estate(tmp_path: Path) -> Iterator[Estate]:
    """Not started yet."""
    with estate_in(tmp_path) as it:
        yield it


@pytest.fixture(params=[False, True], ids=["tokens", "certificates"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Estate]:
    """Started, once for each way to know callers."""
    with estate_in(tmp_path, by_certificate=request.param) as it:
        yield it.start()
