"""Every metric of the daemon, its help text and its labels, in one place.

A label takes its value from a fixed list, never from what a caller or a source sent:
so the number of series is bounded however many artifacts there are and whatever their
names. Knows numbers and those lists; it does not know who counts, nor HTTP.

Counters and histograms may be moved by any thread. Gauges of the daemon's state are
set from a ``Stock``, which is taken on the event loop.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

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

from warmshelf.errors import ArenaFull, FormatTooNew, LargerThanArena, PinningFailed, SegmentCorrupt
from warmshelf.mapping import FALLBACK_REASONS
from warmshelf.types import ArtifactKind, LoadPhase

Outcome: TypeAlias = Literal["ok", "failed", "cancelled"]
EvictReason: TypeAlias = Literal["placement", "explicit", "replaced", "removed", "withdrawn"]

OTHER = "other"
"""Stands for every label value that is not on its list."""

ADOPTION_FAULTS = (SegmentCorrupt, FormatTooNew, LargerThanArena, ArenaFull, PinningFailed)
"""Why a segment that was left is not adopted; what else there may be is counted as ``other``."""

LOAD_BUCKETS_SECONDS = (0.001, 0.004, 0.015, 0.06, 0.25, 1, 4, 15, 60, 240, 1200)
"""From an adapter in the page cache to a large base from far away; each four times the one before."""

CALL_BUCKETS_SECONDS = (0.001, 0.004, 0.015, 0.06, 0.25, 1, 4, 15, 60, 300)
"""From a lease on what is resident to a stream of everything."""

_ADOPTED = {fault.reason: fault.reason.lower() for fault in ADOPTION_FAULTS} | {"": "adopted"}


class Rpc(NamedTuple):
    """A method as the usual metrics of gRPC servers name it."""

    type: str
    service: str
    method: str


@dataclass(frozen=True, slots=True)
class Stock:
    """What the daemon holds at one moment.

    Attributes:
        artifacts: how many are known, by state.
        segments: how many are in memory, by kind.
        arena_bytes: the budget's parts: ``held``, ``idle``, ``reserved``, ``unnamed``, ``free``.
        unpinned_bytes: of segments in memory that are not page-locked.
        sessions, leases: open now.
        loads, loads_waiting: under way, and of these without room yet.
        callers_waiting: who wants an artifact that is being loaded.
    """

    artifacts: Mapping[str, int]
    segments: Mapping[str, int]
    arena_bytes: Mapping[str, int]
    unpinned_bytes: int
    sessions: int
    leases: int
    loads: int
    loads_waiting: int
    callers_waiting: int


class Metrics:
    """The metrics of one daemon, in a registry of its own."""

    def __init__(self, schemes: Collection[str] = ()) -> None:
        """``schemes`` are those of the sources that the daemon can open."""
        _set_up_library()
        self._schemes = frozenset(schemes)
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)

        # --- loads and leases ---
        self._load = Histogram(
            "warmshelf_load_seconds",
            "Time from the first caller that wants an artifact to the end of its load.",
            ("kind", "scheme", "outcome"),
            buckets=LOAD_BUCKETS_SECONDS,
            registry=registry,
        )
        self._load_phase = Histogram(
            "warmshelf_load_phase_seconds",
            "Time in each phase of a load; what is not ok ended the load in that phase.",
            ("kind", "phase", "scheme", "outcome"),
            buckets=LOAD_BUCKETS_SECONDS,
            registry=registry,
        )
        self._loads = Gauge(
            "warmshelf_loads", "Loads under way, by whether they still wait for room.", ("state",), registry=registry
        )
        self._callers = Gauge(
            "warmshelf_callers_waiting", "Callers that wait for an artifact that is being loaded.", registry=registry
        )
        self._room_waits = Counter(
            "warmshelf_room_waits_total",
            "Loads that found no room when their turn came.",
            ("kind",),
            registry=registry,
        )
        self._acquires = Counter(
            "warmshelf_acquires_total",
            "Leases granted: hit if the artifact was resident already, miss if it had to be loaded.",
            ("kind", "result"),
            registry=registry,
        )
        self._sessions = Gauge("warmshelf_sessions", "Sessions open.", registry=registry)
        self._leases = Gauge("warmshelf_leases", "Leases held.", registry=registry)

        # --- memory ---
        self._artifacts = Gauge("warmshelf_artifacts", "Artifacts known, by state.", ("state",), registry=registry)
        self._segments = Gauge("warmshelf_segments", "Segments in memory, by kind.", ("kind",), registry=registry)
        self._arena = Info("warmshelf_arena", "How the arena's pages are.", registry=registry)
        self._budget = Gauge("warmshelf_arena_budget_bytes", "What the arena may hold.", registry=registry)
        self._arena_bytes = Gauge(
            "warmshelf_arena_bytes",
            "The budget's parts: resident and held, resident and idle, reserved by loads, "
            "mapped by somebody but without a name, free.",
            ("state",),
            registry=registry,
        )
        self._unpinned = Gauge(
            "warmshelf_arena_unpinned_bytes", "Resident bytes that are not page-locked.", registry=registry
        )
        self._evictions = Counter(
            "warmshelf_evictions_total",
            "Artifacts whose resident bytes were given up, and why.",
            ("kind", "reason"),
            registry=registry,
        )
        self._adoptions = Counter(
            "warmshelf_adoptions_total",
            "Segments found at start, and what became of them.",
            ("result",),
            registry=registry,
        )

        # --- streams ---
        self.streams = Gauge("warmshelf_streams", "Reads under way.", registry=registry)
        self.streamed_bytes = Counter(
            "warmshelf_streamed_bytes_total", "Bytes of segments sent to readers.", registry=registry
        )
        self._fallbacks = Counter(
            "warmshelf_fallbacks_total",
            "Reads of whole segments by clients that could not map them, and why not.",
            ("reason",),
            registry=registry,
        )

        # --- calls, under the names that dashboards for gRPC servers use ---
        rpc = ("grpc_type", "grpc_service", "grpc_method")
        self._started = Counter("grpc_server_started_total", "Calls begun.", rpc, registry=registry)
        self._handled = Counter(
            "grpc_server_handled_total", "Calls ended, by code.", (*rpc, "grpc_code"), registry=registry
        )
        self._handling = Histogram(
            "grpc_server_handling_seconds",
            "Time from a call's begin to its end.",
            rpc,
            buckets=CALL_BUCKETS_SECONDS,
            registry=registry,
        )

        # --- the process ---
        self._build = Info("warmshelf_build", "What runs.", registry=registry)
        self.heartbeat_age = Gauge(
            "warmshelf_heartbeat_age_seconds",
            "Time since the event loop last turned; the gauges are at most as old.",
            registry=registry,
        )
        self.log_lines_lost = Counter(
            "warmshelf_log_lines_lost_total", "Log lines that nobody took from standard error.", registry=registry
        )

    def describe(self, version: str, *, pinning: str, page_size_bytes: int, budget_bytes: int) -> None:
        """Say what does not change while the daemon runs."""
        self._build.info({"version": version, "python": platform.python_version()})
        self._arena.info({"pinning": pinning, "page_size_bytes": str(page_size_bytes)})
        self._budget.set(budget_bytes)

    # --- what happens -------------------------------------------------------

    def load_ended(
        self, kind: ArtifactKind, uri: str, outcome: Outcome, begun: Sequence[tuple[LoadPhase, float]], now: float
    ) -> None:
        """Count a load and its phases, each with the time at which it began."""
        scheme = self._scheme(uri)
        ends = [began for _, began in begun[1:]] + [now]
        for (phase, began), end in zip(begun, ends, strict=True):
            ended: Outcome = outcome if end is ends[-1] else "ok"
            self._load_phase.labels(kind.value, phase.value, scheme, ended).observe(end - began)
        self._load.labels(kind.value, scheme, outcome).observe(now - begun[0][1])

    def _scheme(self, uri: str) -> str:
        scheme = uri.partition("://")[0]
        return scheme if scheme in self._schemes else OTHER

    def room_missed(self, kind: ArtifactKind) -> None:
        """Count a load that has to wait for room."""
        self._room_waits.labels(kind.value).inc()

    def acquired(self, kind: ArtifactKind, *, hit: bool) -> None:
        """Count a lease."""
        self._acquires.labels(kind.value, "hit" if hit else "miss").inc()

    def evicted(self, kind: ArtifactKind, reason: EvictReason) -> None:
        """Count resident bytes that lost their name."""
        self._evictions.labels(kind.value, reason).inc()

    def adopted(self, reason: str = "") -> None:
        """Count a segment found at start; ``reason`` is why it was not adopted."""
        self._adoptions.labels(_ADOPTED.get(reason, OTHER)).inc()

    def fell_back(self, reason: str) -> None:
        """Count a client that streams because it could not map."""
        self._fallbacks.labels(reason if reason in FALLBACK_REASONS else OTHER).inc()

    def call_started(self, rpc: Rpc) -> None:
        """Count a call that begins."""
        self._started.labels(*rpc).inc()

    def call_ended(self, rpc: Rpc, code: str, seconds: float) -> None:
        """Count a call that has ended with this code."""
        self._handled.labels(*rpc, usual_code(code)).inc()
        self._handling.labels(*rpc).observe(seconds)

    # --- what there is ------------------------------------------------------

    def show(self, stock: Stock) -> None:
        """Set the gauges."""
        for gauge, counts in (
            (self._artifacts, stock.artifacts),
            (self._segments, stock.segments),
            (self._arena_bytes, stock.arena_bytes),
            (self._loads, {"waiting": stock.loads_waiting, "running": stock.loads - stock.loads_waiting}),
        ):
            for value, count in counts.items():
                gauge.labels(value).set(count)
        self._unpinned.set(stock.unpinned_bytes)
        self._sessions.set(stock.sessions)
        self._leases.set(stock.leases)
        self._callers.set(stock.callers_waiting)

    def render(self, accept: str = "") -> tuple[str, bytes]:
        """Return content type and text for somebody who accepts these types."""
        encode, content_type = choose_encoder(accept)
        return content_type, encode(self.registry)


def usual_code(code: str) -> str:
    """Return a status code in the spelling that dashboards match: ``NotFound`` for ``NOT_FOUND``."""
    special = {"OK": "OK", "CANCELLED": "Canceled"}
    return special.get(code) or "".join(word.capitalize() for word in code.split("_"))


def _set_up_library() -> None:
    """Make the library's process-wide choices; no metric was made before."""
    disable_created_metrics()
    # PROMETHEUS_MULTIPROC_DIR may be meant for an engine in the same container. Its files
    # outlive processes, and our counters would go on where a dead daemon's stopped.
    values.ValueClass = values.MutexValue
