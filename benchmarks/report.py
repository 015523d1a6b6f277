"""What a benchmark found: rows, how they are kept, read again and shown. Measures nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: its samples, all taken in the same run as the other's.

    ``unit`` is ``s``, ``bytes`` or ``loads``.
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
        key: its name for programs; stays the same when sizes and words change.
        name: what was measured.
        ours: warmshelf.
        other: what it stands beside: a peer, a ceiling, or a limit.
        ratio: between the two, in the sense of ``reach``.
        reach: what was aimed at, in words.
        reached: whether the ratio is there; None where nothing was aimed at.
        note: what a reader must know besides.
    """

    key: str
    name: str
    ours: Side
    other: Side
    ratio: float
    reach: str
    reached: bool | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """What was run, and where.

    Attributes:
        command: to type again.
        machine: what it was measured on.
        quick: on tiny artifacts: tells nothing of speed.
    """

    command: str
    machine: Mapping[str, object]
    quick: bool

    @property
    def place(self) -> str:
        """The machine in a line."""
        return ", ".join(f"{key} {value}" for key, value in self.machine.items())


_VERDICTS = {True: "reached", False: "NOT REACHED", None: ""}


def limit(label: str, value: float, unit: str = "s") -> Side:
    """Return a fixed limit as the other side."""
    return Side(label, (value,), unit)


def at_most(key: str, name: str, ours: Side, other: Side, times: float = 1, note: str = "") -> Row:
    """Return the row of something that should be at most so many times the other."""
    ratio = ours.value / other.value
    return Row(key, name, ours, other, ratio, f"at most {times:g} x", ratio <= times, note)


def faster(key: str, name: str, ours: Side, other: Side, times: float, note: str = "") -> Row:
    """Return the row of a time that the other's should be so many times as long as."""
    ratio = other.value / ours.value
    return Row(key, name, ours, other, ratio, f"at least {times:g} x as fast", ratio >= times, note)


def beside(key: str, name: str, ours: Side, other: Side, note: str = "") -> Row:
    """Return the row of two times that are only shown beside one another."""
    return Row(key, name, ours, other, other.value / ours.value, "none: shown only", None, note)


def p99(seconds: Sequence[float]) -> float:
    """Return what 99 of 100 stay below."""
    return quantiles(seconds, n=100, method="inclusive")[98]


def best(sides: Iterable[Side]) -> Side:
    """Return the side with the smallest median."""
    return min(sides, key=lambda side: side.value)


def write(path: Path, rows: Sequence[Row], run: Run) -> None:
    """Keep the rows with every sample, and the run."""
    found = [{**asdict(row), "ours_value": row.ours.value, "other_value": row.other.value} for row in rows]
    path.write_text(json.dumps({**asdict(run), "rows": found}, indent=2) + "\n", encoding="utf-8")


def read(directory: Path) -> tuple[list[Row], list[Run]]:
    """Return the rows that are kept in a directory, and the runs that they are from."""
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(directory.glob("*.json"))]
    runs = [Run(found["command"], found["machine"], found["quick"]) for found in kept]
    return [_row(found) for file in kept for found in file["rows"]], runs


def _row(found: dict[str, Any]) -> Row:
    sides = {name: Side(**{**found[name], "samples": tuple(found[name]["samples"])}) for name in ("ours", "other")}
    plain = {name: value for name, value in found.items() if name not in ("ours_value", "other_value")}
    return Row(**{**plain, **sides})


def table(rows: Sequence[Row]) -> Table:
    """Return all rows as a table for people."""
    shown = Table(show_lines=True)
    for name in ("what", "warmshelf", "beside", "ratio", "reach"):
        shown.add_column(name, justify="right" if name in ("warmshelf", "ratio") else "left")
    for row in rows:
        shown.add_row(
            row.name + (f"\n{row.note}" if row.note else ""),
            f"{amount(row.ours)}\n{row.ours.label}",
            f"{amount(row.other)}\n{row.other.label}",
            f"{row.ratio:.3g}",
            f"{row.reach}\n{_VERDICTS[row.reached]}",
        )
    return shown


_MEGABYTE = 1e6


def amount(side: Side) -> str:
    """Return the median for people."""
    if side.unit == "bytes" and side.value >= _MEGABYTE:
        return f"{side.value / _MEGABYTE:,.1f} MB"
    if side.unit != "s":
        return f"{side.value:,g} {side.unit}"
    return f"{side.value * 1000:.3g} ms" if side.value < 1 else f"{side.value:.3g} s"
