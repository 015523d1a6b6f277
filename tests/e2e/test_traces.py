"""Spans of a real daemon reach a collector, in the worker's own trace, and its metrics name the trace."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider

from kit.models import write_model
from kit.processes import Daemon, eventually
from kit.prometheus import OPENMETRICS, Prometheus
from kit.scrape import HTTP, pages_of
from warmshelf.errors import ArtifactNotFound

SOON = {"OTEL_BSP_SCHEDULE_DELAY": "100"}
"""Milliseconds until spans are sent; five seconds by default."""


class Collector:
    """Takes spans by OTLP over HTTP, and keeps them."""

    def __init__(self) -> None:
        self.spans: list[Span] = []  # appended to by the server's threads
        self.services: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector._take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            self.services |= {
                one.value.string_value for one in resource.resource.attributes if one.key == "service.name"
            }
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    it = Collector()
    yield it
    it.stop()


def test_a_workers_trace_goes_on_in_the_daemon_and_stands_at_its_metrics(
    daemon: Daemon, models: Path, collector: Collector, tmp_path: Path
) -> None:
    daemon.start("--budget", "64MiB", *HTTP, env={"WARMSHELF_TRACE_ENDPOINT": collector.endpoint, **SOON})
    pages = pages_of(daemon)
    write_model(models / "a.safetensors", 1)
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("worker")
    with daemon.connect() as shelf:
        shelf.register("org/a", f"file://{models}/a.safetensors")
        with tracer.start_as_current_span("request") as request, shelf.acquire("org/a"):
            pass
        with pytest.raises(ArtifactNotFound):
            shelf.acquire("org/none")
    eventually(lambda: len(collector.named("warmshelf.acquire")) == 2, "both acquires are collected")
    eventually(lambda: bool(collector.named("warmshelf.load")), "the load is collected")
    wanted = request.get_span_context()
    inside = [span for span in collector.spans if span.trace_id == wanted.trace_id.to_bytes(16, "big")]
    assert {span.name for span in inside} == {
        *("warmshelf.acquire", "warmshelf.load", "warmshelf.source.inspect", "warmshelf.source.read"),
        *("warmshelf.load.reserve", "warmshelf.load.verify", "warmshelf.load.seal", "warmshelf.load.pin"),
    }
    (acquire,) = [span for span in inside if span.name == "warmshelf.acquire"]
    (load,) = collector.named("warmshelf.load")
    assert acquire.parent_span_id == wanted.span_id.to_bytes(8, "big")
    assert load.parent_span_id == acquire.span_id
    assert acquire.start_time_unix_nano - 1e6 < load.start_time_unix_nano <= load.end_time_unix_nano
    assert load.end_time_unix_nano < acquire.end_time_unix_nano + 1e6
    (failed,) = [span for span in collector.named("warmshelf.acquire") if span is not acquire]
    assert failed.status.message == "ARTIFACT_NOT_FOUND"
    assert collector.services == {"warmshelfd"}
    assert str(models) not in str(collector.spans)  # no URI of a source
    trace_id = trace.format_trace_id(wanted.trace_id)
    assert f'# {{trace_id="{trace_id}"}}' in pages.get("/metrics", accept=OPENMETRICS)[1]
    assert trace_id not in pages.text()
    _prometheus_has(tmp_path, pages.address, trace_id)


def _prometheus_has(root: Path, address: str, trace_id: str) -> None:
    prometheus = Prometheus(root, address)
    try:
        asked = {"query": "warmshelf_load_seconds_bucket", "start": "0", "end": "9999999999"}
        eventually(lambda: bool(prometheus.get("query_exemplars", **asked)), "Prometheus has an exemplar")
        (found,) = prometheus.get("query_exemplars", **asked)
        assert [one["labels"] for one in found["exemplars"]] == [{"trace_id": trace_id}]
    finally:
        prometheus.stop()


def test_a_collector_that_is_away_delays_neither_calls_nor_the_end(daemon: Daemon, models: Path) -> None:
    daemon.start("--budget", "64MiB", env={"WARMSHELF_TRACE_ENDPOINT": "http://127.0.0.1:1/v1/traces", **SOON})
    write_model(models / "a.safetensors", 1)
    with daemon.connect() as shelf:
        shelf.register("org/a", f"file://{models}/a.safetensors")
        for _ in range(20):
            with shelf.acquire("org/a", timeout=2):
                pass
    assert daemon.kill(15) == 0


def test_a_password_in_the_endpoint_is_refused_without_repeating_it(daemon: Daemon) -> None:
    daemon.start(env={"WARMSHELF_TRACE_ENDPOINT": "http://me:s3cret@collector/v1/traces"}, wait=False)
    assert daemon.wait() == 2
    said = daemon.log.read_text()
    assert "OTEL_EXPORTER_OTLP_HEADERS" in said
    assert "s3cret" not in said
