"""Draws what a run saw: ``python -m soak.figure [FILE] [PICTURE]`` draws it again from its file of evidence."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from kit.evidence import EVIDENCE, ROOT
from soak.plan import WARM_UP

PICTURE = ROOT / "docs" / "figures" / "soak.png"
COLOURS = {"steady": "#1f6feb", "mortal": "#bf8700"}
LABELS = {"steady": "never killed", "mortal": "killed over and over"}
QUIET, PALE, LOST = "#24292f", "#eaeef2", "#ffcecb"
WIDTH_INCHES, HEIGHT_INCHES, DOTS_PER_INCH = 9.6, 8.6, 130

Rows = Sequence[Mapping[str, Any]]


def draw(facts: Mapping[str, Any], path: Path) -> None:
    """Draw a run."""
    figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), dpi=DOTS_PER_INCH)
    figure.set_layout_engine(ConstrainedLayoutEngine(h_pad=0.08))
    axes: Sequence[Axes] = figure.subplots(4, 1, sharex=True)
    samples, quiet = facts["samples"], facts["checkpoints"]
    for axis in axes:
        _background(axis, samples, facts["seconds"])
    _lines(axes[0], samples, "rss_kib", 1024)
    _dots(axes[0], quiet, "rss_kib", 1024)
    axes[0].set_title("Memory that belongs to no file, MiB; dots: at rest", loc="left")
    axes[0].legend(loc="lower right", frameon=False, ncols=2)
    _dots(axes[1], quiet, "fds", 1)
    _dots(axes[1], quiet, "threads", 1, marker="x")
    axes[1].set_title("At rest: files open beside segments (dots), threads (crosses)", loc="left")
    for name, style in (("leases", "-"), ("sessions", ":")):
        _lines(axes[2], samples, name, 1, style)
    axes[2].set_title("Leases (lines) and sessions (dotted); at rest there are none", loc="left")
    _lines(axes[3], samples, "mapped_p50_ms", 1)
    _lines(axes[3], samples, "mapped_p99_ms", 1, ":")
    axes[3].set_yscale("log")
    axes[3].set_title("Mapped acquires of what is resident: p50 and p99 (dotted) of each sample, ms", loc="left")
    axes[3].set_xlabel("minutes; grey: warm-up; red: Redis away")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _background(axis: Axes, samples: Rows, seconds: float) -> None:
    axis.axvspan(0, WARM_UP * seconds / 60, color=PALE, lw=0)
    away = [one["at_seconds"] / 60 for one in samples if one["outage"]]
    for at in away:
        axis.axvline(at, color=LOST, lw=1.5, zorder=0)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlim(0, seconds / 60)


def _lines(axis: Axes, samples: Rows, key: str, unit: float, style: str = "-") -> None:
    for node, colour in COLOURS.items():
        rows = [one for one in samples if one["nodes"].get(node, {}).get(key) is not None]
        at, values = [one["at_seconds"] / 60 for one in rows], [one["nodes"][node][key] / unit for one in rows]
        axis.plot(at, values, style, color=colour, lw=1, label=LABELS[node])


def _dots(axis: Axes, quiet: Rows, key: str, unit: float, marker: str = "o") -> None:
    for node, colour in COLOURS.items():
        at, values = [one["at_seconds"] / 60 for one in quiet], [one["nodes"][node][key] / unit for one in quiet]
        axis.scatter(at, values, s=18, color=colour, marker=marker, zorder=3)


if __name__ == "__main__":
    given = [Path(word) for word in sys.argv[1:]]
    source, picture = [*given, *(EVIDENCE / "soak.json", PICTURE)[len(given) :]]
    draw(json.loads(source.read_text()), picture)
