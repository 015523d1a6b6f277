"""A quarter of a minute of the soak with all its oracles, and what they see. ``make soak`` is two hours long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from soak.judging import after_warm_up, drift, judge, slope
from soak.plan import WEEK, plan_of
from soak.running import facts_of, run
from soak.stage import opened
from soak.truth import HOT, Content

MINUTES = 0.25
HOUR = 3600.0


@pytest.mark.e2e
@pytest.mark.timeout(300)  # on a busy machine
def test_a_fleet_under_load_deaths_outages_and_renewals_loses_and_keeps_nothing(tmp_path: Path) -> None:
    """A1."""
    plan = plan_of(MINUTES)
    with opened(tmp_path, plan, 8) as stage:
        seen = run(stage)
    facts = facts_of(seen, plan, 8, "")
    assert [row for row in facts["verdicts"] if not row["is_good"]] == []
    assert all(facts["done"][name] > 0 for name in asdict(WEEK))
    assert facts["counts"]["mapped"] > 100
    assert facts["counts"]["streamed"] > 10


def test_a_week_is_two_hours_and_an_hour_has_half_of_it() -> None:
    assert asdict(plan_of(120).counts) == asdict(WEEK)
    hour = plan_of(60)
    assert (hour.counts.acquires, hour.counts.daemon_kills, hour.counts.rotations) == (500_000, 100, 10)
    events = hour.events()
    assert events == sorted(events)
    assert [name for _, name in events].count("daemon_kills") == 100
    assert all(0 < at < hour.seconds for at, _ in events)


# --- what the oracles see ---


def seen(at_seconds: float, **of_steady: Any) -> Mapping[str, Any]:
    """Return what is seen at a checkpoint or in a sample, where all is well but what is named."""
    told: Any = of_steady.pop("told", {"counts": {}, "refused": {}, "own": {"fds": 9}})
    faults, wrong = of_steady.pop("faults", []), of_steady.pop("wrong", [])
    node = {"rss_kib": 50 << 10, "fds": 20, "threads": 30, "leases": 0, "sessions": 0, "age_seconds": 3.0, **of_steady}
    return {
        "at_seconds": at_seconds,
        "nodes": {"steady": node, "mortal": {**node, "rss_kib": of_steady.get("mortal_kib", 50 << 10)}},
        "told": {"steady mapped": told},
        "faults": faults,
        "wrong": wrong,
    }


def bad(checkpoints: list[Mapping[str, Any]], shown: float = 0.1) -> list[str]:
    found = judge(HOUR, checkpoints, checkpoints, [shown])
    return [one.what for one in found if not one.is_good]


EVERY_MINUTE = [60.0 * minute for minute in range(60)]


def test_where_nothing_changes_nothing_is_bad() -> None:
    assert bad([seen(at) for at in EVERY_MINUTE]) == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda at: {"rss_kib": (50 << 10) + int(at * 2048 / HOUR)}, "RSS of the daemon that is never killed"),
        (lambda at: {"mortal_kib": (50 << 10) + int(at * 4096 / HOUR)}, "RSS of the daemon that is killed"),
        (lambda at: {"fds": 20 + int(at / 1200)}, "files it has open"),
        (lambda at: {"threads": 30 + int(at / 1200)}, "its threads"),
        (lambda at: {"leases": int(at == 600)}, "leases at checkpoints"),
        (lambda at: {"sessions": int(at == 600)}, "sessions at checkpoints"),
        (lambda at: {"faults": ["a file"] if at == 600 else []}, "faults at checkpoints"),
        (lambda at: {"wrong": ["a block"]}, "wrong bytes"),
        (lambda at: {"told": {"refused": {"ARENA_FULL": 1}, "own": {"fds": 9}}}, "calls refused"),
        (lambda at: {"told": {"refused": {}, "own": {"fds": 9 + int(at / 1200)}}}, "files that a process of the load"),
    ],
)
def test_what_grows_and_what_is_left_is_told(change: Any, what: str) -> None:
    (found,) = bad([seen(at, **change(at)) for at in EVERY_MINUTE])
    assert found.startswith(what)


def test_a_certificate_that_is_shown_too_late_is_told() -> None:
    assert bad([seen(at) for at in EVERY_MINUTE], shown=6.0) == ["until a renewed certificate is shown"]


def test_peaks_move_neither_slope_nor_drift_and_the_warm_up_counts_for_nothing() -> None:
    points = [(at / HOUR, 50.0 + (30 if at == 1800 else 0) + 3 * at / HOUR) for at in EVERY_MINUTE]
    assert slope(points) == pytest.approx(3.0, abs=0.1)
    assert drift([5, 9, 5, 5, 5, 8, 5, 5]) == 0
    assert [one["at_seconds"] for one in after_warm_up([seen(100), seen(600)], HOUR)] == [600]


def test_bytes_of_another_artifact_a_short_tensor_and_a_missing_one_are_told() -> None:
    mine, other = HOT["hot/0"], HOT["hot/2"]
    whole = bytes_of(mine)
    assert mine.fault(whole) == ""  # type: ignore[arg-type] - a lease is a mapping of names to bytes
    assert "artifact=2" in mine.fault(bytes_of(other))  # type: ignore[arg-type]
    assert "bytes, not" in mine.fault({**whole, "w.1": whole["w.1"][:16]})  # type: ignore[arg-type]
    assert "tensors" in mine.fault({"w.0": whole["w.0"]})  # type: ignore[arg-type]


def bytes_of(content: Content) -> dict[str, bytes]:
    """Return its tensors as a file of it has them, laid out by hand."""
    magic = b"\xd3WS\xb6"
    count = content.tensor_bytes // 16
    return {
        f"w.{tensor}": b"".join(
            magic + b"\0\1" + content.number.to_bytes(2, "big") + b"\0\1" + bytes([tensor]) + at.to_bytes(5, "big")
            for at in range(count)
        )
        for tensor in range(2)
    }
