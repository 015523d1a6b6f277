"""The metrics themselves: their names, their labels, and how many series there can be."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client import Counter, Gauge, Histogram, Info

from kit.scrape import Scrape
from warmshelf.errors import Code
from warmshelf.mapping import FALLBACK_REASONS
from warmshelf.types import ArtifactKind, ArtifactState, LoadPhase
from warmshelf.v1 import capabilities_pb2, catalog_pb2, lease_pb2, push_pb2, transfer_pb2
from warmshelfd.metric_table import SPECS, EvictReason, Outcome, Rpc, Spec, usual_code
from warmshelfd.metrics import Metrics
from warmshelfd.stock import Stock

HOSTILE = 'x",le="1"} 1\nevil{a\\b="'

LINES_MAX = 1580
"""What a scrape may have, whatever happens, with one scheme of sources; docs/metrics.md says so."""

LINES_PER_SCHEME_MAX = 700
"""And what each further scheme may add."""


def scrape(metrics: Metrics, accept: str = "") -> Scrape:
    return Scrape(metrics.render(accept, 0.5)[1].decode())


def methods() -> list[Rpc]:
    files = (capabilities_pb2, catalog_pb2, lease_pb2, push_pb2, transfer_pb2)
    types = {(False, False): "unary", (False, True): "server_stream", (True, False): "client_stream"}
    services = [service for file in files for service in file.DESCRIPTOR.services_by_name.values()]
    return [
        Rpc(types[method.client_streaming, method.server_streaming], service.full_name, method.name)
        for service in services
        for method in service.methods
    ]


def stock() -> Stock:
    return Stock(
        artifacts={ArtifactState.READY: 3},
        segments={ArtifactKind.ADAPTER: 2},
        held_bytes=1,
        idle_bytes=2,
        reserved_bytes=3,
        unnamed_bytes=4,
        free_bytes=5,
        unpinned_bytes=6,
        sessions=7,
        leases=8,
        loads_running=9,
        loads_waiting=10,
        callers_waiting=11,
        fleet_up=False,
    )


# --- names --------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_metric_is_named_as_prometheus_wants_it(spec: Spec) -> None:
    assert spec.name.startswith(("warmshelf_", "grpc_server_"))
    assert spec.name.endswith("_total") is (spec.type is Counter)
    assert spec.name.endswith("_info") is (spec.type is Info)
    if spec.type is Histogram:
        assert spec.name.endswith("_seconds")
        assert list(spec.buckets) == sorted(spec.buckets)
    assert not any(unit in spec.name for unit in ("_ms", "_mb", "_mib", "_percent", "_milli"))
    assert spec.text.endswith(".")
    assert all(label == label.lower() and not label.endswith("id") for label in spec.labels)


def test_loads_are_told_apart_from_a_millisecond_to_twenty_minutes() -> None:
    spec = next(spec for spec in SPECS if spec.name == "warmshelf_load_phase_seconds")
    assert (spec.buckets[0], spec.buckets[-1]) == (0.001, 1200)
    assert list(spec.labels) == ["kind", "phase", "scheme", "outcome"]


def test_no_name_stands_twice() -> None:
    assert len({spec.name for spec in SPECS}) == len(SPECS)


@pytest.mark.parametrize("version", ["1.0.00q5", "", "1..0", "-1", "2" * 5000, "1.0.0.0", "1.0.0\r\n X: y", "\u0661"])
@pytest.mark.parametrize("name", ["application/openmetrics-text", "text/plain"])
def test_a_version_that_is_none_is_answered_as_if_nobody_had_asked_for_it(name: str, version: str) -> None:
    content_type, text = Metrics().render(f"{name}; version={version}; escaping=no\r\nX: y", 0.5)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert b"warmshelf_build_info" in text


def test_the_version_that_prometheus_asks_for_is_given() -> None:
    accept = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.3"
    content_type, text = Metrics().render(accept, 0.5)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert text.endswith(b"# EOF\n")


@pytest.mark.parametrize("accept", ["", "text/plain;version=0.0.4", "text/plain; version=1.0.0; q=0.5"])
def test_the_text_tells_help_and_type_of_every_metric_and_no_creation_times(accept: str) -> None:
    metrics = Metrics(["file"])
    metrics.describe("9", pinning="none", page_size_bytes=4096, budget_bytes=5)
    seen = scrape(metrics, accept)
    types = {Counter: "counter", Gauge: "gauge", Histogram: "histogram", Info: "gauge"}
    for spec in SPECS:
        family = seen.families[spec.name.removesuffix("_total")]
        assert (family.documentation, family.type) == (spec.text, types[spec.type])
    assert "_created" not in seen.text
    assert seen['warmshelf_arena_info{pinning="none",page_size_bytes="4096"}'] == 1
    assert seen["warmshelf_arena_budget_bytes"] == 5
    assert seen["process_resident_memory_bytes"] > 1 << 20


def test_open_metrics_are_spoken_where_they_are_asked_for() -> None:
    content_type, text = Metrics().render("application/openmetrics-text; version=1.0.0", 0)
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


def test_codes_are_spelt_as_dashboards_match_them() -> None:
    spelt = {code: usual_code(code) for code in ("OK", *(code.value for code in Code))}
    assert spelt["OK"] == "OK"
    assert spelt["CANCELLED"] == "Canceled"
    assert spelt["RESOURCE_EXHAUSTED"] == "ResourceExhausted"
    assert spelt["NOT_FOUND"] == "NotFound"


# --- what is counted ----------------------------------------------------------


def test_a_load_that_failed_counts_its_last_phase_as_failed_and_those_before_as_ok() -> None:
    metrics = Metrics(["file"])
    begun = [(LoadPhase.INSPECT, 100.0), (LoadPhase.RESERVE, 100.5), (LoadPhase.READ, 102.5)]
    metrics.load_ended(ArtifactKind.BASE, "file:///a", "failed", begun, 105.5)
    seen = scrape(metrics)

    def phase(name: str, outcome: str) -> tuple[float, float]:
        labels = f'{{kind="base",phase="{name}",scheme="file",outcome="{outcome}"}}'
        return tuple(seen[f"warmshelf_load_phase_seconds_{part}{labels}"] for part in ("count", "sum"))  # type: ignore[return-value]

    assert phase("inspect", "ok") == (1, 0.5)
    assert phase("reserve", "ok") == (1, 2)
    assert phase("read", "failed") == (1, 3)
    assert phase("read", "ok") == (0, 0)
    assert seen['warmshelf_load_seconds_sum{kind="base",scheme="file",outcome="failed"}'] == 5.5


def test_gauges_show_the_stock_and_nothing_older() -> None:
    metrics = Metrics()
    metrics.show(stock())
    seen = scrape(metrics)
    assert seen['warmshelf_artifacts{state="ready"}'] == 3
    assert seen['warmshelf_segments{kind="adapter"}'] == 2
    states = ("held", "idle", "reserved", "unnamed", "free")
    assert [seen[f'warmshelf_arena_bytes{{state="{state}"}}'] for state in states] == [1, 2, 3, 4, 5]
    assert (seen["warmshelf_arena_unpinned_bytes"], seen["warmshelf_sessions"], seen["warmshelf_leases"]) == (6, 7, 8)
    assert (seen['warmshelf_loads{state="running"}'], seen['warmshelf_loads{state="waiting"}']) == (9, 10)
    assert (seen["warmshelf_callers_waiting"], seen["warmshelf_heartbeat_age_seconds"]) == (11, 0.5)


def test_counters_of_fixed_labels_are_there_at_zero_before_anything_happens() -> None:
    seen = scrape(Metrics())
    for series in (
        'warmshelf_evictions_total{kind="adapter",reason="placement"}',
        'warmshelf_fallbacks_total{reason="tcp"}',
        'warmshelf_acquires_total{kind="base",result="hit"}',
        'warmshelf_adoptions_total{result="adopted"}',
    ):
        name, _, labels = series.partition("{")
        pairs = frozenset(tuple(pair.split("=")) for pair in labels[:-1].replace('"', "").split(","))
        assert seen.values[name, pairs] == 0


# --- bounds -------------------------------------------------------------------


def test_what_is_on_no_list_is_counted_as_other() -> None:
    """B59: no text from outside becomes a label."""
    metrics = Metrics(["file"])
    for text in (HOSTILE, "evil", ""):
        metrics.fell_back(text)
        metrics.load_ended(ArtifactKind.BASE, f"{text}://x", "ok", [(LoadPhase.INSPECT, 0.0)], 1.0)
    metrics.adopted(HOSTILE)
    metrics.adopted("SOURCE_CHANGED")
    metrics.call_ended(Rpc("unary", "s", "m"), HOSTILE, 1)
    seen = scrape(metrics)
    assert "evil" not in seen.text
    assert seen['warmshelf_fallbacks_total{reason="other"}'] == 3
    assert seen['warmshelf_adoptions_total{result="other"}'] == 2
    assert seen['warmshelf_load_seconds_count{kind="base",scheme="other",outcome="ok"}'] == 3
    assert seen['grpc_server_handled_total{grpc_type="unary",grpc_service="s",grpc_method="m",grpc_code="other"}'] == 1


def everything(schemes: list[str]) -> Metrics:
    """Return metrics after all that can happen has happened."""
    metrics = Metrics(schemes)
    metrics.describe("9", pinning="mlock", page_size_bytes=4096, budget_bytes=1)
    metrics.show(stock())
    begun = [(phase, 0.0) for phase in LoadPhase]
    for kind, scheme in product(ArtifactKind, schemes):
        for outcome, count in product(get_args(Outcome), range(1, len(begun) + 1)):
            # Only a failed inspection leaves the kind unknown.
            if kind is not ArtifactKind.UNKNOWN or count == 1:
                metrics.load_ended(kind, f"{scheme}://x", outcome, begun[:count], 1.0)
    for kind, reason in product(ArtifactKind, get_args(EvictReason)):
        metrics.evicted(kind, reason)
    for reason in [*FALLBACK_REASONS, HOSTILE]:
        metrics.fell_back(reason)
    metrics.adopted(HOSTILE)
    for rpc, code in product(methods(), ["OK", *(code.value for code in Code)]):
        metrics.call_started(rpc)
        metrics.call_ended(rpc, code, 1.0)
    return metrics


def test_a_scrape_is_bounded_even_when_everything_has_happened() -> None:
    """B59, G14: every call with every code, every load with every end in every phase."""
    one = scrape(everything(["file"])).text.count("\n")
    two = scrape(everything(["file", "s3"])).text.count("\n")
    print(f"{one} lines with one source scheme, {two - one} more with each further one")
    assert one <= LINES_MAX
    assert two - one <= LINES_PER_SCHEME_MAX


def test_two_daemons_in_one_process_count_apart() -> None:
    first, second = Metrics(), Metrics()
    first.fell_back("tcp")
    assert scrape(second)['warmshelf_fallbacks_total{reason="tcp"}'] == 0


def test_files_of_a_multiprocess_engine_beside_us_are_left_alone(tmp_path: Path) -> None:
    """B59: counters begin at 0 with the process, and no file stays behind."""
    code = (
        "from warmshelfd.metrics import Metrics\nm = Metrics()\nm.fell_back('tcp')\nprint(m.render('', 0)[1].decode())"
    )
    environ = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
        assert Scrape(done.stdout)['warmshelf_fallbacks_total{reason="tcp"}'] == 1
    assert list(tmp_path.iterdir()) == []
