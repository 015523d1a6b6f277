"""Counts and times what the daemon does.

Knows numbers and ``metric_table``; it does not know who counts, nor HTTP.

Any thread may count. The gauges of what the daemon holds are set from a ``Stock``,
which is taken on the event loop.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Collection, Sequence
from copy import copy
from itertools import product
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    ProcessCollector,
    disable_created_metrics,
    values,
)
from prometheus_client.exposition import choose_encoder

from warmshelf.types import ArtifactKind, ArtifactState, LoadPhase
from warmshelfd.metric_table import (
    ACQUIRES,
    ADOPTED,
    ADOPTIONS,
    ARENA,
    ARENA_BUDGET,
    ARENA_INFO,
    ARTIFACTS,
    BUILD_INFO,
    CALLERS_WAITING,
    CHANGED,
    CREDENTIALS_REFUSED,
    EVICTIONS,
    FALLBACKS,
    FLEET_DEGRADED,
    FLEET_FAILURES,
    HANDLED,
    HANDLING,
    HEARTBEAT_AGE,
    LEASES,
    LOAD,
    LOAD_PHASE,
    LOADS,
    LOG_LINES_LOST,
    NEIGHBOUR,
    NEIGHBOUR_LOADS,
    NEIGHBOUR_UPLOADS,
    OTHER,
    RESIDENCY,
    RESIDENCY_NODES,
    ROOM_WAITS,
    SEGMENTS,
    SESSIONS,
    SOURCE_TURNS,
    SPECS,
    STARTED,
    STREAMED,
    STREAMS,
    TENANT_BYTES,
    TENANT_EVICTIONS,
    TENANT_QUOTA,
    TENANT_SHARE,
    UNPINNED,
    EvictReason,
    Outcome,
    Rpc,
    Spec,
    usual_code,
)
from warmshelfd.stock import Stock

_PLAIN_VERSION = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){0,2}")


class Metrics:
    """The metrics of one daemon."""

    def __init__(self, schemes: Collection[str] = ()) -> None:
        """``schemes`` are those of the sources that the daemon can open."""
        _set_up_library()
        self._schemes = frozenset(schemes) | {NEIGHBOUR}
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._made = {spec.name: spec.make(self._registry) for spec in SPECS}
        self.tenant = ""
        for spec in SPECS:  # a counter that is there from the start, at 0, can be seen to rise for the first time
            if spec.type is Counter and all(spec.labels.values()):
                for chosen in product(*spec.labels.values()):
                    self._of(spec, *chosen)

    def for_tenant(self, tenant: str) -> Metrics:
        """Return the same metrics, for somebody who counts what happens to a tenant."""
        theirs = copy(self)
        theirs.tenant = tenant
        return theirs

    def _of(self, spec: Spec, *wanted: str) -> Any:
        """Return one series; a value that its label may not have becomes ``other``."""
        metric = self._made[spec.name]
        if not wanted:
            return metric
        lists = spec.labels.values()
        return metric.labels(*(v if v in few or not few else OTHER for v, few in zip(wanted, lists, strict=True)))

    def describe(self, version: str, *, pinning: str, page_size_bytes: int, budget_bytes: int) -> None:
        """Say what does not change while the daemon runs."""
        self._of(BUILD_INFO).info({"version": version, "python": platform.python_version()})
        self._of(ARENA_INFO).info({"pinning": pinning, "page_size_bytes": str(page_size_bytes)})
        self.budget_set(budget_bytes)

    def budget_set(self, budget_bytes: int) -> None:
        """Say what the arena may hold from now on."""
        self._of(ARENA_BUDGET).set(budget_bytes)

    def scheme(self, uri: str) -> str:
        """Return the scheme of a source that the daemon can open, or ``other``."""
        scheme = uri.partition("://")[0]
        return scheme if scheme in self._schemes else OTHER

    # --- what happens -------------------------------------------------------

    def load_ended(
        self,
        kind: ArtifactKind,
        uri: str,
        outcome: Outcome,
        begun: Sequence[tuple[LoadPhase, float]],
        now: float,
        trace_id: str = "",
    ) -> None:
        """Count a load and its phases, given the time at which each began.

        The load's trace, if somebody will see it, stands beside its bucket as an exemplar, in OpenMetrics only.
        """
        scheme = self.scheme(uri)
        ends = [*(time for _, time in begun[1:]), now]
        outcomes = [*("ok" for _ in begun[1:]), outcome]
        for (phase, start), end, ended in zip(begun, ends, outcomes, strict=True):
            self._of(LOAD_PHASE, kind.value, phase.value, scheme, ended).observe(end - start)
        exemplar = {"trace_id": trace_id} if trace_id else None
        self._of(LOAD, kind.value, scheme, outcome).observe(now - begun[0][1], exemplar)

    def room_missed(self, kind: ArtifactKind) -> None:
        """Count a load that has to wait for room."""
        self._of(ROOM_WAITS, kind.value).inc()

    def acquired(self, kind: ArtifactKind, *, hit: bool) -> None:
        """Count a lease."""
        self._of(ACQUIRES, kind.value, "hit" if hit else "miss").inc()

    def evicted(self, kind: ArtifactKind, reason: EvictReason) -> None:
        """Count an artifact whose resident bytes lost their name."""
        self._of(EVICTIONS, kind.value, reason).inc()
        if self.tenant:
            self._of(TENANT_EVICTIONS, self.tenant, reason).inc()

    def adopted(self, reason: str = "") -> None:
        """Count a segment found at start; ``reason`` is why it was not adopted."""
        self._of(ADOPTIONS, reason.lower() or ADOPTED).inc()

    def segment_changed(self) -> None:
        """Count a segment that somebody or something has changed."""
        self._of(CHANGED).inc()

    def fell_back(self, reason: str) -> None:
        """Count a client that streams because it could not map."""
        self._of(FALLBACKS, reason).inc()

    def stream_opened(self) -> None:
        """Count a read that begins."""
        self._of(STREAMS).inc()

    def stream_closed(self) -> None:
        """Count a read that has ended."""
        self._of(STREAMS).dec()

    def sent(self, size: int) -> None:
        """Count bytes of a segment."""
        self._of(STREAMED).inc(size)

    def call_started(self, rpc: Rpc) -> None:
        """Count a call that begins."""
        self._of(STARTED, *rpc).inc()

    def call_ended(self, rpc: Rpc, code: str, seconds: float) -> None:
        """Count a call that has ended with this code."""
        self._of(HANDLED, *rpc, usual_code(code)).inc()
        self._of(HANDLING, *rpc).observe(seconds)

    def fleet_failed(self, reason: str) -> None:
        """Count something that went wrong with a shared registry."""
        self._of(FLEET_FAILURES, reason).inc()

    def residency_told(self, told_count: int, left_out_count: int) -> None:
        """Note what this node told other nodes of what it has resident."""
        self._of(RESIDENCY, "yes").set(told_count)
        self._of(RESIDENCY, "no").set(left_out_count)

    def residency_seen(self, node_count: int, bad_count: int) -> None:
        """Note how many nodes there are, and count what was no word of any."""
        self._of(RESIDENCY_NODES).set(node_count)
        self._of(FLEET_FAILURES, "bad_record").inc(bad_count)

    def neighbour(self, outcome: str, count: int = 1) -> None:
        """Count how taking a load from another node went."""
        self._of(NEIGHBOUR_LOADS, outcome).inc(count)

    def source_turn(self, outcome: str) -> None:
        """Count what a load found that was about to read a source."""
        self._of(SOURCE_TURNS, outcome).inc()

    def upload(self, outcome: str) -> None:
        """Count a load of another node from this one."""
        self._of(NEIGHBOUR_UPLOADS, outcome).inc()

    def line_lost(self) -> None:
        """Count a log line that could not be written."""
        self._of(LOG_LINES_LOST).inc()

    def credentials_refused(self) -> None:
        """Count new credentials that could not be used."""
        self._of(CREDENTIALS_REFUSED).inc()

    # --- what there is ------------------------------------------------------

    def show(self, stock: Stock) -> None:
        """Set the gauges."""
        for state in ArtifactState:
            self._of(ARTIFACTS, state.value).set(stock.artifacts.get(state, 0))
        for kind in ArtifactKind:
            self._of(SEGMENTS, kind.value).set(stock.segments.get(kind, 0))
        for name in ARENA.labels["state"]:
            self._of(ARENA, name).set(getattr(stock, f"{name}_bytes"))
        self._of(UNPINNED).set(stock.unpinned_bytes)
        self._of(SESSIONS).set(stock.sessions)
        self._of(LEASES).set(stock.leases)
        self._of(LOADS, "running").set(stock.loads_running)
        self._of(LOADS, "waiting").set(stock.loads_waiting)
        self._of(CALLERS_WAITING).set(stock.callers_waiting)
        self._of(FLEET_DEGRADED).set(not stock.fleet_up)

    def show_tenant(self, tenant: str, stock: Stock, share_bytes: int, quota_bytes: int) -> None:
        """Set a tenant's gauges."""
        for name in TENANT_BYTES.labels["state"]:
            self._of(TENANT_BYTES, tenant, name).set(getattr(stock, f"{name}_bytes"))
        self._of(TENANT_SHARE, tenant).set(share_bytes)
        self._of(TENANT_QUOTA, tenant).set(quota_bytes)

    def render(self, accept: str, heartbeat_age_seconds: float) -> tuple[str, bytes]:
        """Return content type and text for somebody who accepts these types."""
        self._of(HEARTBEAT_AGE).set(heartbeat_age_seconds)
        encode, content_type = encoder_for(accept)
        return content_type, encode(self._registry)


def encoder_for(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """Return what writes a registry in a format that somebody accepts, and its content type.

    Types whose version is not of up to three numbers are passed over: the library cannot compare those, and
    repeats what it took in its answer.
    """
    return choose_encoder(",".join(part for part in accept.split(",") if _has_plain_version(part)))


def _has_plain_version(content_type: str) -> bool:
    said = [text.strip().partition("=") for text in content_type.split(";")]
    return all(_PLAIN_VERSION.fullmatch(value) for name, _, value in said if name == "version")


def _set_up_library() -> None:
    """Make the library's choices, which are the process's."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    # PROMETHEUS_MULTIPROC_DIR may be meant for an engine in the same container. Its files
    # outlive processes, and our counters would go on where a dead daemon's stopped.
    values.ValueClass = values.MutexValue
