"""The nouns of the status page, and how much of each it has: all of it together stays below 100 KB.

Pure. ``statuspage`` fills them, ``statusview`` draws them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from urllib.parse import parse_qs

from warmshelf.errors import InvalidId
from warmshelf.types import check_id

ROWS_MAX = 200
"""Artifacts on one page; the next are a link away."""

ROWS_BYTES_MAX = 24_000
"""What their rows may take of the page's 100 KB: 59 of the longest IDs there are."""

ROW_BYTES = 150
"""What one takes beside its ID."""

GROUPS_MAX = 24
"""Bases that are shown with how many adapters they have, those with most first."""

LEASES_MAX = 20
"""Leases that are shown, the oldest first: those are what is in the way."""

LOADS_MAX = 12
"""Loads under way that are shown."""

FAILED_MAX = 8
"""Failed artifacts that are shown with their errors, the last used first."""

PIECES_MAX = 40
"""Segments that have a piece of the bar of their own, the largest first."""

FINDINGS_MAX = 12
"""Findings that are shown."""

TENANTS_MAX = 24
"""Tenants that are shown with what they have of the budget, in the order of the configuration."""

MESSAGE_BYTES_MAX = 160
"""How much of an error, a finding or a reason is shown."""

HOLDER_BYTES_MAX = 64
"""How much of a holder's name is shown."""

_MARK_BYTES = 3
"""Of the mark that something is cut off."""


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
class GroupRow:
    """A base, and how many of its adapters are in which state. ``state`` is "" for a base that is not known here."""

    base_id: str
    state: str
    adapters: dict[str, int]


@dataclass(frozen=True, slots=True)
class PieceRow:
    """One segment in the arena. Without an ID it has lost its name, or stands for ``count`` small ones."""

    artifact_id: str
    kind: str
    size_bytes: int
    held: bool
    count: int = 1


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """One lease."""

    artifact_id: str
    generation: int
    holder: str
    age_seconds: int


@dataclass(frozen=True, slots=True)
class LoadRow:
    """One load under way; ``waits`` is why it has no room yet."""

    artifact_id: str
    phase: str
    done_bytes: int
    total_bytes: int
    age_seconds: float
    callers: int
    waits: str


@dataclass(frozen=True, slots=True)
class EndedRow:
    """One load that has ended, with the seconds of each phase."""

    artifact_id: str
    outcome: str
    reason: str
    ago_seconds: float
    phases: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class FailedRow:
    """One artifact whose last load failed, and why."""

    artifact_id: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class FindingRow:
    """What a check of the node found, and what to do about it."""

    check: str
    level: str
    text: str
    advice: str


@dataclass(frozen=True, slots=True)
class TenantRow:
    """One tenant, what it has of the budget, what it can always have, and what at most."""

    tenant: str
    used_bytes: int
    share_bytes: int
    quota_bytes: int


Findings = Callable[[], Sequence[FindingRow]]
"""Gives what is known of the node now; called on the event loop, so it only returns what was found before."""


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
    pieces: tuple[PieceRow, ...]
    artifacts: dict[str, int]
    sessions: int
    leases: int
    lease_rows: tuple[LeaseRow, ...]
    loads_running: int
    loads_waiting: int
    callers_waiting: int
    load_rows: tuple[LoadRow, ...]
    ended: tuple[EndedRow, ...]
    groups: tuple[GroupRow, ...]
    failed: tuple[FailedRow, ...]
    findings: tuple[FindingRow, ...]
    tenants: tuple[TenantRow, ...]
    tenant: str
    base_id: str
    rows: tuple[Row, ...]
    next_after: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a query asks for: the artifacts after an ID, only a base's adapters, a page that stays as it is.

    And of which tenant; "" for what belongs to none.
    """

    after_id: str = ""
    base_id: str = ""
    is_still: bool = False
    tenant: str = ""


def wanted_by(query: str) -> Wanted:
    """Return what a query asks for; what cannot be meant counts as not said."""
    try:
        said = parse_qs(query, max_num_fields=5)
    except ValueError:
        return Wanted()
    return Wanted(_id_in(said, "after"), _id_in(said, "base"), "still" in said, _id_in(said, "tenant"))


def _id_in(said: dict[str, list[str]], name: str) -> str:
    try:
        return check_id(said[name][0])
    except (InvalidId, KeyError):
        return ""


def rows_that_fit(artifact_ids: Iterable[str]) -> int:
    """Return how many artifacts fit into what their rows may take: at least one."""
    ends = accumulate(len(artifact_id) + ROW_BYTES for artifact_id in artifact_ids)
    return max(sum(end <= ROWS_BYTES_MAX for end in ends), 1)


def pieces_of(segments: Sequence[PieceRow]) -> tuple[PieceRow, ...]:
    """Return the pieces of the bar: what is held first, bases before adapters; small ones of a kind as one piece."""
    ordered = sorted(segments, key=lambda one: -one.size_bytes)
    small: dict[tuple[str, bool], list[PieceRow]] = {}
    for one in ordered[PIECES_MAX:]:
        small.setdefault((one.kind, one.held), []).append(one)
    merged = [
        PieceRow("", kind, sum(one.size_bytes for one in some), held, len(some)) for (kind, held), some in small.items()
    ]
    every = [*ordered[:PIECES_MAX], *merged]
    return tuple(sorted(every, key=lambda one: (not one.held, one.kind == "adapter", not one.artifact_id)))


def cut(text: str, bytes_max: int = MESSAGE_BYTES_MAX) -> str:
    """Return as much of a text as takes so many bytes of a page, where some characters take ten."""
    ends = accumulate(map(_bytes_in_page, text))
    count = sum(end <= bytes_max for end in ends)
    return text if count == len(text) else f"{text[: max(count - _MARK_BYTES, 0)]}\u2026"


def _bytes_in_page(character: str) -> int:
    if not character.isprintable():
        return len(character.encode("unicode_escape"))
    return len(escape(character).encode("utf-8", "backslashreplace"))
