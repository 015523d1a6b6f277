"""Spans by OpenTelemetry: an acquire, the load it waits for, and in it what was done at the source.

Imported only if the daemon is told where to send spans; needs the extra ``otel``. A load's spans are
made when it has ended, from the times that metrics are made from. So tracing takes nothing of a load,
and one that is killed leaves none. Names no URI: it may hold what is not for everybody.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from warmshelf.errors import InvalidId, WarmshelfError
from warmshelf.types import LoadPhase, check_id
from warmshelfd import __version__
from warmshelfd.tracing import EndedLoad, Metadata, Tracing

SERVICE_NAME = "warmshelfd"
"""Unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES says otherwise."""

CLOSE_SECONDS_MAX = 1.0
"""What a collector gets to take the last spans: a stop must not wait for one that is away."""

AT_SOURCE = frozenset({LoadPhase.INSPECT, LoadPhase.READ})
"""The phases that wait for a source; the others are the node's own."""

_PROPAGATOR = TraceContextTextMapPropagator()
_KEYS = frozenset({"traceparent", "tracestate"})


def open_tracing(endpoint: str) -> OtelTracing:
    """Return tracing that sends spans to an OTLP endpoint, in the background."""
    resource = Resource.create({"service.name": SERVICE_NAME, "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return OtelTracing(provider)


class OtelTracing(Tracing):
    """Makes spans at a provider."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(SERVICE_NAME, __version__)

    @contextmanager
    def acquire(self, artifact_id: str, metadata: Metadata) -> Iterator[None]:
        """Make a span below the worker's, if it told of one; tasks begun in it inherit it."""
        carrier = {key: value for key, value in metadata if key in _KEYS and isinstance(value, str)}
        with self._tracer.start_as_current_span(
            "warmshelf.acquire",
            context=_PROPAGATOR.extract(carrier),
            kind=SpanKind.SERVER,
            attributes=_named(artifact_id),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except WarmshelfError as error:
                span.set_status(StatusCode.ERROR, error.reason)
                raise

    def load_ended(self, load: EndedLoad) -> str:
        """Make the load's span, below that of the acquire that began it, and one for each phase."""
        attributes = {
            **_named(load.artifact_id),
            "warmshelf.kind": load.kind,
            "warmshelf.scheme": load.scheme,
            "warmshelf.outcome": load.outcome,
        }
        shift = time.time() - time.monotonic()
        ends = [*(begin for _, begin in load.begun[1:]), load.end]
        span = self._tracer.start_span(
            "warmshelf.load", start_time=_nanoseconds(load.begun[0][1] + shift), attributes=attributes
        )
        inner = trace.set_span_in_context(span)
        for (phase, begin), end in zip(load.begun, ends, strict=True):
            name = f"warmshelf.source.{phase.value}" if phase in AT_SOURCE else f"warmshelf.load.{phase.value}"
            part = self._tracer.start_span(
                name, inner, start_time=_nanoseconds(begin + shift), attributes={"warmshelf.scheme": load.scheme}
            )
            part.end(_nanoseconds(end + shift))
        if load.outcome != "ok":
            span.set_status(StatusCode.ERROR, load.outcome)
        span.end(_nanoseconds(load.end + shift))
        made = span.get_span_context()
        return trace.format_trace_id(made.trace_id) if made.trace_flags.sampled else ""

    def close(self) -> None:
        """Let the collector take the last spans, for a moment; the thread that sends them ends with the process."""
        closing = threading.Thread(target=self._provider.shutdown, name="otel-close", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS_MAX)


def _named(artifact_id: str) -> dict[str, str]:
    """Return the attribute of an artifact, if the text is an ID at all."""
    try:
        return {"warmshelf.artifact_id": check_id(artifact_id)}
    except InvalidId:
        return {}


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
