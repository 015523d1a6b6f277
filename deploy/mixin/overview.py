"""The dashboard of a fleet: one line for each daemon, and what the alerts look at."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard
from panels import CHOSEN, AnyPanel, Query, board, lines

_WIDE = 12


def overview() -> Dashboard:
    """Return it."""
    rows = [("Service", _service()), ("Memory", _memory()), ("Trouble", _trouble())]
    return board("warmshelf-overview", "warmshelf / overview", "What every daemon holds and how it serves.", rows)


def _service() -> list[AnyPanel]:
    return [
        lines(
            "Warm acquires",
            "Share of leases on what was resident already.",
            Query(f"instance:warmshelf_acquire_hits:ratio_rate5m{{{CHOSEN}}}"),
            unit="percentunit",
        ),
        lines(
            "Acquires",
            "Leases granted a second.",
            Query(f"sum by (instance) (rate(warmshelf_acquires_total{{{CHOSEN}}}[$__rate_interval]))"),
            unit="ops",
        ),
        lines(
            "Load time, 95 %",
            "What 19 of 20 successful loads stay below.",
            Query(f"instance_kind:warmshelf_load_seconds:p95_rate15m{{{CHOSEN}}}", "{{instance}} {{kind}}"),
            unit="s",
        ),
    ]


def _memory() -> list[AnyPanel]:
    return [
        lines(
            "Arena used",
            "Everything but what is free, of the budget.",
            Query(f"instance:warmshelf_arena_used:ratio{{{CHOSEN}}}"),
            unit="percentunit",
        ),
        lines(
            "Mapped without a name",
            "What workers still map after it was evicted or replaced, of the budget.",
            Query(f"instance:warmshelf_arena_unnamed:ratio{{{CHOSEN}}}"),
            unit="percentunit",
        ),
        lines(
            "Artifacts resident",
            "READY on each daemon.",
            Query(f'sum by (instance) (warmshelf_artifacts{{{CHOSEN},state="ready"}})'),
        ),
    ]


def _trouble() -> list[AnyPanel]:
    return [
        lines(
            "Failed loads",
            "Share of loads that failed, by the scheme of their source.",
            Query(f"instance_scheme:warmshelf_loads_failed:ratio_rate10m{{{CHOSEN}}}", "{{instance}} {{scheme}}"),
            unit="percentunit",
        ),
        lines(
            "Broken calls",
            "Share of calls that failed for no fault of the caller's.",
            Query(f"instance:grpc_server_broken:ratio_rate5m{{{CHOSEN}}}"),
            unit="percentunit",
        ),
        lines(
            "Evictions for room",
            "Artifacts a second that made room for others.",
            Query(
                f'sum by (instance) (rate(warmshelf_evictions_total{{{CHOSEN},reason="placement"}}[$__rate_interval]))'
            ),
            unit="ops",
        ),
        lines(
            "Up",
            "Whether Prometheus reaches the daemon.",
            Query('up{job=~"$job",instance=~"$instance"}'),
            width=_WIDE,
        ),
        lines(
            "Shared registry out of reach",
            "1 while it is; 0 also with a registry of the node's own.",
            Query(f"warmshelf_fleet_degraded{{{CHOSEN}}}"),
            width=_WIDE,
        ),
    ]
