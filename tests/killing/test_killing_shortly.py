"""The daemon killed once at every failpoint there is, under load. ``make kill-loop`` does it fifty times."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from killing.points import ANYWHERE, POINTS, chain
from killing.scene import KEPT, Scene, Wrong, opened
from killing.truth import Content, differs
from kit.processes import eventually
from warmshelfd import failpoints

pytestmark = pytest.mark.e2e

SEED = 8


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with opened(tmp_path, SEED) as it:
        yield it


def test_killed_once_at_every_point_nothing_is_wrong_lost_or_left(scene: Scene) -> None:
    """B39, B53: no wrong, foreign, stale or lost byte; adopted without the sources, which are gone."""
    for name in chain(list(POINTS)):
        scene.kill_at(name)
    reports = scene.last_look()
    assert set(scene.kills) == set(POINTS)
    for report in reports:
        assert report["wrong"] == []
        assert report["reads"] > 10


def test_every_failpoint_has_a_row_that_says_how_to_get_there() -> None:
    assert POINTS.keys() - {ANYWHERE} == failpoints.NAMES
    assert len(POINTS) >= 40


def test_no_two_loud_points_follow_each_other_where_that_can_be() -> None:
    order = [POINTS[name].is_quiet for name in chain(list(POINTS))]
    assert order.count(False) < order.count(True)
    assert not [pair for pair in pairwise(order) if not any(pair)]


# --- what it sees: each of these must be told ---


def test_a_lost_registration_is_told(scene: Scene) -> None:
    scene.kill_at("load.started")
    scene.deeds.stories["new/never"] = scene.deeds.stories[scene.deeds.latest]
    with pytest.raises(Wrong, match="lost IDs"):
        scene.last_look()


def test_lost_bytes_and_a_file_left_behind_are_told(scene: Scene) -> None:
    scene.begin()
    scene.daemon.wait_ready()
    (scene.daemon.arena / ".left.loading").touch()
    with pytest.raises(Wrong, match="left behind"):
        scene.look("adopt")
    (scene.daemon.arena / ".left.loading").unlink()
    with scene.daemon.connect() as shelf:
        shelf.evict("kept/0", drain=True)
        eventually(lambda: shelf.get("kept/0").state.value == "registered", "no worker has it any more")
    with pytest.raises(Wrong, match="lost the bytes of kept/0"):
        scene.look("adopt")


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (Content(2), "artifact 2 generation 1 tensor 0 block 0, not artifact 0"),
        (Content(0, 2), "artifact 0 generation 2 tensor 0 block 0, not artifact 0 generation 1"),
    ],
    ids=["foreign", "stale"],
)
def test_bytes_of_others_are_told_by_their_owner(other: Content, text: str) -> None:
    assert text in differs(other.bytes_by_name(), (KEPT["kept/0"],))


def test_a_short_a_zero_and_a_missing_tensor_are_told() -> None:
    whole = dict(KEPT["kept/0"].bytes_by_name())
    assert not differs(whole, (KEPT["kept/0"],))
    assert "has 16 bytes" in differs({**whole, "tensor.0": whole["tensor.0"][:16]}, (KEPT["kept/0"],))
    assert "at byte 0" in differs({**whole, "tensor.1": bytes(len(whole["tensor.1"]))}, (KEPT["kept/0"],))
    assert "tensors" in differs({}, (KEPT["kept/0"],))
