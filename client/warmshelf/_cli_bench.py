"""``warmshelf bench``: measures, and prints what was found as a table or as JSON.

There is no message of the protocol for it; the JSON has the names of ``Measured``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from warmshelf import _cli_render as render
from warmshelf._bench import Measured, made_artifact, measure
from warmshelf.client import Shelf

_HEAD = ("ID", "SIZE", "ACQUIRE P50", "ACQUIRE P99", "STREAMED", "LOADED")
_NOTHING = "-"


def run(shelf: Shelf, artifact_ids: Sequence[str], source: str, *, round_count: int, reload: bool) -> list[Measured]:
    """Measure these artifacts, and one made in the directory ``source`` if there is one."""
    found = [measure(shelf, artifact_id, round_count=round_count, reload=reload) for artifact_id in artifact_ids]
    if source:
        with made_artifact(shelf, source) as artifact_id:
            found.append(measure(shelf, artifact_id, round_count=round_count, reload=reload))
    return found


def show(found: Iterable[Measured], output: render.Output) -> None:
    """Print what was measured."""
    if output is render.Output.JSON:
        print(json.dumps({"measurements": [asdict(one) for one in found]}, indent=2))
    else:
        render.table(_HEAD, map(_row, found))


def _row(one: Measured) -> tuple[str, ...]:
    not_mapped = f"not mapped: {one.fallback_reason}" if one.fallback_reason else _NOTHING
    return (
        one.artifact_id,
        render.size(one.size_bytes),
        _milliseconds(one.acquire_p50_seconds) or not_mapped,
        _milliseconds(one.acquire_p99_seconds) or _NOTHING,
        _rate(one.streamed_bytes_per_second) or _NOTHING,
        _rate(one.loaded_bytes_per_second) or _NOTHING,
    )


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.2f} ms"


def _rate(bytes_per_second: float | None) -> str:
    return "" if bytes_per_second is None else f"{bytes_per_second / 1e9:.2f} GB/s"
