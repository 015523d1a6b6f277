"""Ten thousand adapters, each with files of its own."""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path

import pytest

import warmshelf
from kit.adapters import CONFIG, WEIGHTS, adapter_files, pair
from kit.often import times
from kit.processes import Daemon
from kit.scrape import HTTP, pages_of
from warmshelf import NewArtifact

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]

FEW = 100
SERIES_MAX = 2000
SLOWER_MAX = 2.0
SAMPLES = 300


def test_among_ten_thousand_adapters_one_is_found_as_quickly_as_among_a_hundred(daemon: Daemon, models: Path) -> None:
    """C8: cold and warm; what the operators see does not grow with them."""
    many = times(10_000, least=1000)
    files = adapter_files(pair("q_proj"))
    for number in range(many):
        (models / f"{number}").mkdir()
        (models / f"{number}" / CONFIG).write_bytes(files[CONFIG])
        (models / f"{number}" / WEIGHTS).write_bytes(files[WEIGHTS][:-4] + number.to_bytes(4, "little"))
    daemon.start("--budget", "256MiB", *HTTP)
    with daemon.connect() as shelf:
        register(shelf, models, range(FEW))
        few = medians(shelf, FEW)
        series = len(pages_of(daemon).scrape().values)
        for first in range(FEW, many, 1000):
            register(shelf, models, range(first, min(first + 1000, many)))
        lots = medians(shelf, many)
        assert len({artifact.artifact_id for artifact in shelf.list()}) == many
        assert len(pages_of(daemon).scrape().values) <= min(SERIES_MAX, series + 20)
    assert lots["cold"] < SLOWER_MAX * few["cold"] + 0.002, (few, lots)
    assert lots["warm"] < SLOWER_MAX * few["warm"] + 0.002, (few, lots)


def register(shelf: warmshelf.Shelf, models: Path, numbers: range) -> None:
    new = [NewArtifact(f"acme/{number}", str(models / f"{number}"), base="base") for number in numbers]
    assert not [one for one in shelf.register_many(new) if one.error]


def medians(shelf: warmshelf.Shelf, count: int) -> dict[str, float]:
    """Return how long half of all acquires take at most, in seconds, of what is cold and of what is warm."""
    chance = random.Random(count)
    seconds: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(SAMPLES):
        artifact_id = f"acme/{chance.randrange(count)}"
        shelf.evict(artifact_id)
        for found in seconds.values():
            began = time.perf_counter()
            shelf.acquire(artifact_id).release()
            found.append(time.perf_counter() - began)
    return {kind: statistics.median(found) for kind, found in seconds.items()}
