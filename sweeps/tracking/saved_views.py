"""MLflow's saved views of an experiment's runs: their format, and the URL that opens one.

MLflow's front end stores a saved view as an experiment tag `mlflow.sharedViewState.ID` with the value
`{"name": …, "createdAt": …, "state": "deflate;" + base64(zlib(JSON))}`. A value that is only the state opens the same
way but does not appear in the list of views. The state has the front end's own undocumented fields, so views are only
written for versions that were tested in a browser (`VERIFIED`). For any other version, `fragment` returns a URL with
only the filter and the order, which MLflow has supported since 2.0.

Source: MLflow 3.17.2, `mlflow/server/js/src/experiment-tracking/components`: `experiment-page/models/`,
`experiment-page/hooks/useSharedExperimentViewState.ts`, `experiment-page/utils/savedViewEnvelope.ts` and
`runs-charts/runs-charts.types.ts`.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlencode

VERIFIED = ("3.17",)
"""MLflow versions, major and minor, whose front end opens these views as tested in tests/sweeps/test_browser.py."""

TAG = "mlflow.sharedViewState."
DEFLATE = "deflate;"
MAX_TAG_LENGTH = 5000
"""MLflow's limit for the value of an experiment tag."""

Kind = Literal["metrics", "params", "tags", "attributes"]
FOLDED_SECTIONS = ("dev", "curve", "train", "test", "Model metrics", "System metrics")
"""Sections in which the front end puts charts for metrics without one; the views include them closed."""


@dataclass(frozen=True)
class Column:
    """A column of the table of runs.

    Attributes:
        kind: whether it shows a metric, a parameter, a tag or an attribute of a run.
        name: its name.
        width: in pixels.
    """

    kind: Kind
    name: str
    width: int = 110

    @property
    def key(self) -> str:
        """The front end's name for the column, which is also its sort key."""
        return f"{self.kind}.`{self.name}`"


@dataclass(frozen=True)
class Chart:
    """A metric over optimiser steps, one line per run.

    Attributes:
        section: the heading above it.
        metric: the metric.
        title: its title.
    """

    section: str
    metric: str
    title: str


@dataclass(frozen=True)
class View:
    """A view of an experiment's runs.

    Attributes:
        id: its key in the URL; letters, digits and dashes.
        name: its name in the list of views; "" for a view that only links open.
        filter: the runs it shows, in MLflow's filter language.
        order_by: the column by which they are sorted.
        ascending: whether the lowest value is first.
        columns: the columns of the table, from left to right.
        charts: the charts, in order; a view with charts opens with them, a view without opens with the table.
        group_by: a tag whose equal values are grouped into one row with the means of the runs; "" for none.
        name_width: the width of the run name column, in pixels.
    """

    id: str
    name: str
    filter: str
    order_by: Column
    ascending: bool = False
    columns: tuple[Column, ...] = ()
    charts: tuple[Chart, ...] = ()
    group_by: str = ""
    name_width: int = 220


CHARTS_A_ROW = 2
RUN_NAME = "attributes.`Run Name`"


def is_verified(version: str) -> bool:
    """True if the front end of this version of MLflow opens these views."""
    return ".".join(version.split(".")[:2]) in VERIFIED


def fragment(experiment: str, view: View, version: str, table: bool | None = None) -> str:
    """The part of a view's URL after the server's address: `#/experiments/…`.

    Args:
        experiment: the experiment's id.
        version: the version of the server's MLflow.
        table: whether to show the table instead of the charts; None for the view's own choice.
    """
    is_table = not view.charts if table is None else table
    if is_verified(version):
        return _runs(experiment, is_table, viewStateShareKey=view.id)
    order = {"orderByKey": view.order_by.key, "orderByAsc": json.dumps(view.ascending)}
    return _runs(experiment, is_table, searchFilter=view.filter, **order)


def _runs(experiment: str, is_table: bool, **words: str) -> str:
    mode = {"workflowType": "machine_learning", "compareRunsMode": "TABLE" if is_table else "CHART"}
    return f"#/experiments/{experiment}/runs?{urlencode(mode | words)}"


def run_fragment(experiment: str, run: str, tab: str = "") -> str:
    """The URL of a run's page, or of one of its tabs (`artifacts`, `model-metrics`)."""
    return f"#/experiments/{experiment}/runs/{run}{f'/{tab}' if tab else ''}?workflowType=machine_learning"


def tags_of(views: Sequence[View], created_at: int, version: str) -> dict[str, str]:
    """The experiment's tags that store the views; none for a version of MLflow that is not verified.

    Args:
        created_at: milliseconds since 1970, for the list of views, which shows the newest first.
        version: the version of the server's MLflow.

    Raises:
        ValueError: a view does not fit into a tag.
    """
    if not is_verified(version):
        return {}
    tags = {f"{TAG}{view.id}": _value(view, created_at - place) for place, view in enumerate(views)}
    for key, value in tags.items():
        if len(value) > MAX_TAG_LENGTH:
            raise ValueError(f"{key} is too long for a tag: {len(value)} of {MAX_TAG_LENGTH}.")
    return tags


def _value(view: View, created_at: int) -> str:
    state = compressed(state_of(view))
    return json.dumps({"name": view.name, "createdAt": created_at, "state": state}) if view.name else state


def compressed(state: dict[str, Any]) -> str:
    """A state in the front end's encoding."""
    packed = zlib.compress(json.dumps(state, ensure_ascii=False, separators=(",", ":")).encode(), 9)
    return DEFLATE + base64.b64encode(packed).decode()


def state_of(view: View) -> dict[str, Any]:
    """The front end's state for a view: its runs, their order, and their display."""
    charts, sections = _charts(view)
    shown = {"compareRunCharts": charts, "compareRunSections": sections, "isAccordionReordered": True}
    return {
        "searchFilter": view.filter, "orderByKey": view.order_by.key, "orderByAsc": view.ascending,
        "startTime": "ALL", "lifecycleFilter": "Active", "modelVersionFilter": "All Runs", "datasetsFilter": [],
        "selectedColumns": [column.key for column in view.columns],
        "columnOrder": [RUN_NAME, *(column.key for column in view.columns)],
        "columnWidths": {RUN_NAME: view.name_width} | {column.key: column.width for column in view.columns},
        "runsHiddenMode": "SHOW_ALL", "groupBy": _group(view.group_by), "useGroupedValuesInCharts": True,
        "groupsExpanded": {},
        "hideEmptyCharts": True, "autoRefreshEnabled": True,
        **(shown if charts else {}),
    }  # fmt: skip


def _group(tag: str) -> dict[str, Any] | None:
    keys = [{"mode": "tag", "groupByData": tag}]
    return {"aggregateFunction": "average", "groupByKeys": keys} if tag else None


def _charts(view: View) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The charts of a view and their sections; the last sections are closed, for the charts of all other metrics."""
    named = list(dict.fromkeys(chart.section for chart in view.charts))
    sections = [_section(name, is_open=True) | {"columns": CHARTS_A_ROW} for name in named]
    sections += [_section(name, is_open=False) for name in FOLDED_SECTIONS]
    return [_chart(f"{view.id}-{place}", chart) for place, chart in enumerate(view.charts)], sections


def _section(name: str, is_open: bool) -> dict[str, Any]:
    return {
        "uuid": f"section-{name}", "name": name, "display": is_open, "isReordered": True, "deleted": False,
        "isGenerated": False,
    }  # fmt: skip


def _chart(uuid: str, chart: Chart) -> dict[str, Any]:
    return {
        "uuid": uuid, "metricSectionId": f"section-{chart.section}", "displayName": chart.title, "deleted": False,
        "isGenerated": False, "runsCountToCompare": 100,
        "type": "LINE", "metricKey": chart.metric, "selectedMetricKeys": [chart.metric],
        "xAxisKey": "step", "xAxisScaleType": "linear", "scaleType": "linear", "lineSmoothness": 0,
        "selectedXAxisMetricKey": "", "useGlobalXaxisKey": True, "useGlobalLineSmoothing": True, "yAxisKey": "metric",
        "yAxisExpressions": [], "range": {}, "ignoreOutliers": False,
    }  # fmt: skip
