"""The expressions of deploy/mixin, and what they are made of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import yaml

from kit.prometheus import RULES

COMPARISONS = {">", "<", ">=", "<=", "==", "!="}
VARIABLES = {"$job": ".*", "$instance": ".*", "$__rate_interval": "1m", "$__interval": "1m"}


def _rules(kind: str) -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule[kind]: rule for group in groups for rule in group["rules"] if kind in rule}


def alerts() -> dict[str, dict[str, Any]]:
    """Return every alert by its name, in the order of the file."""
    return _rules("alert")


def recorded() -> dict[str, dict[str, Any]]:
    """Return every recording rule by its name."""
    return _rules("record")


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in board["panels"] if one["type"] != "row"]


def queries(path: Path) -> list[str]:
    """Return every expression of a dashboard, as it stands there."""
    return [target["expr"] for panel in panels(json.loads(path.read_text())) for target in panel["targets"]]


def resolved(query: str) -> str:
    """Return an expression with values for the variables that Grafana has."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query


def compared(expr: str) -> Iterator[str]:
    """Yield what an alert compares: each part returns data on a daemon that is well, where the whole returns none."""
    yield from _compared(promql_parser.parse(expr))


def _compared(part: Any) -> Iterator[str]:
    if isinstance(part, promql_parser.ParenExpr):
        yield from _compared(part.expr)
    elif isinstance(part, promql_parser.BinaryExpr) and str(part.op) in {*COMPARISONS, "and"}:
        for side in (part.lhs, part.rhs):
            if not isinstance(side, promql_parser.NumberLiteral):
                yield from _compared(side)
    else:
        yield part.prettify()
