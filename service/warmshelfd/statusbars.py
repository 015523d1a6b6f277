"""The two bars of the status page, as drawings: what the arena holds, and what a load spent its time on.

Widths are attributes of shapes: a style would be refused by the page's own policy. Pure.
"""

from __future__ import annotations

from html import escape

from warmshelf._sizes import show_size
from warmshelfd.statusrows import EndedRow, PieceRow, Status

_UNITS = 1000
"""Width of a whole bar."""

_LABEL_CHARS_MAX = 80


def arena_bar(status: Status) -> str:
    """Return the arena: every piece in it, in the order of the legend below it."""
    sizes = status.arena_bytes
    whole = max(status.budget_bytes, 1)
    shapes, at = [], 0.0
    more = [
        ("reserved", "promised to loads", sizes["reserved"]),
        ("unnamed", "without a name, still mapped by somebody", sizes["unnamed"]),
    ]
    pieces = [(_class(piece), _label(piece), piece.size_bytes) for piece in status.pieces] + more
    for name, label, size in pieces:
        width = size * _UNITS / whole
        if width > 0:
            shapes.append(_shape(name, at, width, f"{label}: {show_size(size)}"))
            at += width
    words = ", ".join(f"{show_size(size)} {name}" for name, size in sizes.items())
    legend = "".join(f"<span class={name}>{show_size(sizes[name])} {name}</span> " for name in sizes)
    kinds = "<span class=base>base</span> <span class=adapter>adapter</span>"
    return (
        f'<svg class=bar role=img aria-label="Of {show_size(whole)}: {words}" viewBox="0 0 {_UNITS} 40" '
        f"preserveAspectRatio=none>{''.join(shapes)}</svg><p class=legend>{legend}{kinds}"
    )


def phase_bar(row: EndedRow, longest_seconds: float) -> str:
    """Return a load's phases, as long as they took beside the longest load."""
    shapes, at = [], 0.0
    for name, seconds in row.phases:
        width = seconds * _UNITS / max(longest_seconds, 1e-9)
        shapes.append(_shape(name, at, width))
        at += width
    words = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in row.phases)
    return (
        f'<svg class=phases role=img viewBox="0 0 {_UNITS} 16" preserveAspectRatio=none>'
        f"<title>{words}</title>{''.join(shapes)}</svg>"
    )


def _shape(name: str, at: float, width: float, label: str = "") -> str:
    shown = f"<title>{escape(label)}</title>" if label else ""
    return f'<rect class="{name}" x={at:.1f} width={max(width, 0.5):.1f} height=40>{shown}</rect>'


def _class(piece: PieceRow) -> str:
    kind = piece.kind if piece.kind == "adapter" else "base"
    return kind if piece.held else f"{kind} idle"


def _label(piece: PieceRow) -> str:
    held = "held" if piece.held else "idle"
    if piece.artifact_id:
        return f"{piece.artifact_id[:_LABEL_CHARS_MAX]} ({held})"
    return f"{piece.count} more ({held})"
