"""Spans of real loads and of wrong ones, kept in memory; and nothing of OpenTelemetry where nobody traces."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

from kit.scrape import Scrape
from warmshelf._trace import trace_metadata
from warmshelf.errors import NotResident
from warmshelf.types import ArtifactKind, LoadPhase
from warmshelfd.metrics import Metrics
from warmshelfd.otel import OtelTracing
from warmshelfd.tracing import NO_TRACING, EndedLoad

BEGUN = [(LoadPhase.INSPECT, 100.0), (LoadPhase.RESERVE, 101.0), (LoadPhase.READ, 101.5), (LoadPhase.SEAL, 104.0)]
LOAD = EndedLoad("org/a", "base", "s3", "ok", BEGUN, 105.0)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
NO_MODULE = "import sys; sys.modules['opentelemetry'] = None\n"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> Iterator[OtelTracing]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield OtelTracing(provider)
    provider.shutdown()


def spans(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def parent_of(span: ReadableSpan) -> str:
    return trace.format_span_id(span.parent.span_id) if span.parent else ""


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def test_an_acquire_its_load_and_the_source_are_one_trace(tracing: OtelTracing, exporter: InMemorySpanExporter) -> None:
    with tracing.acquire("org/a", [("traceparent", PARENT), ("user-agent", "grpc"), ("x-bin", b"\x00")]):
        trace_id = tracing.load_ended(LOAD)
    found = spans(exporter)
    assert trace_id == PARENT.split("-")[1]
    assert {trace.format_trace_id(span.context.trace_id) for span in found.values()} == {trace_id}
    acquire, load = found["warmshelf.acquire"], found["warmshelf.load"]
    assert parent_of(acquire) == PARENT.split("-")[2]
    assert parent_of(load) == trace.format_span_id(acquire.context.span_id)
    parts = {name: span for name, span in found.items() if span not in (acquire, load)}
    assert {parent_of(span) for span in parts.values()} == {trace.format_span_id(load.context.span_id)}
    assert {name: round(seconds(span), 3) for name, span in parts.items()} == {
        "warmshelf.source.inspect": 1.0,
        "warmshelf.load.reserve": 0.5,
        "warmshelf.source.read": 2.5,
        "warmshelf.load.seal": 1.0,
    }
    assert round(seconds(load), 3) == 5.0
    assert dict(load.attributes or {}) == {
        "warmshelf.artifact_id": "org/a",
        "warmshelf.kind": "base",
        "warmshelf.scheme": "s3",
        "warmshelf.outcome": "ok",
    }


def test_what_fails_is_an_error_with_its_reason_and_no_text(
    tracing: OtelTracing, exporter: InMemorySpanExporter
) -> None:
    with pytest.raises(NotResident), tracing.acquire("\x1b[31m../etc", []):
        raise NotResident("not for a trace")
    tracing.load_ended(EndedLoad("org/a", "base", "s3", "failed", BEGUN[:1], 105.0))
    found = spans(exporter)
    acquire, load = found["warmshelf.acquire"], found["warmshelf.load"]
    assert (acquire.status.status_code, acquire.status.description) == (StatusCode.ERROR, "NOT_RESIDENT")
    assert (dict(acquire.attributes or {}), acquire.events) == ({}, ())
    assert (load.status.status_code, load.status.description) == (StatusCode.ERROR, "failed")


@pytest.mark.parametrize("traceparent", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", PARENT * 100])
def test_a_wrong_parent_is_none(tracing: OtelTracing, exporter: InMemorySpanExporter, traceparent: str) -> None:
    with tracing.acquire("org/a", [("traceparent", traceparent)]):
        pass
    assert spans(exporter)["warmshelf.acquire"].parent is None


def test_what_is_not_sampled_has_no_exemplar() -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    assert OtelTracing(provider).load_ended(LOAD) == ""
    assert NO_TRACING.load_ended(LOAD) == ""


def test_a_trace_is_an_exemplar_of_the_load_in_openmetrics_only() -> None:
    metrics = Metrics(["s3"])
    metrics.load_ended(ArtifactKind.BASE, "s3://bucket/a", "ok", BEGUN, 105.0, "ab" * 16)
    metrics.load_ended(ArtifactKind.BASE, "s3://bucket/a", "ok", BEGUN, 105.0)
    _, open_text = metrics.render(OPENMETRICS, 0.0)
    marked = [line for line in open_text.decode().splitlines() if " # {" in line]
    assert len(marked) == 1
    assert marked[0].startswith('warmshelf_load_seconds_bucket{kind="base",le="15.0"')
    assert ' # {trace_id="abababababababababababababababab"} 5.0' in marked[0]
    _, plain = metrics.render("", 0.0)
    assert "trace_id" not in plain.decode()
    assert Scrape(plain.decode())['warmshelf_load_seconds_count{kind="base",scheme="s3",outcome="ok"}'] == 2


def test_the_client_tells_of_the_span_that_it_is_in() -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    with provider.get_tracer("worker").start_as_current_span("request") as span:
        ((key, value),) = trace_metadata()
        assert (key, value.split("-")[1]) == ("traceparent", trace.format_trace_id(span.get_span_context().trace_id))
    assert trace_metadata() == ()


def run(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    environ = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_nothing_is_imported_where_nobody_traces(tmp_path: Path) -> None:
    code = (
        "import sys, warmshelf, warmshelfd.app, warmshelfd.flights\n"
        "from warmshelf._trace import trace_metadata\n"
        "assert trace_metadata() == ()\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    done = run(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_the_extra_a_daemon_that_is_told_to_trace_says_what_it_needs(tmp_path: Path) -> None:
    code = NO_MODULE + (
        "from warmshelf.errors import InvalidConfig\n"
        "from warmshelfd.parts import tracing_of\n"
        "assert tracing_of('').load_ended(None) == ''\n"
        "try: tracing_of('http://collector:4318/v1/traces')\n"
        "except InvalidConfig as error: print(error.message)\n"
    )
    done = run(code)
    assert (done.stdout, done.stderr) == ("trace_endpoint needs: pip install 'warmshelf[otel]'\n", "")
