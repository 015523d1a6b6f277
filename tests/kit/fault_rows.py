"""The catalogue of faults in ``tests/faults/rows.toml``: its rows, and which of the named tests there are.

Tests are looked for as pytest collects them, in the text of their files: importing every
test of the project to find a name would take longer than all that looks for it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "tests" / "faults" / "rows.toml"

NOT_HAD = "not had"
TIERS = {
    "every change": "every change",
    "nightly": "each night",
    NOT_HAD: "not had",
}
"""Each tier as the documents call it."""

SECTIONS = {
    "D": "The daemon's death",
    "W": "Workers",
    "R": "Redis",
    "S": "Sources",
    "M": "Memory",
    "Z": "Clocks and credentials",
    "N": "Network",
    "C": "At once",
}


@dataclass(frozen=True)
class Row:
    """One fault.

    Attributes:
        what: the fault.
        holds: what is so all the same.
        tier: a key of ``TIERS``.
        tests: as pytest names them, without parameters.
        failpoints: patterns of the failpoints that bring it about.
        why: what is to be said of it beside; of what was not had, the reason.
    """

    id: str
    what: str
    holds: str
    tier: str
    tests: tuple[str, ...]
    failpoints: tuple[str, ...] = ()
    why: str = ""


def rows() -> list[Row]:
    """Return the rows in their order."""
    return [
        Row(key, row.pop("what"), row.pop("holds"), row.pop("tier"), tuple(row.pop("tests")), *_rest(row))
        for key, row in tomllib.loads(ROWS.read_text()).items()
    ]


def _rest(row: dict[str, object]) -> tuple[tuple[str, ...], str]:
    failpoints, why = row.pop("failpoints", []), row.pop("why", "")
    assert not row, f"unknown keys of a row: {sorted(row)}"
    assert isinstance(failpoints, list)
    return tuple(failpoints), str(why)


@cache
def tests_of(file: str) -> dict[str, bool]:
    """Return the tests of a file by their names behind its path, and whether each runs by night only."""
    tree = ast.parse((ROOT / file).read_text())
    marks = [node.value for node in tree.body if isinstance(node, ast.Assign) and _is_called(node, "pytestmark")]
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = _is_nightly([*node.decorator_list, *marks])
        elif isinstance(node, ast.ClassDef):
            own = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            for one in own:
                found[f"{node.name}::{one.name}"] = _is_nightly(
                    [*one.decorator_list, *node.decorator_list, *marks],
                )
    return {name: nightly for name, nightly in found.items() if name.split("::")[-1].startswith("test_")}


def is_nightly(test: str) -> bool | None:
    """Say whether a test runs by night only; None if there is no such test."""
    file, _, name = test.partition("::")
    is_file = file.startswith("tests/") and Path(file).name.startswith("test_") and (ROOT / file).is_file()
    return tests_of(file).get(name) if is_file else None


def _is_called(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)


def _is_nightly(marks: list[ast.expr]) -> bool:
    return any("pytest.mark.nightly" in ast.unparse(mark) for mark in marks)


def table(section: str) -> str:
    """Return the rows of a section as a table for people."""
    lines = ["| | fault | what is so all the same | shown at | by |", "|---|---|---|---|---|"]
    lines += [
        f"| {row.id} | {row.what} | {row.holds} | {TIERS[row.tier]} | {_shown(row)} |"
        for row in rows()
        if row.id[0] == section
    ]
    return "\n".join(lines)


def _shown(row: Row) -> str:
    by_file: dict[str, list[str]] = {}
    for test in row.tests:
        file, _, name = test.partition("::")
        by_file.setdefault(file, []).append(name.rpartition("::")[2].removeprefix("test_").replace("_", " "))
    parts = [f"{'; '.join(names)} (`{file}`)" for file, names in by_file.items()]
    return ". ".join([*parts, *([row.why] if row.why else [])])
