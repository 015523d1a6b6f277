"""How the status page looks: HTML without a script, for a browser that is allowed to do nothing but show it.

All text in it may come from strangers, so every piece is escaped, and what could turn a
line around is spelled out. Pure; knows neither the daemon nor an HTTP server.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from html import escape
from http import HTTPStatus
from urllib.parse import quote

from warmshelf._sizes import show_size
from warmshelfd.http import Answer
from warmshelfd.statusbars import arena_bar, phase_bar
from warmshelfd.statusrows import (
    FAILED_MAX,
    GROUPS_MAX,
    LEASES_MAX,
    LOADS_MAX,
    EndedRow,
    GroupRow,
    LoadRow,
    Row,
    Status,
    Wanted,
)
from warmshelfd.statusstyle import STYLE

LOADING_SECONDS, IDLE_SECONDS = 2, 10
"""How often a page that is looked at is asked for again, while something loads and otherwise."""

_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()

HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
"""Nothing may be loaded, run, sent or framed; the page's one style is known by its hash."""

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def as_json(status: Status, _wanted: Wanted) -> Answer:
    """Return the status for machines."""
    body = json.dumps(dataclasses.asdict(status), indent=1).encode()
    return Answer(HTTPStatus.OK, body, "application/json", HEADERS)


def as_html(status: Status, wanted: Wanted) -> Answer:
    """Return the status for people; it comes again by itself, unless a still page is wanted."""
    seconds = LOADING_SECONDS if status.load_rows else IDLE_SECONDS
    refresh = {} if wanted.is_still else {"Refresh": str(seconds)}
    body = page(status, wanted, seconds).encode("utf-8", "backslashreplace")
    return Answer(HTTPStatus.OK, body, "text/html; charset=utf-8", HEADERS | refresh)


def page(status: Status, wanted: Wanted, seconds: int) -> str:
    """Return the whole page."""
    life = "draining" if status.is_draining else "ready" if status.is_ready else "starting"
    parts = (
        "<!DOCTYPE html><html lang=en><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width,initial-scale=1">',
        f"<title>warmshelf: {life}</title><style>{STYLE}</style>",
        "<a class=skip href=#artifacts>Skip to the artifacts</a>",
        f"<header><h1>warmshelfd {text(status.version)} {badge(life)}</h1>",
        f"<p>for {span(status.uptime_seconds)}. {_again(wanted, seconds)}</header><main>",
        _findings(status),
        _tenants(status, wanted),
        _arena(status),
        _loads(status),
        _bases(status),
        _leases(status),
        _ended(status.ended),
        _failed(status),
        _artifacts(status, wanted),
        "</main></html>",
    )
    return "".join(parts)


# --- words ------------------------------------------------------------------


def text(words: object) -> str:
    """Return text as HTML; characters that are not seen, or turn the line around, by their numbers."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(words))
    return escape(shown)


def span(seconds: float) -> str:
    """Return a time for people."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds / _HOUR:.0f} h" if seconds < 2 * _DAY else f"{seconds / _DAY:.0f} days"


def badge(word: str) -> str:
    """Return a word with a mark of its colour."""
    return f'<span class="badge {text(word)}">{text(word)}</span>' if word else ""


def link(wanted: Wanted, words: str, target: str = "") -> str:
    """Return a link to another part of the page; ``words`` are HTML."""
    said = [("tenant", wanted.tenant), ("after", wanted.after_id), ("base", wanted.base_id)]
    said += [("still", "1")] if wanted.is_still else []
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in said if value)
    return f'<a href="{escape(f"/?{query}" if query else "/")}{target}">{words}</a>'


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose cells are HTML, in a frame that scrolls by itself; numbers stand right."""
    names = "".join(f"<th scope=col>{name}" for name in head)
    lines = "".join(f"<tr>{''.join(f'<td>{cell}' for cell in row)}" for row in rows)
    return (
        f'<div class=scroll role=region tabindex=0 aria-label="{title}"><table><thead><tr>{names}'
        f"<tbody>{lines}</table></div>"
    )


def section(name: str, title: str, body: str, more: str = "") -> str:
    """Return a part of the page; ``more`` stands beside its title."""
    beside = f" <small>{more}</small>" if more else ""
    return f"<section aria-labelledby={name}><h2 id={name}>{title}{beside}</h2>{body}</section>"


def _of(shown: int, total: int, limit: int) -> str:
    return f"{shown} of {total}" if total > limit else str(total)


# --- parts ------------------------------------------------------------------


def _again(wanted: Wanted, seconds: int) -> str:
    if wanted.is_still:
        return f"This page stays as it is. {link(dataclasses.replace(wanted, is_still=False), 'Go on')}"
    return f"Shown anew every {seconds} s. {link(dataclasses.replace(wanted, is_still=True), 'Stop that')}"


def _findings(status: Status) -> str:
    if not status.findings:
        return ""
    rows = [(badge(f.level), text(f.check), text(f.text), text(f.advice)) for f in status.findings]
    return section("findings", "Findings of doctor", table("findings", ("level", "check", "found", "advice"), rows))


def _tenants(status: Status, wanted: Wanted) -> str:
    if not status.tenants:
        return ""
    rows = [
        (_tenant(row.tenant, wanted), *map(show_size, (row.used_bytes, row.share_bytes, row.quota_bytes)))
        for row in status.tenants
    ]
    rows.append((_tenant("", wanted), "", "", ""))
    return section("tenants", "Tenants", table("tenants", ("tenant", "has", "share", "quota"), rows))


def _tenant(tenant: str, wanted: Wanted) -> str:
    """Return a link to what belongs to a tenant, or its name where that is what is shown."""
    name = text(tenant) or "<i>none</i>"
    return f"<b>{name}</b>" if tenant == wanted.tenant else link(Wanted(is_still=wanted.is_still, tenant=tenant), name)


def _arena(status: Status) -> str:
    counts = status.artifacts
    facts = (
        ("budget", f"{show_size(status.budget_bytes)}, in pages of {show_size(status.page_size_bytes)}"),
        ("page-locked", _pinning(status)),
        ("artifacts", ", ".join(f"{count} {text(name)}" for name, count in counts.items() if count) or "none"),
        ("leases", f"{status.leases} in {status.sessions} sessions"),
    )
    listed = "".join(f"<div><dt>{name}<dd>{value}</div>" for name, value in facts)
    return section("arena", "Arena", f"{arena_bar(status)}<dl>{listed}</dl>")


def _pinning(status: Status) -> str:
    if status.unpinned_bytes:
        return f"{text(status.pinning)}; {show_size(status.unpinned_bytes)} are not"
    return text(status.pinning)


def _loads(status: Status) -> str:
    total = status.loads_running + status.loads_waiting
    more = f"waiting for room: {status.loads_waiting}; callers: {status.callers_waiting}" if total else ""
    if not total:
        return section("loads", "Loads", "<p>Nothing is being loaded.")
    rows = table("loads", ("ID", "phase", "progress", "for", "callers"), map(_load, status.load_rows))
    return section("loads", f"Loads: {_of(len(status.load_rows), total, LOADS_MAX)}", rows, more)


def _load(row: LoadRow) -> Sequence[str]:
    done = ""
    if row.total_bytes:
        done = (
            f'<progress value={min(row.done_bytes, row.total_bytes)} max={row.total_bytes} aria-label="bytes">'
            f"</progress> {show_size(row.done_bytes)} of {show_size(row.total_bytes)}"
        )
    return text(row.artifact_id), text(row.phase), text(row.waits) or done, span(row.age_seconds), str(row.callers)


def _bases(status: Status) -> str:
    if not status.groups:
        return section("bases", "Bases and their adapters", "<p>No artifact is registered.")
    rows = table(
        "bases", ("base", "state", "adapters", "by state"), [_group(row, status.tenant) for row in status.groups]
    )
    more = f"the {GROUPS_MAX} with most adapters" if len(status.groups) == GROUPS_MAX else ""
    return section("bases", "Bases and their adapters", rows, more)


def _group(row: GroupRow, tenant: str) -> Sequence[str]:
    total = sum(row.adapters.values())
    name = "<i>no base is named</i>"
    if row.base_id:
        wanted = Wanted(base_id=row.base_id, tenant=tenant)
        name = link(wanted, text(row.base_id), "#artifacts") if total else text(row.base_id)
    state = badge(row.state) or ("not known here" if row.base_id else "")
    return name, state, str(total), ", ".join(f"{count} {text(name)}" for name, count in row.adapters.items())


def _leases(status: Status) -> str:
    if not status.leases:
        return section("leases", "Leases", "<p>Nobody holds a lease.")
    rows = [
        (text(row.artifact_id), str(row.generation), f"<bdi>{text(row.holder)}</bdi>", span(row.age_seconds))
        for row in status.lease_rows
    ]
    title = f"Leases: {_of(len(rows), status.leases, LEASES_MAX)}"
    return section("leases", title, table("leases", ("ID", "generation", "holder", "for"), rows), "the oldest first")


def _ended(ended: Sequence[EndedRow]) -> str:
    if not ended:
        return ""
    longest = max(sum(seconds for _, seconds in row.phases) for row in ended)
    rows = [
        (
            text(row.artifact_id),
            badge(row.outcome) + (f" {text(row.reason)}" if row.reason else ""),
            phase_bar(row, longest),
            span(sum(seconds for _, seconds in row.phases)),
            f"{span(row.ago_seconds)} ago",
        )
        for row in ended
    ]
    names = "".join(
        f"<span class={name}>{name}</span> " for name in ("inspect", "reserve", "read", "verify", "seal", "pin")
    )
    head = ("ID", "outcome", "phases", "took", "ended")
    return section("ended", "Last loads", f"{table('last loads', head, rows)}<p class=legend>{names}", "by phase")


def _failed(status: Status) -> str:
    if not status.failed:
        return ""
    rows = [(text(r.artifact_id), text(r.reason), f"<bdi>{text(r.message)}</bdi>") for r in status.failed]
    total = status.artifacts.get("failed", 0)
    title = f"Failed: {_of(len(rows), total, FAILED_MAX)}"
    return section("failed", title, table("failed", ("ID", "reason", "message"), rows))


def _artifacts(status: Status, wanted: Wanted) -> str:
    head = ("ID", "kind", "state", "generation", "size", "leases", "pinned", "kept")
    body = table("artifacts", head, map(_row, status.rows)) if status.rows else "<p>None."
    ways = []
    if status.next_after:
        ways.append(link(dataclasses.replace(wanted, after_id=status.next_after), "next", "#artifacts"))
    if wanted.after_id or wanted.base_id:
        ways.append(link(Wanted(is_still=wanted.is_still, tenant=wanted.tenant), "all, from the first"))
    of_base = f"of base {text(wanted.base_id)}" if wanted.base_id else ""
    return section("artifacts", "Artifacts", f"{body}<nav aria-label=pages>{' '.join(ways)}</nav>", of_base)


def _row(row: Row) -> Sequence[str]:
    size = show_size(row.size_bytes) if row.size_bytes else ""
    marks = ("yes" if row.pinned else "", "yes" if row.kept else "")
    return text(row.artifact_id), row.kind, badge(row.state), str(row.generation), size, str(row.leases or ""), *marks
