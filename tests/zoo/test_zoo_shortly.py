"""A few of the defects, and that all can be planted. ``make zoo`` plants them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from zoo.defects import DEFECTS, Defect
from zoo.keeper import ROOT, Copy

FEW = ("block-crc-ignored", "lease-outlives-session", "digest-of-headers")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("zoo"))


@pytest.mark.parametrize("defect", [one for one in DEFECTS if one.name in FEW], ids=lambda one: one.name)
def test_a_planted_defect_is_seen(copy: Copy, defect: Defect) -> None:
    with copy.planted(defect):
        assert copy.run(defect.test).failed_count, f"{defect.breaks}, and {defect.test} passes"


def test_without_a_defect_the_same_tests_pass(copy: Copy) -> None:
    outcome = copy.run("tests/domain/test_leases.py")
    assert not outcome.failed_count, outcome.text


def test_every_defect_can_be_planted_and_has_a_name_and_tests_of_its_own() -> None:
    names = [defect.name for defect in DEFECTS]
    assert len(set(names)) == len(names) >= 30
    for defect in DEFECTS:
        assert Path(ROOT, defect.file).read_text().count(defect.old) == 1, defect.name
        assert Path(ROOT, defect.test).is_file(), defect.name
        assert defect.old != defect.new


def test_a_defect_that_is_no_longer_there_to_plant_is_told(copy: Copy) -> None:
    stale = Defect("stale", "nothing", DEFECTS[0].file, "what nobody wrote", "", DEFECTS[0].test)
    with pytest.raises(ValueError, match="stale: what it replaces stands 0 times"), copy.planted(stale):
        pass
