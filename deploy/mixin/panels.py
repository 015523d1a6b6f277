"""Panels as warmshelf's dashboards have them: a title, what it means, a unit and queries.

Knows Grafana's builders; knows no metric.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import prometheus as prometheus_models

HEIGHT = 8
"""Of a panel; a dashboard has 24 columns."""

STAT_HEIGHT = 4
STAT_WIDTH = 4
SHOWN_SINCE = "now-3h"
REFRESH = "30s"

CHOSEN = 'job=~"$job",instance=~"$instance"'
"""What every query selects by: the daemons chosen above."""

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_REF_IDS = "ABCDEFGH"
"""What Grafana calls the queries of one panel."""

AnyPanel: TypeAlias = "stat.Panel | timeseries.Panel | heatmap.Panel"


@dataclass(frozen=True, slots=True)
class Query:
    """An expression and what its lines are called."""

    expr: str
    legend: str = "{{instance}}"


def number(title: str, means: str, expr: str, unit: str = "short") -> stat.Panel:
    """Return a panel with one large number for each daemon."""
    return (
        stat.Panel()
        .title(title)
        .description(means)
        .datasource(SOURCE)
        .unit(unit)
        .span(STAT_WIDTH)
        .height(STAT_HEIGHT)
        .graph_mode(common_models.BigValueGraphMode.NONE)
        .color_mode(common_models.BigValueColorMode.NONE)
        .with_target(_target(Query(expr), instant=True))
    )


def lines(
    title: str, means: str, *queries: Query, unit: str = "short", width: int = 8, stack: bool = False
) -> AnyPanel:
    """Return a panel of lines over time, or of areas on top of each other."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(means)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .span(width)
        .height(HEIGHT)
        .legend(
            common.VizLegendOptions()
            .display_mode(common_models.LegendDisplayMode.LIST)
            .placement(common_models.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI))
    )
    if stack:
        panel = panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL)).fill_opacity(30)
    for place, query in enumerate(queries):
        panel = panel.with_target(_target(query, ref_id=_REF_IDS[place]))
    return panel


def buckets(title: str, means: str, expr: str, width: int = 12) -> heatmap.Panel:
    """Return a heat map of a histogram of seconds: ``expr`` is its increase by ``le``."""
    target = _target(Query(expr, "{{le}}"), exemplar=True).format(prometheus_models.PromQueryFormat.HEATMAP)
    return (
        heatmap.Panel()
        .title(title)
        .description(means)
        .datasource(SOURCE)
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit("s"))
        .span(width)
        .height(HEIGHT)
        .with_target(target)
    )


def _target(
    query: Query, *, ref_id: str = _REF_IDS[0], instant: bool = False, exemplar: bool = False
) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).datasource(SOURCE).ref_id(ref_id)
    target = target.instant() if instant else target.range()
    return target.exemplar(True) if exemplar else target


def board(uid: str, title: str, means: str, rows: list[tuple[str, list[AnyPanel]]]) -> models.Dashboard:
    """Return a dashboard of rows, with a choice of data source and daemons."""
    built = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(means)
        .tags(["warmshelf"])
        .readonly()
        .refresh(REFRESH)
        .time(SHOWN_SINCE, "now")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_choice("job", "Job", "label_values(warmshelf_build_info, job)"))
        .with_variable(_choice("instance", "Daemon", 'label_values(warmshelf_build_info{job=~"$job"}, instance)'))
    )
    numbers = count(1)
    for name, panels in rows:
        built = built.with_row(dashboard.Row(name).id(next(numbers)))
        for panel in panels:
            built = built.with_panel(panel.id(next(numbers)))
    return built.build()


def _choice(name: str, label: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(SOURCE)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .include_all(True)
        .all_value(".*")
        .multi(True)
        .current(models.VariableOption(text="All", value="$__all", selected=True))
    )
