"""Every metric of the daemon, its help text and its labels.

A label takes its value from a fixed list, never from what a caller or a source sent:
so the number of series is bounded however many artifacts there are and whatever their
names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from warmshelf.errors import ArenaFull, Code, FormatTooNew, LargerThanArena, PinningFailed, SegmentCorrupt
from warmshelf.mapping import FALLBACK_REASONS
from warmshelf.types import ArtifactKind, ArtifactState, LoadPhase

Outcome: TypeAlias = Literal["ok", "failed", "cancelled"]
EvictReason: TypeAlias = Literal[
    "placement", "explicit", "replaced", "removed", "withdrawn", "duplicate", "idle", "share"
]
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
    *("away", "bad_record", "refused", "conflict", "went_back", "internal", "oom", "readonly", "loading", "noauth"),
    *("wrongpass", "noperm", "moved", "busy", "misconf", "clusterdown", "masterdown", "noreplicas", "wrongtype", OTHER),
)

# --- labels -----------------------------------------------------------------

_DECIDED_BY_DAEMON: Values = ()
_KIND = {"kind": tuple(kind.value for kind in ArtifactKind)}
_PHASE = {"phase": tuple(phase.value for phase in LoadPhase)}
_ENDED: Mapping[str, Values] = {"scheme": _DECIDED_BY_DAEMON, "outcome": get_args(Outcome)}
_RPC = {"grpc_type": _DECIDED_BY_DAEMON, "grpc_service": _DECIDED_BY_DAEMON, "grpc_method": _DECIDED_BY_DAEMON}
_CODES = ("OK", *(usual_code(code.value) for code in Code))
ADOPTED = "adopted"
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
    "as no longer the right ones, because the same content was there twice, as not used for long (idle), or because "
    "another tenant needed what was borrowed of the budget (share).",
    {**_KIND, "reason": get_args(EvictReason)},
)
ADOPTIONS = Spec(
    Counter,
    "warmshelf_adoptions_total",
    "Segments that an earlier daemon left, by what became of them at start.",
    {"result": (ADOPTED, *_NOT_ADOPTED)},
)

CHANGED = Spec(
    Counter,
    "warmshelf_segments_changed_total",
    "Segments in memory that were found not to be as they were sealed, by how their file looks or by their CRCs. They "
    "are given to nobody any more, and load again.",
)

# --- tenants; their names come from the configuration -------------------------

TENANT_BYTES = Spec(
    Gauge,
    "warmshelf_tenant_bytes",
    "What a tenant has of the arena, by state as in warmshelf_arena_bytes.",
    {"tenant": _DECIDED_BY_DAEMON, "state": ("held", "idle", "reserved", "unnamed")},
)
TENANT_SHARE = Spec(
    Gauge, "warmshelf_tenant_share_bytes", "What a tenant can always have.", {"tenant": _DECIDED_BY_DAEMON}
)
TENANT_QUOTA = Spec(
    Gauge, "warmshelf_tenant_quota_bytes", "What a tenant can have at most.", {"tenant": _DECIDED_BY_DAEMON}
)
TENANT_EVICTIONS = Spec(
    Counter,
    "warmshelf_tenant_evictions_total",
    "A tenant's artifacts whose resident bytes were given up, by why, as in warmshelf_evictions_total.",
    {"tenant": _DECIDED_BY_DAEMON, "reason": get_args(EvictReason)},
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
    "(bad_record), this node may not have what others registered (refused), two nodes disagreed (conflict), or it had "
    "a record older than this node knew (went_back).",
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
SOURCE_TURNS = Spec(
    Counter,
    "warmshelf_source_turns_total",
    "Loads that were about to read what other nodes may want too, by what they found: nobody else (first), another "
    "node that was waited for (waited), one that came no further (given_up), or no shared registry to ask (away). "
    "Who waited and then reads the source itself is counted twice.",
    {"outcome": ("first", "waited", "given_up", "away")},
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
