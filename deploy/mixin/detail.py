"""The dashboard of one daemon, or a few: loads by phase and source, memory, waits, streams, fleet, calls."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard
from panels import CHOSEN, AnyPanel, Query, board, buckets, lines, number

_WIDE = 12
_OK = f'{CHOSEN},outcome="ok"'
_QUANTILES = ("0.5", "0.9", "0.99")


def detail() -> Dashboard:
    """Return it."""
    rows = [
        ("Now", _now()),
        ("Loads", _loads()),
        ("Warm against cold", _warm()),
        ("Memory", _memory()),
        ("Waits", _waits()),
        ("Mapped and streamed", _access()),
        ("Fleet", _fleet()),
        ("Starts and process", _process()),
        ("Calls", _calls()),
    ]
    return board("warmshelf-detail", "warmshelf / detail", "What one daemon does, and why it takes so long.", rows)


def _rate(metric: str, by: str, selected: str = CHOSEN) -> str:
    return f"sum by ({by}) (rate({metric}{{{selected}}}[$__rate_interval]))"


def _quantile(share: str, metric: str, by: str, selected: str) -> str:
    return f"histogram_quantile({share}, {_rate(f'{metric}_bucket', f'{by}, le', selected)})"


def _now() -> list[AnyPanel]:
    ready = f'sum by (instance) (warmshelf_artifacts{{{CHOSEN},state="ready"}})'
    uptime = f"time() - process_start_time_seconds{{{CHOSEN}}}"
    hits = f"instance:warmshelf_acquire_hits:ratio_rate5m{{{CHOSEN}}}"
    return [
        number("Resident", "Artifacts that are READY.", ready),
        number("Leases", "Leases held.", f"warmshelf_leases{{{CHOSEN}}}"),
        number("Budget", "What the arena may hold.", f"warmshelf_arena_budget_bytes{{{CHOSEN}}}", "bytes"),
        number("Used", "Of the budget.", f"instance:warmshelf_arena_used:ratio{{{CHOSEN}}}", "percentunit"),
        number("Warm", "Leases on what was resident, of all.", hits, "percentunit"),
        number("Up for", "Since the process started.", uptime, "s"),
    ]


def _loads() -> list[AnyPanel]:
    heat = f"sum by (le) (increase(warmshelf_load_seconds_bucket{{{_OK}}}[$__rate_interval]))"
    by_kind = [
        Query(_quantile(q, "warmshelf_load_seconds", "kind", _OK), f"{{{{kind}}}} {float(q):.0%}") for q in _QUANTILES
    ]
    phase = _quantile("0.9", "warmshelf_load_phase_seconds", "phase", _OK)
    share = _rate("warmshelf_load_phase_seconds_sum", "phase", _OK)
    source = _quantile("0.9", "warmshelf_load_seconds", "scheme", _OK)
    ended = _rate("warmshelf_load_seconds_count", "scheme, outcome")
    failed = _rate("warmshelf_load_phase_seconds_count", "phase, scheme", f'{CHOSEN},outcome!="ok"')
    return [
        buckets("Load time", "How many successful loads took how long.", heat),
        lines("Load time by kind", "Quantiles of successful loads.", *by_kind, unit="s", width=_WIDE),
        lines("Load time by phase", "What 9 of 10 stay below.", Query(phase, "{{phase}}"), unit="s"),
        lines(
            "Where loads spend their time",
            "Seconds in each phase a second: 1 is one load that does nothing else.",
            Query(share, "{{phase}}"),
            unit="s",
            stack=True,
        ),
        lines("Load time by source", "What 9 of 10 stay below.", Query(source, "{{scheme}}"), unit="s"),
        lines("Loads ended", "By scheme and outcome.", Query(ended, "{{scheme}} {{outcome}}"), unit="ops", width=_WIDE),
        lines(
            "Where loads fail",
            "Failed and cancelled loads by the phase in which they ended.",
            Query(failed, "{{phase}} {{scheme}}"),
            unit="ops",
            width=_WIDE,
        ),
    ]


def _warm() -> list[AnyPanel]:
    acquires = _rate("warmshelf_acquires_total", "kind, result")
    hits = _rate("warmshelf_acquires_total", "kind", f'{CHOSEN},result="hit"')
    evictions = _rate("warmshelf_evictions_total", "kind, reason")
    return [
        lines(
            "Acquires", "Hits found it resident, misses loaded it.", Query(acquires, "{{kind}} {{result}}"), unit="ops"
        ),
        lines(
            "Warm acquires by kind",
            "Share of hits.",
            Query(f"{hits} / {_rate('warmshelf_acquires_total', 'kind')}", "{{kind}}"),
            unit="percentunit",
        ),
        lines("Evictions", "By why memory was given back.", Query(evictions, "{{kind}} {{reason}}"), unit="ops"),
    ]


def _memory() -> list[AnyPanel]:
    arena = f"sum by (state) (warmshelf_arena_bytes{{{CHOSEN}}})"
    budget = f"sum(warmshelf_arena_budget_bytes{{{CHOSEN}}})"
    unnamed = f'warmshelf_arena_bytes{{{CHOSEN},state="unnamed"}}'
    info = f"sum by (instance, pinning, page_size_bytes) (warmshelf_arena_info{{{CHOSEN}}})"
    return [
        lines(
            "Arena",
            "held: leased, mapped or kept; idle: could be evicted; reserved: for loads; unnamed: still mapped.",
            Query(arena, "{{state}}"),
            Query(budget, "budget"),
            unit="bytes",
            width=_WIDE,
        ),
        lines(
            "Unnamed and not pinned",
            "Mapped after its name was gone; not page-locked.",
            Query(unnamed, "{{instance}} unnamed"),
            Query(f"warmshelf_arena_unpinned_bytes{{{CHOSEN}}}", "{{instance}} not pinned"),
            unit="bytes",
            width=_WIDE,
        ),
        lines("Artifacts", "By state.", Query(f"sum by (state) (warmshelf_artifacts{{{CHOSEN}}})", "{{state}}")),
        lines("Segments", "By kind.", Query(f"sum by (kind) (warmshelf_segments{{{CHOSEN}}})", "{{kind}}")),
        lines(
            "Pages", "How they are locked, and how large.", Query(info, "{{instance}} {{pinning}} {{page_size_bytes}}")
        ),
    ]


def _waits() -> list[AnyPanel]:
    reserve = _quantile("0.9", "warmshelf_load_phase_seconds", "kind", f'{CHOSEN},phase="reserve"')
    return [
        lines(
            "Loads under way",
            "waiting has no room yet.",
            Query(f"sum by (state) (warmshelf_loads{{{CHOSEN}}})", "{{state}}"),
            Query(f"sum(warmshelf_callers_waiting{{{CHOSEN}}})", "callers waiting"),
        ),
        lines(
            "Loads that found no room",
            "When it was their turn.",
            Query(_rate("warmshelf_room_waits_total", "kind"), "{{kind}}"),
            unit="ops",
        ),
        lines("Time to get room", "What 9 of 10 loads stay below.", Query(reserve, "{{kind}}"), unit="s"),
    ]


def _access() -> list[AnyPanel]:
    fallbacks = _rate("warmshelf_fallbacks_total", "reason")
    return [
        lines(
            "Sessions and leases",
            "Worker processes, and what they hold.",
            Query(f"warmshelf_sessions{{{CHOSEN}}}", "{{instance}} sessions"),
            Query(f"warmshelf_leases{{{CHOSEN}}}", "{{instance}} leases"),
        ),
        lines(
            "Streams",
            "Reads under way, and bytes sent a second.",
            Query(_rate("warmshelf_streamed_bytes_total", "instance"), "{{instance}}"),
            unit="Bps",
            width=4,
        ),
        lines("Reads under way", "Streams.", Query(f"warmshelf_streams{{{CHOSEN}}}"), width=4),
        lines(
            "Fall-backs",
            "Why clients stream: any reason but tcp is a worker beside the daemon that could not map.",
            Query(fallbacks, "{{reason}}"),
            unit="ops",
        ),
    ]


def _fleet() -> list[AnyPanel]:
    told = f"sum by (told) (warmshelf_residency_artifacts{{{CHOSEN}}})"
    failures = _rate("warmshelf_fleet_failures_total", "reason")
    ready = f'sum by (instance) (warmshelf_artifacts{{{CHOSEN},state="ready"}})'
    return [
        lines("Residency", "Artifacts READY on each daemon.", Query(ready)),
        lines("Shared registry out of reach", "1 while it is.", Query(f"warmshelf_fleet_degraded{{{CHOSEN}}}")),
        lines("What went wrong with it", "By reason.", Query(failures, "{{reason}}"), unit="ops"),
        lines(
            "Told to other nodes", "Resident artifacts, and how many were too many to tell of.", Query(told, "{{told}}")
        ),
        lines(
            "Loads from other nodes",
            "By how they went; anything but ok is loaded from the source.",
            Query(_rate("warmshelf_neighbour_loads_total", "outcome"), "{{outcome}}"),
            unit="ops",
        ),
        lines(
            "Turns at sources",
            "Who was about to read what others may want too: the first reads, others wait for it.",
            Query(_rate("warmshelf_source_turns_total", "outcome"), "{{outcome}}"),
            unit="ops",
        ),
        lines(
            "Loads to other nodes",
            "Refused ones were too many at once.",
            Query(_rate("warmshelf_neighbour_uploads_total", "outcome"), "{{outcome}}"),
            unit="ops",
        ),
    ]


def _process() -> list[AnyPanel]:
    adopted = f"sum by (result) (warmshelf_adoptions_total{{{CHOSEN}}})"
    version = f"sum by (instance, version, python) (warmshelf_build_info{{{CHOSEN}}})"
    return [
        lines("Starts", "Within an hour.", Query(f"changes(process_start_time_seconds{{{CHOSEN}}}[1h])"), width=6),
        lines(
            "Segments taken over", "At the last start, by what became of them.", Query(adopted, "{{result}}"), width=6
        ),
        lines(
            "Releases",
            "Which daemon runs which.",
            Query(version, "{{instance}} {{version}} Python {{python}}"),
            width=6,
        ),
        lines(
            "Event loop",
            "How long ago it last turned.",
            Query(f"warmshelf_heartbeat_age_seconds{{{CHOSEN}}}"),
            unit="s",
            width=6,
        ),
        lines("CPU", "Cores.", Query(_rate("process_cpu_seconds_total", "instance")), width=6),
        lines(
            "Memory of the process",
            "Resident; includes what it maps of the arena.",
            Query(f"process_resident_memory_bytes{{{CHOSEN}}}"),
            unit="bytes",
            width=6,
        ),
        lines(
            "Open files",
            "And the limit.",
            Query(f"process_open_fds{{{CHOSEN}}}"),
            Query(f"process_max_fds{{{CHOSEN}}}", "{{instance}} limit"),
            width=6,
        ),
        lines(
            "Log lines lost", "Nobody took them.", Query(_rate("warmshelf_log_lines_lost_total", "instance")), width=6
        ),
    ]


def _calls() -> list[AnyPanel]:
    own = f'{CHOSEN},grpc_service=~"warmshelf[.].*"'
    failed = _rate("grpc_server_handled_total", "grpc_method, grpc_code", f'{own},grpc_code!="OK"')
    slow = _quantile("0.99", "grpc_server_handling_seconds", "grpc_method", f'{own},grpc_type="unary"')
    open_calls = (
        f"sum by (grpc_method) (grpc_server_started_total{{{own}}})"
        f" - sum by (grpc_method) (grpc_server_handled_total{{{own}}})"
    )
    return [
        lines(
            "Calls",
            "That began.",
            Query(_rate("grpc_server_started_total", "grpc_method", own), "{{grpc_method}}"),
            unit="ops",
        ),
        lines("Failed calls", "By code.", Query(failed, "{{grpc_method}} {{grpc_code}}"), unit="ops"),
        lines(
            "Time of calls",
            "What 99 of 100 stay below; an acquire may wait for a load.",
            Query(slow, "{{grpc_method}}"),
            unit="s",
        ),
        lines("Calls under way", "Sessions are calls that last.", Query(open_calls, "{{grpc_method}}"), width=24),
    ]
