"""The choices of the library that counts, which are the whole process's. Knows no metric."""

from __future__ import annotations

from prometheus_client import disable_created_metrics, values


def set_up_library() -> None:
    """Make the library's choices, which are the process's."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    # PROMETHEUS_MULTIPROC_DIR may be meant for an engine in the same container. Its files
    # outlive processes, and our counters would go on where a dead daemon's stopped.
    values.ValueClass = values.MutexValue
