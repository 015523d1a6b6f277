"""Dashboards and rules as files: current, whole, and each alert shown firing and not firing by promtool."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from kit.chart import ROOT, find, render
from kit.expressions import alerts, panels, queries, recorded, resolved
from kit.prometheus import DASHBOARDS, RULES, promtool

TESTS = RULES.parent / "tests.yaml"
UNITS = {"short", "s", "bytes", "Bps", "ops", "percentunit"}
COLUMNS = 24


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Grafana's builder has typing.Self, which is of Python 3.11")
def test_the_dashboards_are_what_their_program_makes() -> None:
    done = subprocess.run(
        [sys.executable, RULES.parent, "--check"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_can_be_used_anywhere(path: Path) -> None:
    board = json.loads(path.read_text())
    assert board["uid"] == path.stem
    variables = {one["name"]: one for one in board["templating"]["list"]}
    assert list(variables) == ["datasource", "job", "instance"]
    assert {variables[name]["datasource"]["uid"] for name in ("job", "instance")} == {"${datasource}"}
    numbers = [one["id"] for one in board["panels"]]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    for panel in panels(board):
        assert panel["title"], panel
        assert panel["description"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        if panel["type"] != "heatmap":  # its axis has a unit of its own
            assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert [one["refId"] for one in panel["targets"]] == list("ABCDEFGH"[: len(panel["targets"])])
    heat = [one for one in panels(board) if one["type"] == "heatmap"]
    assert all(one["targets"][0]["format"] == "heatmap" and one["targets"][0]["exemplar"] for one in heat)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_no_panel_covers_another(path: Path) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in json.loads(path.read_text())["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert x < COLUMNS
                assert (x, y) not in taken, f"{panel['title']} covers {taken[x, y]}"
                taken[x, y] = panel["title"]


def test_every_query_selects_the_chosen_daemons_and_is_promql() -> None:
    found = [query for path in DASHBOARDS for query in queries(path)]
    assert len(found) > 50
    for query in found:
        promql_parser.parse(resolved(query))
        for selector in re.findall(r"\b(?:warmshelf_|grpc_server_|process_|instance)[a-z_:0-9]*\b(?![(:])", query):
            if selector != "instance":
                assert f'{selector}{{job=~"$job",instance=~"$instance"' in query, query


def test_promtool_takes_the_rules() -> None:
    status, said = promtool("check", "rules", "--lint-fatal", str(RULES))
    assert (status, f"{len(alerts()) + len(recorded())} rules found" in said) == (0, True), said


def test_each_alert_fires_for_a_sick_daemon_and_not_for_one_that_is_well() -> None:
    assert promtool("test", "rules", str(TESTS))[0] == 0
    groups = {group["name"]: group for group in yaml.safe_load(TESTS.read_text())["tests"] if group["name"] != "texts"}
    assert groups.keys() == alerts().keys()
    for name, group in groups.items():
        early, late = group["promql_expr_test"]
        assert name in early["expr"] and name in late["expr"]  # noqa: PT018
        assert (early["exp_samples"], late["exp_samples"][0]["labels"]) == ([], '{instance="sick"}')
        assert any('instance="well"' in series["series"] for series in group["input_series"])


@pytest.mark.parametrize("wrong", ["vector(1) > 2", 'label_replace(vector(1), "instance", "well", "", "")'])
def test_an_alert_that_never_or_always_fires_is_found(tmp_path: Path, wrong: str) -> None:
    rules = yaml.safe_load(RULES.read_text())
    for rule in rules["groups"][1]["rules"]:
        rule["expr"] = wrong
        rule.pop("for", None)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    shutil.copy(TESTS, tmp_path)
    status, said = promtool("test", "rules", str(tmp_path / "tests.yaml"))
    assert status == 1
    assert {name for name in alerts() if f'alertname=\\"{name}\\"' in said or f'alertname="{name}"' in said} == set(
        alerts()
    )


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    sections = re.findall(r"^## (.*)$", (ROOT / "docs" / "runbooks.md").read_text(), re.MULTILINE)
    assert sections == list(alerts())
    for name, rule in alerts().items():
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{name.lower()}"


def test_the_chart_renders_these_very_rules_and_dashboards() -> None:
    base = {"prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}}
    manifests = render(base)
    assert find(manifests, "PrometheusRule")["spec"] == yaml.safe_load(RULES.read_text())
    data = find(manifests, "ConfigMap", "warmshelf-dashboards")["data"]
    assert {name: json.loads(text) for name, text in data.items()} == {
        path.name: json.loads(path.read_text()) for path in DASHBOARDS
    }


def test_the_charts_alerts_link_to_where_the_runbooks_are_served() -> None:
    rule = render({"prometheusRule": {"enabled": True, "runbooks": "https://wiki.local/shelf"}})
    rendered: list[dict[str, Any]] = find(rule, "PrometheusRule")["spec"]["groups"][1]["rules"]
    assert rendered[0]["annotations"]["runbook_url"] == "https://wiki.local/shelf#warmshelfdown"
