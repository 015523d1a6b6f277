"""The trace that a caller is in, for the daemon to go on with. Imports nothing that the process has not."""

from __future__ import annotations

import sys

_USED = "opentelemetry.trace"


def trace_metadata() -> tuple[tuple[str, str], ...]:
    """Return the current span as W3C's ``traceparent`` and ``tracestate``; nothing if this process does not trace."""
    if _USED not in sys.modules:
        return ()
    from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415 - it is there, and most have none
        TraceContextTextMapPropagator,
    )

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return tuple(carrier.items())
