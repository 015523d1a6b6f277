"""Alerts of the chart: each metric and label value that they name is one that a daemon has."""

from __future__ import annotations

import re

import promql_parser
import pytest
import yaml

from kit.chart import CHART, ROOT

RULES = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())["groups"][0]["rules"]
METRICS = (ROOT / "docs" / "metrics.md").read_text()


def test_every_metric_of_an_alert_exists() -> None:
    named = {name for rule in RULES for name in re.findall(r"warmshelf_[a-z_]+", rule["expr"])}
    known = set(re.findall(r"^\| `([a-z_]+)` \|", METRICS, re.MULTILINE))
    assert named
    assert {re.sub("_count$", "", name) for name in named} <= known


def test_every_value_of_a_label_exists() -> None:
    for rule in RULES:
        for metric, label, value in re.findall(r'(warmshelf_[a-z_]+)\{([a-z]+)!?="([a-z_]+)"', rule["expr"]):
            row = next(line for line in METRICS.splitlines() if f"| `{re.sub('_count$', '', metric)}` |" in line)
            assert re.search(rf"`{label}`: [^;|]*\b{value}\b", row), f"{metric}: {label}={value}"


def test_every_alert_says_what_it_means_and_how_bad_it_is() -> None:
    for rule in RULES:
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert {"summary", "description"} <= rule["annotations"].keys()


def test_every_expression_is_promql() -> None:
    for rule in RULES:
        promql_parser.parse(rule["expr"])
    with pytest.raises(ValueError, match="unclosed"):
        promql_parser.parse("sum by (instance warmshelf_loads")
