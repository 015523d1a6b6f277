"""Every metric of the daemon, its help text and its labels, in one place.

A label takes its value from a fixed list, never from what a caller or a source sent:
so the number of series is bounded however many artifacts there are and whatever their
names. Knows numbers and those lists; it does not know who counts, nor HTTP.

Any thread may count. The gauges of what the daemon holds are set from a ``Stock``,
which is taken on the event loop.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    values,
)
from prometheus_client.exposition import choose_encoder

from warmshelf.errors import ArenaFull, Code, FormatTooNew, LargerThanArena, PinningFailed, SegmentCorrupt
from warmshelf.mapping import FALLBACK_REASONS
from warmshelf.types import ArtifactKind, ArtifactState, LoadPhase
from warmshelfd.stock import Stock

Outcome: TypeAlias = Literal["ok", "failed", "cancelled"]
EvictReason: TypeAlias = Literal["placement", "explicit", "replaced", "removed", "withdrawn", "duplicate"]
Values: TypeAlias = "tuple[str, ...]"

NEIGHBOUR = "neighbour"
"""Stands for the scheme where a load takes its bytes from another node."""

OTHER = "other"
"""Stands for every label value that is not on its list."""

LOAD_BUCKETS_SECONDS = (0.001, 0.004, 0.015, 0.06, 0.25, 1, 4, 15, 60, 240, 1200)
"""From an adapter in the page cache to a large base from far away."""

CALL_BUCKETS_SECONDS = (0.001, 0.004, 0.015, 0.06, 0.25, 1, 4, 15, 60, 240)
"""From a lease on what is resident to a stream of everything."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One metric.

    Attributes:
        type: the library's class for it.
        name: as it is exposed.
        text: what it says.
        labels: the values that each label may have; none listed means that the daemon's
            own methods or sources decide, which are few as well.
        buckets: of a histogram.
    """

    type: type[Counter | Gauge | Histogram | Info]
    name: str
    text: str
    labels: Mapping[str, Values] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()

    def make(self, registry: CollectorRegistry) -> Any:
        """Return the metric, registered."""
        more: dict[str, Any] = {"buckets": self.buckets} if self.buckets else {}
        name = self.name.removesuffix("_info") if self.type is Info else self.name
        return self.type(name, self.text, tuple(self.labels), registry=registry, **more)


class Rpc(NamedTuple):
    """A method, as the usual metrics of gRPC servers name it."""

    type: str
    service: str
    method: str


def usual_code(code: str) -> str:
    """Return a status code in the spelling that dashboards match: ``NotFound`` for ``NOT_FOUND``."""
    special = {"OK": "OK", "CANCELLED": "Canceled"}
    return special.get(code) or "".join(word.capitalize() for word in code.split("_"))


FLEET_REASONS: Values = (
    *("away", "bad_record", "refused", "conflict", "internal", "oom", "readonly", "loading", "noauth", "wrongpass"),
    *("noperm", "moved", "busy", "misconf", "clusterdown", "masterdown", "noreplicas", "wrongtype", OTHER),
)

# --- labels -----------------------------------------------------------------

_DECIDED_BY_DAEMON: Values = ()
_KIND = {"kind": tuple(kind.value for kind in ArtifactKind)}
_PHASE = {"phase": tuple(phase.value for phase in LoadPhase)}
_ENDED: Mapping[str, Values] = {"scheme": _DECIDED_BY_DAEMON, "outcome": get_args(Outcome)}
_RPC = {"grpc_type": _DECIDED_BY_DAEMON, "grpc_service": _DECIDED_BY_DAEMON, "grpc_method": _DECIDED_BY_DAEMON}
_CODES = ("OK", *(usual_code(code.value) for code in Code))
_ADOPTED = "adopted"
_NOT_ADOPTED = tuple(
    fault.reason.lower() for fault in (SegmentCorrupt, FormatTooNew, LargerThanArena, ArenaFull, PinningFailed)
)

# --- loads and leases -------------------------------------------------------

LOAD = Spec(
    Histogram,
    "warmshelf_load_seconds",
    "Time from the first caller who wants an artifact to the end of its load.",
    {**_KIND, **_ENDED},
    LOAD_BUCKETS_SECONDS,
)
LOAD_PHASE = Spec(
    Histogram,
    "warmshelf_load_phase_seconds",
    "Time in each phase of a load; with another outcome than ok, the load ended in it.",
    {**_KIND, **_PHASE, **_ENDED},
    LOAD_BUCKETS_SECONDS,
)
LOADS = Spec(
    Gauge,
    "warmshelf_loads",
    "Loads under way, by whether they have room or wait for it.",
    {"state": ("running", "waiting")},
)
ROOM_WAITS = Spec(Counter, "warmshelf_room_waits_total", "Loads that found no room when it was their turn.", _KIND)
CALLERS_WAITING = Spec(Gauge, "warmshelf_callers_waiting", "Callers who wait for a load.")
ACQUIRES = Spec(
    Counter,
    "warmshelf_acquires_total",
    "Leases granted, by whether the artifact was resident (hit) or had to be loaded (miss).",
    {**_KIND, "result": ("hit", "miss")},
)
SESSIONS = Spec(Gauge, "warmshelf_sessions", "Sessions open.")
LEASES = Spec(Gauge, "warmshelf_leases", "Leases held.")

# --- memory -----------------------------------------------------------------

ARTIFACTS = Spec(
    Gauge, "warmshelf_artifacts", "Artifacts known.", {"state": tuple(state.value for state in ArtifactState)}
)
SEGMENTS = Spec(Gauge, "warmshelf_segments", "Segments in memory, with and without a name.", _KIND)
ARENA_BUDGET = Spec(Gauge, "warmshelf_arena_budget_bytes", "What the arena may hold.")
ARENA = Spec(
    Gauge,
    "warmshelf_arena_bytes",
    "What the arena holds: held (leased, mapped or kept), idle (could be evicted), reserved (for loads), "
    "unnamed (unlinked, still mapped by somebody); and what is free, by budget and file system.",
    {"state": ("held", "idle", "reserved", "unnamed", "free")},
)
UNPINNED = Spec(Gauge, "warmshelf_arena_unpinned_bytes", "Bytes of segments that are not page-locked.")
ARENA_INFO = Spec(Info, "warmshelf_arena_info", "How pages are locked (pinning), and page_size_bytes. Always 1.")
EVICTIONS = Spec(
    Counter,
    "warmshelf_evictions_total",
    "Artifacts whose resident bytes were given up: to make room (placement), because somebody asked (explicit), "
    "as no longer the right ones, or because the same content was there twice.",
    {**_KIND, "reason": get_args(EvictReason)},
)
ADOPTIONS = Spec(
    Counter,
    "warmshelf_adoptions_total",
    "Segments that an earlier daemon left, by what became of them at start.",
    {"result": (_ADOPTED, *_NOT_ADOPTED)},
)

# --- streams and calls ------------------------------------------------------

STREAMS = Spec(Gauge, "warmshelf_streams", "Reads under way.")
STREAMED = Spec(Counter, "warmshelf_streamed_bytes_total", "Bytes of segments that were sent.")
FALLBACKS = Spec(
    Counter,
    "warmshelf_fallbacks_total",
    "Reads from the start of a segment by a client that could not map it, by why not.",
    {"reason": tuple(sorted(FALLBACK_REASONS))},
)
STARTED = Spec(Counter, "grpc_server_started_total", "Calls that began.", _RPC)
HANDLED = Spec(Counter, "grpc_server_handled_total", "Calls that ended.", {**_RPC, "grpc_code": _CODES})
HANDLING = Spec(
    Histogram,
    "grpc_server_handling_seconds",
    "Time from the begin of a call to its end.",
    _RPC,
    CALL_BUCKETS_SECONDS,
)

# --- the fleet ----------------------------------------------------------------

FLEET_FAILURES = Spec(
    Counter,
    "warmshelf_fleet_failures_total",
    "What went wrong with a shared registry: it was away, it refused with a code, a record in it was no record "
    "(bad_record), this node may not have what others registered (refused), or two nodes disagreed (conflict).",
    {"reason": FLEET_REASONS},
)
FLEET_DEGRADED = Spec(
    Gauge, "warmshelf_fleet_degraded", "1 while a shared registry is not in reach; 0 with one of this node alone."
)

RESIDENCY = Spec(
    Gauge,
    "warmshelf_residency_artifacts",
    "Resident artifacts that this node last told other nodes of, and those that were too many to tell of.",
    {"told": ("yes", "no")},
)
RESIDENCY_NODES = Spec(Gauge, "warmshelf_residency_nodes", "Nodes, this one too, when somebody last asked for them.")

NEIGHBOUR_LOADS = Spec(
    Counter,
    "warmshelf_neighbour_loads_total",
    "Loads that were to be taken from another node, by how that went: ok, or it was busy, had it no longer (gone), was "
    "dead, slow, sent something else (lied), is at an address that is not allowed, or this node failed.",
    {"outcome": ("ok", "busy", "gone", "dead", "slow", "lied", "not_allowed", "failed")},
)
NEIGHBOUR_UPLOADS = Spec(
    Counter,
    "warmshelf_neighbour_uploads_total",
    "Loads of other nodes from this one, by whether they were begun or refused because there were too many.",
    {"outcome": ("begun", "refused")},
)

# --- the process ------------------------------------------------------------

BUILD_INFO = Spec(Info, "warmshelf_build_info", "The daemon's version and that of Python. Always 1.")
HEARTBEAT_AGE = Spec(
    Gauge,
    "warmshelf_heartbeat_age_seconds",
    "How long ago the event loop last turned. While it does not, the other gauges are as old.",
)
LOG_LINES_LOST = Spec(
    Counter, "warmshelf_log_lines_lost_total", "Log lines dropped because nobody took them from standard error."
)
CREDENTIALS_REFUSED = Spec(
    Counter,
    "warmshelf_credentials_refused_total",
    "New certificates, keys, authorities and tokens that could not be used; the log says why.",
)

SPECS = tuple(spec for spec in globals().values() if isinstance(spec, Spec))
"""Every metric of ours. Beside them stand the usual ``process_*``."""


class Metrics:
    """The metrics of one daemon."""

    def __init__(self, schemes: Collection[str] = ()) -> None:
        """``schemes`` are those of the sources that the daemon can open."""
        _set_up_library()
        self._schemes = frozenset(schemes) | {NEIGHBOUR}
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._made = {spec.name: spec.make(self._registry) for spec in SPECS}
        for spec in SPECS:  # a counter that is there from the start, at 0, can be seen to rise for the first time
            if spec.type is Counter and all(spec.labels.values()):
                for chosen in product(*spec.labels.values()):
                    self._of(spec, *chosen)

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

    def adopted(self, reason: str = "") -> None:
        """Count a segment found at start; ``reason`` is why it was not adopted."""
        self._of(ADOPTIONS, reason.lower() or _ADOPTED).inc()

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

    def render(self, accept: str, heartbeat_age_seconds: float) -> tuple[str, bytes]:
        """Return content type and text for somebody who accepts these types."""
        self._of(HEARTBEAT_AGE).set(heartbeat_age_seconds)
        encode, content_type = choose_encoder(accept)
        return content_type, encode(self._registry)


def _set_up_library() -> None:
    """Make the library's choices, which are the process's."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    # PROMETHEUS_MULTIPROC_DIR may be meant for an engine in the same container. Its files
    # outlive processes, and our counters would go on where a dead daemon's stopped.
    values.ValueClass = values.MutexValue
