"""The status page: what the daemon holds, for people to read and for machines as JSON.

Made anew for each request, without a script, and of bounded length. It shows IDs,
numbers and why loads failed; neither sources nor holders. All text in it may
come from strangers, so every piece is escaped. Knows no HTTP server.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import heapq
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from http import HTTPStatus
from urllib.parse import parse_qs, quote

from warmshelf.errors import InvalidId
from warmshelf.types import ArtifactState, check_id
from warmshelfd import __version__
from warmshelfd.domain.catalog import Entry
from warmshelfd.http import Answer
from warmshelfd.observing import stock
from warmshelfd.shelf import Shelf

ROWS_MAX = 200
"""Artifacts on one page; the next are a link away."""

FAILED_ROWS_MAX = 20
"""Failed artifacts that are shown with their errors, the last used first."""

MESSAGE_CHARS_MAX = 500
"""How much of an error is shown."""

_STYLE = (
    "body{font:14px sans-serif;margin:2em;max-width:80em}table{border-collapse:collapse;margin:1em 0}"
    "td,th{text-align:left;padding:.2em 1em .2em 0;border-bottom:1px solid #ddd;overflow-wrap:anywhere}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
"""Nothing may be loaded, run, sent or framed; the page's one style is known by its hash."""


@dataclass(frozen=True, slots=True)
class Row:
    """One artifact."""

    artifact_id: str
    kind: str
    state: str
    generation: int
    size_bytes: int
    leases: int
    pinned: bool
    kept: bool


@dataclass(frozen=True, slots=True)
class FailedRow:
    """One artifact whose last load failed, and why."""

    artifact_id: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Status:
    """All that the page shows. Sizes as in ``warmshelf_arena_bytes``."""

    version: str
    is_ready: bool
    is_draining: bool
    uptime_seconds: int
    pinning: str
    page_size_bytes: int
    budget_bytes: int
    arena_bytes: dict[str, int]
    unpinned_bytes: int
    artifacts: dict[str, int]
    sessions: int
    leases: int
    loads_running: int
    loads_waiting: int
    callers_waiting: int
    failed: tuple[FailedRow, ...]
    rows: tuple[Row, ...]
    next_after: str


def look(
    shelf: Shelf, after_id: str, *, is_ready: bool, pinning: str, page_size_bytes: int, uptime_seconds: float
) -> Status:
    """Return the status with the artifacts after an ID. On the event loop."""
    now = stock(shelf)
    page = shelf.catalog.page(after_id, ROWS_MAX, "")
    return Status(
        version=__version__,
        is_ready=is_ready,
        is_draining=shelf.draining,
        uptime_seconds=int(uptime_seconds),
        pinning=pinning,
        page_size_bytes=page_size_bytes,
        budget_bytes=shelf.residency.arena.budget_bytes,
        arena_bytes={
            "held": now.held_bytes,
            "idle": now.idle_bytes,
            "reserved": now.reserved_bytes,
            "unnamed": now.unnamed_bytes,
            "free": now.free_bytes,
        },
        unpinned_bytes=now.unpinned_bytes,
        artifacts={state.value: count for state, count in now.artifacts.items()},
        sessions=now.sessions,
        leases=now.leases,
        loads_running=now.loads_running,
        loads_waiting=now.loads_waiting,
        callers_waiting=now.callers_waiting,
        failed=_failed(shelf),
        rows=tuple(_row(shelf, entry) for entry in page.entries),
        next_after=page.next_after_id,
    )


def _row(shelf: Shelf, entry: Entry) -> Row:
    return Row(
        artifact_id=entry.artifact_id,
        kind=entry.kind.value,
        state=entry.state.value,
        generation=entry.generation,
        size_bytes=entry.size_bytes,
        leases=len(shelf.leases.of_artifact(entry.artifact_id)),
        pinned=entry.pinned,
        kept=entry.keep_resident,
    )


def _failed(shelf: Shelf) -> tuple[FailedRow, ...]:
    entries = shelf.catalog.in_state(ArtifactState.FAILED)
    return tuple(
        FailedRow(e.artifact_id, e.failure.reason, e.failure.message[:MESSAGE_CHARS_MAX])
        for e in heapq.nlargest(FAILED_ROWS_MAX, entries, key=lambda e: e.last_use_order)
        if e.failure is not None
    )


# --- pure parts -------------------------------------------------------------


def after_of(query: str) -> str:
    """Return the ID after which a query asks to go on; "" if it is none."""
    try:
        return check_id(parse_qs(query, max_num_fields=4).get("after", [""])[0])
    except (InvalidId, ValueError):
        return ""


def as_json(status: Status) -> Answer:
    """Return the status for machines."""
    body = json.dumps(dataclasses.asdict(status), indent=1).encode()
    return Answer(HTTPStatus.OK, body, "application/json", HEADERS)


def as_html(status: Status) -> Answer:
    """Return the status for people."""
    body = "".join(
        (
            f"<!DOCTYPE html><html lang=en><meta charset=utf-8><title>warmshelf</title><style>{_STYLE}</style>",
            f"<h1>warmshelfd {escape(status.version)}</h1>",
            _table((), _facts(status)),
            "<h2>Artifacts</h2>",
            _table(
                ("ID", "kind", "state", "generation", "bytes", "leases", "pinned", "kept"), map(_cells, status.rows)
            ),
            _next(status),
            "<h2>Failed</h2>",
            _table(("ID", "reason", "message"), ((row.artifact_id, row.reason, row.message) for row in status.failed)),
            "</html>",
        )
    )
    return Answer(HTTPStatus.OK, body.encode("utf-8", "backslashreplace"), "text/html; charset=utf-8", HEADERS)


def _facts(status: Status) -> Iterable[Sequence[str]]:
    life = "draining" if status.is_draining else "ready" if status.is_ready else "starting"
    yield "state", f"{life}, for {status.uptime_seconds} s"
    yield "arena", f"{status.budget_bytes} bytes in pages of {status.page_size_bytes}"
    yield "of these", _counts(status.arena_bytes)
    yield "page-locked by", f"{status.pinning}; {status.unpinned_bytes} bytes are not locked"
    yield "artifacts", _counts(status.artifacts)
    yield "leases", f"{status.leases} in {status.sessions} sessions"
    waiting = f"{status.loads_waiting} waiting for room"
    yield "loads", f"{status.loads_running} running, {waiting}; {status.callers_waiting} callers wait"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _cells(row: Row) -> Sequence[str]:
    return (
        row.artifact_id,
        row.kind,
        row.state,
        str(row.generation),
        str(row.size_bytes),
        str(row.leases),
        "yes" if row.pinned else "no",
        "yes" if row.kept else "no",
    )


def _next(status: Status) -> str:
    return f'<p><a href="/?after={escape(quote(status.next_after))}">next</a></p>' if status.next_after else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_line("th", head)] if head else []
    return f"<table>{''.join([*lines, *(_line('td', row) for row in rows)])}</table>"


def _line(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
