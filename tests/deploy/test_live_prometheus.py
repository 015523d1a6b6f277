"""A real Prometheus scrapes a real daemon that has something to do: every expression of ours returns data."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import warmshelf
from kit.adapters import adapter_files, pair
from kit.expressions import alerts, compared, queries, recorded, resolved
from kit.models import write_model
from kit.processes import Daemon, eventually
from kit.prometheus import DASHBOARDS, OPENMETRICS, Prometheus, promtool
from kit.scrape import HTTP, Pages, pages_of
from warmshelf.errors import ArenaFull, ArtifactNotFound, WarmshelfError

MIB = 1 << 20

SCRAPES = 3
"""Since what happened: the first may have been under way."""


SILENT_HERE = {
    "warmshelf_residency_artifacts": "a daemon whose registry is its own tells nobody what it has",
}
"""Metrics whose queries return nothing here, each with why. Every other query must return a number."""


@dataclass
class Watched:
    daemon: Daemon
    pages: Pages
    prometheus: Prometheus


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A daemon that is busy, is killed, comes back and is busy again, scraped all the while."""
    root = tmp_path_factory.mktemp("watched")
    (root / "models").mkdir()
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm", ignore_cleanup_errors=True) as arena:
        daemon = Daemon(root, Path(arena), root / "models").start("--budget", "31MiB", "--adapter-floor", "0", *HTTP)
        pages = pages_of(daemon)
        prometheus = Prometheus(root, pages.address)
        try:
            _register(daemon)
            _be_busy(daemon)
            _wait_for_scrapes(prometheus)
            daemon.kill()
            daemon.start("--budget", "31MiB", "--adapter-floor", "0", "--http", pages.address)
            _be_busy(daemon)
            _wait_for_scrapes(prometheus)
            _be_busy(daemon)
            _wait_for_scrapes(prometheus)
            yield Watched(daemon, pages, prometheus)
        finally:
            prometheus.stop()
            daemon.kill()


def _register(daemon: Daemon) -> None:
    with daemon.connect() as shelf:
        for number, name in enumerate("abcd"):
            write_model(daemon.models / f"{name}.safetensors", number, size=8 * MIB)
            shelf.register(name, f"file://{daemon.models}/{name}.safetensors")
        directory = daemon.models / "lora"
        directory.mkdir()
        for name, data in adapter_files(pair("layer.0")).items():
            (directory / name).write_bytes(data)
        shelf.register("lora", f"file://{directory}", base="elsewhere")
        shelf.register("gone", f"file://{daemon.models}/gone.safetensors", defer=True)


def _be_busy(daemon: Daemon) -> None:
    """Load, hit, evict for room, find none, stream, fall back, fail."""
    with daemon.connect() as shelf:
        for name in (*"abcd", "lora", "d", "lora"):
            with shelf.acquire(name):
                pass
        with contextlib.ExitStack() as held:
            for name in "abc":
                held.enter_context(shelf.acquire(name))
            with pytest.raises(ArenaFull):
                shelf.acquire("d", timeout=0.5)
        with pytest.raises(WarmshelfError):
            shelf.acquire("gone")
        with pytest.raises(ArtifactNotFound):
            shelf.get("nobody")
        shelf.evict("lora")
    with warmshelf.connect(daemon.tcp_address) as shelf, shelf.acquire("a") as lease:
        assert lease.fallback_reason == "tcp"
    with daemon.connect(arena=str(daemon.root)) as shelf, shelf.acquire("a") as lease:
        assert lease.fallback_reason == "segment_not_found"


def _wait_for_scrapes(prometheus: Prometheus) -> None:
    """Wait until Prometheus has seen what happened, and twice: a rate needs two samples. Rules come after that."""

    def count() -> float:
        return sum(prometheus.query("sum_over_time(up[1h])"))

    before = count()
    eventually(lambda: count() >= before + SCRAPES, f"{SCRAPES} more scrapes", 20)


def has_a_number(values: list[float]) -> bool:
    return any(not math.isnan(value) for value in values)


def test_every_query_of_the_dashboards_returns_data(watched: Watched) -> None:
    wanted = {resolved(query) for path in DASHBOARDS for query in queries(path)}
    silent = {query for query in wanted if not has_a_number(watched.prometheus.query(query))}
    assert {query for query in silent if not any(name in query for name in SILENT_HERE)} == set()
    assert all(any(name in query for query in silent) for name in SILENT_HERE), "listed, but it is not silent"


def test_every_recording_rule_is_recorded(watched: Watched) -> None:
    for name in recorded():
        assert has_a_number(watched.prometheus.query(name)), name
    state = watched.prometheus.get("rules")
    rules = [rule for group in state["groups"] for rule in group["rules"]]
    assert len(rules) == len(recorded()) + len(alerts())
    assert [(rule["name"], rule.get("lastError", "")) for rule in rules if rule["health"] != "ok"] == []


def test_what_every_alert_compares_is_there(watched: Watched) -> None:
    for name, rule in alerts().items():
        watched.prometheus.query(rule["expr"])  # fails if it is not understood
        for part in compared(rule["expr"]):
            assert has_a_number(watched.prometheus.query(part)), (name, part)


def test_what_happened_is_what_prometheus_says(watched: Watched) -> None:
    ask = watched.prometheus.query
    assert ask("sum(changes(process_start_time_seconds[1h]))") == [1]
    assert ask('sum(warmshelf_adoptions_total{result="adopted"})')[0] > 0
    assert ask('sum(warmshelf_evictions_total{reason="placement"})')[0] > 0
    assert ask('sum(warmshelf_fallbacks_total{reason="segment_not_found"})') == [2]
    assert ask("sum(warmshelf_room_waits_total)")[0] >= 2
    assert ask('sum(warmshelf_load_seconds_count{outcome="failed"})')[0] >= 2
    assert ask('sum(grpc_server_handled_total{grpc_code="NotFound",grpc_method="GetArtifact"})') == [2]
    assert 0 < ask("instance:warmshelf_acquire_hits:ratio_rate5m")[0] < 1


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_promtool_finds_nothing_to_say_of_the_metrics(watched: Watched, accept: str) -> None:
    status, text = watched.pages.get("/metrics", accept=accept)
    assert status == 200
    if accept:
        assert text.endswith("# EOF\n")
        return
    assert promtool("check", "metrics", text=text) == (0, "")
    bad = "# TYPE warmshelf_bad_milliseconds counter\nwarmshelf_bad_milliseconds 1\n"
    assert promtool("check", "metrics", text=text + bad)[0] != 0
