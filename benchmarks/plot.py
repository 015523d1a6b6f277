"""Draws what was measured, from the samples that ``benchmarks.run`` kept.

    python -m benchmarks.plot [DIR] [--out FILE]

The figure of the README unless the samples are of a quick run, whose figure stays beside them.
It measures nothing; a row that was not measured is left out.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.report import Row, Run, Side, amount, read

SAMPLES = Path("build/bench")
FIGURE = Path("docs/figures/bench.png")

OURS, OTHERS, TEXT, PALE = "#1f6feb", "#9aa4af", "#24292f", "#d0d7de"
BAR_INCHES, PANEL_INCHES, WIDTH_INCHES, CAPTION_INCHES = 0.34, 0.95, 9.6, 0.9
CAPTION_COLUMNS = 150
DOTS_PER_INCH = 160
LABEL_ROOM = 4.0
"""How many times the longest bar a logarithmic axis reaches, so that its label has room."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One side of a row, and what it is called here."""

    label: str
    key: str
    ours: bool = True


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars on one axis. ``shares``: each row's ratio instead of a side's time."""

    title: str
    axis: str
    bars: tuple[Bar, ...]
    shares: bool = False


PANELS = (
    Panel(
        "A base of {size}: until every tensor is in memory",
        "time (logarithmic)",
        (
            Bar("warmshelf: resident, mapped", "mapped.acquire"),
            Bar("warmshelf: resident, streamed over TCP", "stream.bare"),
            Bar("warmshelf: cold, huge pages", "cold.huge.ceiling"),
            Bar("warmshelf: cold, 4 KiB pages", "cold.small.ceiling"),
            Bar("warmshelf: cold, .tensors with its hashes, huge pages", "tensors.verified"),
            Bar("tensorizer, best of 1, 2, 4 readers", "cold.huge.tensorizer", ours=False),
            Bar("tensorizer with its hashes, best of 1, 2, 4 readers", "tensors.verified", ours=False),
            Bar("Run:ai Model Streamer, to CPU", "cold.huge.streamer", ours=False),
            Bar("safetensors load_file + clone", "cold.huge.safetensors", ours=False),
        ),
    ),
    Panel(
        "A LoRA adapter of {size}, 420 tensors: until every tensor is in memory",
        "time (logarithmic)",
        (
            Bar("warmshelf: resident, by ID", "adapter.acquire"),
            Bar("warmshelf: evicted, loaded again by ID", "reload.adapter"),
            Bar("peft load_peft_weights + clone", "reload.peft", ours=False),
            Bar("safetensors load_file + clone", "reload.safetensors", ours=False),
        ),
    ),
    Panel(
        "Speed beside a bare program that moves the same bytes and checks nothing",
        "share of the bare program's speed",
        (
            Bar("cold load, huge pages", "cold.huge.ceiling"),
            Bar("cold load, 4 KiB pages", "cold.small.ceiling"),
            Bar("streamed over TCP", "stream.bare"),
        ),
        shares=True,
    ),
)


def draw(rows: Sequence[Row], runs: Sequence[Run]) -> Figure:
    """Return the figure."""
    by_key = {row.key: row for row in rows}
    found = [(panel, [bar for bar in panel.bars if bar.key in by_key]) for panel in PANELS]
    found = [(panel, bars) for panel, bars in found if bars]
    heights = [PANEL_INCHES + BAR_INCHES * len(bars) for _, bars in found]
    layout = ConstrainedLayoutEngine(hspace=0.06)
    figure = Figure(figsize=(WIDTH_INCHES, sum(heights) + CAPTION_INCHES), layout=layout, facecolor="white")
    caption = "\n".join(textwrap.wrap(_caption(runs), CAPTION_COLUMNS))
    figure.supxlabel(caption, x=0.02, ha="left", fontsize=7, color=TEXT)
    axes = figure.subplots(len(found), 1, height_ratios=heights, squeeze=False)
    for (panel, bars), axis in zip(found, axes[:, 0], strict=True):
        _decorate(axis, panel, _title(panel, by_key[bars[0].key]), [bar.label for bar in bars])
        (_draw_shares if panel.shares else _draw_times)(axis, bars, by_key)
    return figure


def _title(panel: Panel, row: Row) -> str:
    size = re.search(r"[\d.,]+ MB", row.name)
    return panel.title.format(size=size[0] if size else "")


def _decorate(axis: Axes, panel: Panel, title: str, labels: Sequence[str]) -> None:
    axis.set_title(title, loc="left", fontsize=10, fontweight="bold", color=TEXT)
    axis.set_xlabel(panel.axis, fontsize=8, color=TEXT)
    axis.set_yticks(range(len(labels)), labels, fontsize=8.5, color=TEXT)
    axis.invert_yaxis()
    axis.tick_params(axis="x", labelsize=8, colors=TEXT)
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color(PALE)
    axis.grid(axis="x", color=PALE, linewidth=0.6)
    axis.set_axisbelow(True)


def _draw_times(axis: Axes, bars: Sequence[Bar], rows: Mapping[str, Row]) -> None:
    sides = [rows[bar.key].ours if bar.ours else rows[bar.key].other for bar in bars]
    values = [side.value for side in sides]
    axis.set_xscale("log")
    axis.barh(range(len(bars)), values, color=_colors(bars), height=0.68)
    axis.errorbar(values, range(len(bars)), xerr=_whiskers(sides), fmt="none", ecolor=TEXT, elinewidth=0.9, capsize=2)
    for at, side in enumerate(sides):
        _write(axis, max(side.samples), at, amount(side))
    axis.set_xlim(min(values) / LABEL_ROOM, max(max(side.samples) for side in sides) * LABEL_ROOM)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: _seconds(seconds)))
    axis.xaxis.set_minor_formatter(NullFormatter())


def _draw_shares(axis: Axes, bars: Sequence[Bar], rows: Mapping[str, Row]) -> None:
    values = [rows[bar.key].ratio for bar in bars]
    axis.barh(range(len(bars)), values, color=_colors(bars), height=0.68)
    axis.axvline(1, color=TEXT, linewidth=0.9, linestyle=":")
    for at, (bar, value) in enumerate(zip(bars, values, strict=True)):
        row = rows[bar.key]
        _write(axis, value, at, f"{value:.0%} ({amount(row.ours)} beside {amount(row.other)})")
    axis.set_xlim(0, max(1.3, max(values) * 1.5))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))


def _whiskers(sides: Sequence[Side]) -> list[list[float]]:
    """Return how far the fastest and the slowest sample are from the median."""
    return [
        [side.value - min(side.samples) for side in sides],
        [max(side.samples) - side.value for side in sides],
    ]


def _write(axis: Axes, x: float, y: int, text: str) -> None:
    axis.annotate(text, (x, y), (5, 0), textcoords="offset points", va="center", fontsize=8.5, color=TEXT)


def _colors(bars: Sequence[Bar]) -> list[str]:
    return [OURS if bar.ours else OTHERS for bar in bars]


def _seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:g} s"
    return f"{seconds * 1e3:g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:g} µs"


def _caption(runs: Sequence[Run]) -> str:
    places = "; ".join(dict.fromkeys(run.place for run in runs))
    quick = "A QUICK RUN ON TINY ARTIFACTS, TELLS NOTHING OF SPEED. " if any(run.quick for run in runs) else ""
    legend = "Bars are medians, whiskers the fastest and the slowest sample; both sides measured in one run."
    return f"{quick}{legend} {places}."


def main() -> int:
    """Read, draw and write."""
    parser = argparse.ArgumentParser(prog="benchmarks.plot", description="Draws what benchmarks.run measured.")
    parser.add_argument("samples", type=Path, nargs="?", default=SAMPLES, help="where benchmarks.run kept them")
    parser.add_argument("--out", type=Path, help=f"the file to write; by default {FIGURE}, or beside quick samples")
    arguments = parser.parse_args()
    rows, runs = read(arguments.samples)
    if not rows:
        print(f"there are no samples in {arguments.samples}: run benchmarks.run first", file=sys.stderr)
        return 1
    quick = any(run.quick for run in runs)
    target: Path = arguments.out or (arguments.samples / "bench.png" if quick else FIGURE)
    target.parent.mkdir(parents=True, exist_ok=True)
    draw(rows, runs).savefig(target, dpi=DOTS_PER_INCH)
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
