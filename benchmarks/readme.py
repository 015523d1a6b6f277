"""Prints the README's figures from the samples that ``benchmarks.run`` kept, or puts them in their place.

    python -m benchmarks.readme [DIR] [--write README.md]

Measures nothing. What stands between the two marks in the file is replaced.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.plot import FIGURE, SAMPLES
from benchmarks.report import Row, Run, amount, read

BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"
_VERDICTS = {True: "", False: ": **missed**", None: ""}


def figures(rows: Sequence[Row], runs: Sequence[Run]) -> str:
    """Return the picture, the table, and what was run where."""
    lines = [f"![Times beside peers]({FIGURE})", ""]
    lines += ["| what | warmshelf | beside | ratio | aimed at |", "|---|---:|---|---:|---|"]
    lines += map(_line, rows)
    for place in dict.fromkeys(run.place for run in runs):
        lines += ["", f"Measured on: {place}."]
    commands = dict.fromkeys(f"`{run.command}`" for run in runs)
    return "\n".join([*lines, "", f"By {', '.join(commands)}; printed by `python -m benchmarks.readme`.", ""])


def _line(row: Row) -> str:
    what = row.name + (f" ({row.note})" if row.note else "")
    beside = f"{amount(row.other)}, {row.other.label}"
    reach = "" if row.reached is None else row.reach + _VERDICTS[row.reached]
    return f"| {' | '.join((what, amount(row.ours), beside, f'{row.ratio:.3g}', reach))} |"


def put(text: str, part: str) -> str:
    """Return the text with the part between the marks.

    Raises:
        ValueError: a mark is missing.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"there is no {BEGIN.strip()} followed by {END.strip()}")
    return f"{before}{BEGIN}\n{part}\n{END}{after}"


def main() -> int:
    """Read, and print or write."""
    parser = argparse.ArgumentParser(prog="benchmarks.readme", description="Prints the README's figures.")
    parser.add_argument("samples", type=Path, nargs="?", default=SAMPLES, help="where benchmarks.run kept them")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put them into this file, between its marks")
    arguments = parser.parse_args()
    rows, runs = read(arguments.samples)
    if not rows:
        print(f"there are no samples in {arguments.samples}: run benchmarks.run first", file=sys.stderr)
        return 1
    part = figures(rows, runs)
    if arguments.write is None:
        print(part, end="")
        return 0
    if any(run.quick for run in runs):
        print("samples of a quick run tell nothing of speed: not written", file=sys.stderr)
        return 1
    arguments.write.write_text(put(arguments.write.read_text(encoding="utf-8"), part), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
