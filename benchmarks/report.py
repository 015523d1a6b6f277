"""What a benchmark found: rows, and how they are kept and shown. Measures nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: its samples, all taken in the same run as the other's.

    ``unit`` is ``s`` or ``bytes``.
    """

    label: str
    samples: tuple[float, ...]
    unit: str = "s"

    @property
    def value(self) -> float:
        """The median of the samples."""
        return median(self.samples)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report.

    Attributes:
        name: what was measured.
        ours: warmshelf.
        other: what it stands beside: a peer, a ceiling, or a limit.
        ratio: between the two, in the sense of ``reach``.
        reach: what was aimed at, in words.
        reached: whether the ratio is there; None where nothing was aimed at.
        note: what a reader must know besides.
    """

    name: str
    ours: Side
    other: Side
    ratio: float
    reach: str
    reached: bool | None
    note: str = ""


_VERDICTS = {True: "reached", False: "NOT REACHED", None: ""}


def limit(label: str, value: float, unit: str = "s") -> Side:
    """Return a fixed limit as the other side."""
    return Side(label, (value,), unit)


def at_most(name: str, ours: Side, other: Side, times: float, note: str = "") -> Row:
    """Return the row of something that should be at most so many times the other."""
    ratio = ours.value / other.value
    return Row(name, ours, other, ratio, f"at most {times:g} x", ratio <= times, note)


def faster(name: str, ours: Side, other: Side, times: float, note: str = "") -> Row:
    """Return the row of a time that the other's should be so many times as long as."""
    ratio = other.value / ours.value
    return Row(name, ours, other, ratio, f"at least {times:g} x as fast", ratio >= times, note)


def beside(name: str, ours: Side, other: Side) -> Row:
    """Return the row of two times that are only shown beside one another."""
    return Row(name, ours, other, other.value / ours.value, "none: shown only", reached=None)


def best(sides: Iterable[Side]) -> Side:
    """Return the side with the smallest median."""
    return min(sides, key=lambda side: side.value)


def write(path: Path, rows: Sequence[Row], machine: Mapping[str, object], command: str) -> None:
    """Keep the rows with every sample, what machine it was and what was run."""
    found = [{**asdict(row), "ours_value": row.ours.value, "other_value": row.other.value} for row in rows]
    path.write_text(json.dumps({"command": command, "machine": machine, "rows": found}, indent=2) + "\n")


def table(rows: Sequence[Row]) -> Table:
    """Return all rows as a table for people."""
    shown = Table(show_lines=True)
    for name in ("what", "warmshelf", "beside", "ratio", "reach"):
        shown.add_column(name, justify="right" if name in ("warmshelf", "ratio") else "left")
    for row in rows:
        shown.add_row(
            row.name + (f"\n{row.note}" if row.note else ""),
            f"{_amount(row.ours)}\n{row.ours.label}",
            f"{_amount(row.other)}\n{row.other.label}",
            f"{row.ratio:.3g}",
            f"{row.reach}\n{_VERDICTS[row.reached]}",
        )
    return shown


def _amount(side: Side) -> str:
    if side.unit == "bytes":
        return f"{side.value / 1e6:,.1f} MB"
    return f"{side.value * 1000:.3g} ms" if side.value < 1 else f"{side.value:.3g} s"
