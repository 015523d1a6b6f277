"""Alerts and recording rules: each metric and label value that they name is one that a daemon has."""

from __future__ import annotations

import re

import promql_parser
import pytest

from kit.chart import ROOT
from kit.expressions import alerts, recorded

RULES = [*alerts().values(), *recorded().values()]
METRICS = (ROOT / "docs" / "metrics.md").read_text()
_NAME = r"(?<![a-z_:])warmshelf_[a-z_]+(?![a-z_:])"
_PARTS = "_(count|bucket)$"


def test_every_metric_of_a_rule_exists() -> None:
    named = {name for rule in RULES for name in re.findall(_NAME, rule["expr"])}
    known = set(re.findall(r"^\| `([a-z_]+)` \|", METRICS, re.MULTILINE))
    assert len(named) > 10
    assert {re.sub(_PARTS, "", name) for name in named} <= known


def test_every_value_of_a_label_exists() -> None:
    seen = 0
    for rule in RULES:
        for metric, label, values in re.findall(rf'({_NAME})\{{([a-z]+)(?:!=|=~|=)"([a-z_|]+)"', rule["expr"]):
            if metric.endswith("_info"):  # what an info says is a text of its own
                continue
            row = next(line for line in METRICS.splitlines() if f"| `{re.sub(_PARTS, '', metric)}` |" in line)
            for value in values.split("|"):
                assert re.search(rf"`{label}`: [^;|]*\b{value}\b", row), f"{metric}: {label}={value}"
                seen += 1
    assert seen > 5


def test_every_alert_says_what_it_means_and_how_bad_it_is() -> None:
    for rule in alerts().values():
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert {"summary", "description", "runbook_url"} == rule["annotations"].keys()


def test_every_expression_is_promql() -> None:
    for rule in RULES:
        promql_parser.parse(rule["expr"])
    with pytest.raises(ValueError, match="unclosed"):
        promql_parser.parse("sum by (instance warmshelf_loads")
