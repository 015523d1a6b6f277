"""The catalogue of faults is true: each row has tests that there are, and each failpoint has a row."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

from killing.points import ANYWHERE, POINTS
from kit.fault_rows import NOT_HAD, SECTIONS, TIERS, Row, is_nightly, rows
from warmshelfd import failpoints

ROWS = rows()

by_id = pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in ROWS])


@by_id
def test_a_row_says_what_happens_and_belongs_somewhere(row: Row) -> None:
    assert row.id[0] in SECTIONS
    assert row.tier in TIERS
    assert row.what
    assert row.holds


@by_id
def test_each_named_test_is_there(row: Row) -> None:
    missing = [test for test in row.tests if is_nightly(test) is None]
    assert not missing


@by_id
def test_a_row_is_shown_as_often_as_it_says(row: Row) -> None:
    """What is shown at every change has a test that no night is needed for."""
    shown = {bool(is_nightly(test)) for test in row.tests}
    if row.tier == NOT_HAD:
        assert not shown
        assert row.why
    else:
        assert (row.tier == "nightly") in shown


def test_no_fault_of_the_catalogue_is_left_out() -> None:
    """Rows that are gone would be missed by nobody."""
    counts = {"D": 12, "W": 9, "R": 13, "S": 19, "M": 12, "Z": 4, "N": 16, "C": 12}
    assert [row.id for row in ROWS] == [f"{letter}{n}" for letter, count in counts.items() for n in range(1, count + 1)]


def test_every_failpoint_has_a_row_and_every_pattern_a_failpoint() -> None:
    patterns = [pattern for row in ROWS for pattern in row.failpoints]
    names = failpoints.NAMES | POINTS.keys() - {ANYWHERE}
    assert not [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)]
    assert not [pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in names)]
