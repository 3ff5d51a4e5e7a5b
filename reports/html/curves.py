"""Lines and points of the page's front: tuning curves with their bands, and score against cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meltpoint.reports.formats import title
from meltpoint.reports.statistics.cell_curves import CellCurve, cell_curve
from meltpoint.reports.statistics.cost import Point, pareto, trade_offs
from meltpoint.reports.statistics.tuning_curves import LEVELS, MOST_TRIALS, CurvePoint
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.tasks.core.metrics import gain, limits
from meltpoint.tasks.core.scoring import axis_name, scale, score_text
from meltpoint.tasks.core.wording import some

LINE_POINTS = 60
"""Points of a line; the curve is a step function of the number of trials."""
MOST_NAMED = 4
"""From so many cells on, notes count them."""
MOST_SIMULATED = 64
"""Of more random trials the page counts the first so many: their bands take three seconds, those of 256 a minute."""


@dataclass(frozen=True)
class Chart:
    """A plot of the front.

    Attributes:
        title: of its panel.
        data: what the page's scripts draw.
        text: the same in words, for who cannot see it.
    """

    title: str
    data: dict[str, Any]
    text: str


def tuning_charts(summary: SweepSummary) -> tuple[list[Chart], list[str]]:
    """A chart of tuning curves for each task, and a line for each cell that has none or leaves something out."""
    charts: dict[tuple[str, str], list[CellCurve]] = {}
    notes: dict[str, list[str]] = {}
    for cell in summary.cells:
        name = ".".join(cell.header.key)
        if not cell.search:
            notes.setdefault("no curve: no trial has ended", []).append(name)
            continue
        curve = cell_curve(cell, MOST_SIMULATED)
        lines = [*(curve.valid_words, *curve.notes)]
        if curve.trials.left_out:
            lines.append(f"`meltpoint analyse {summary.name} tuning_curves` counts up to {MOST_TRIALS} of them")
        for line in lines:
            notes.setdefault(line, []).append(name)
        if curve.curve is not None:
            charts.setdefault((cell.header.task, cell.header.metric), []).append(curve)
    several = len({cell.header.encoder for cell in summary.cells}) > 1
    return [_tuning_chart(task, metric, found, several) for (task, metric), found in charts.items()], [
        f"{', '.join(names) if len(names) < MOST_NAMED else some(len(names), 'cell')}: {line}."
        for line, names in notes.items()
    ]  # fmt: skip


def ends(metric: str) -> list[float | None]:
    """The ends of a metric as they are shown; None of an end that it does not have."""
    return [None if abs(end) == float("inf") else scale(metric) * end for end in limits(metric)]


def history_charts(summary: SweepSummary) -> list[Chart]:
    """A chart for each task: dev of each search trial in order, with the best so far of each cell."""
    tasks: dict[tuple[str, str], list[tuple[int, CellSummary]]] = {}
    for place, cell in enumerate(summary.cells):
        if any(one.dev is not None for one in cell.search):
            tasks.setdefault((cell.header.task, cell.header.metric), []).append((place, cell))
    several = len({cell.header.encoder for cell in summary.cells}) > 1
    charts = []
    for (task, metric), cells in tasks.items():
        lines: list[dict[str, Any]] = [
            {"name": _name(cell, several), "mode": cell.header.mode, "place": place, "best": _running_best(cell)}
            for place, cell in cells
        ]
        data = {"lines": lines, "y": f"dev {axis_name(metric)}", "limits": ends(metric), "scale": scale(metric)}
        text = "; ".join(
            f"{line['name']}: best {score_text(line['best'][-1][1], metric)} of {some(len(cell.search), 'trial')}"
            for line, (_, cell) in zip(lines, cells, strict=True)
        )
        charts.append(Chart(f"{task} ({metric})", data, f"Dev score of each trial in order: {text}."))
    return charts


def _running_best(cell: CellSummary) -> list[tuple[int, float]]:
    """(number of the trial, its score) of each trial that is better than all before it, and the last trial's number.

    A stopped trial is no candidate, and so never the best.
    """
    steps: list[tuple[int, float]] = []
    metric = cell.header.metric
    ordered = sorted(cell.search, key=lambda one: one.number)
    for one in ordered:
        better = not steps or (one.dev is not None and gain(metric, one.dev) > gain(metric, steps[-1][1]))
        if one.status == "finished" and one.dev is not None and better:
            steps.append((one.number + 1, one.dev))
    scored = [one.dev for one in ordered if one.dev is not None]
    steps = steps or [(ordered[0].number + 1, scored[0])]
    return [*steps, (ordered[-1].number + 1, steps[-1][1])]


def _name(cell: CellSummary, several: bool) -> str:
    head = cell.header
    return " ".join(part for part in (head.encoder if several else "", title(head.mode), head.variant) if part)


def _tuning_chart(task: str, metric: str, curves: Sequence[CellCurve], several: bool) -> Chart:
    lines = [_line(one, several) for one in curves]
    text = "; ".join(f"{line['name']}: {line['points'][0][1]:.1f} with 1 trial, {line['points'][-1][1]:.1f} with "
                     f"{line['points'][-1][0]:.0f}" for line in lines)  # fmt: skip
    data = {"lines": lines, "x": "random trials", "y": f"dev {axis_name(metric)}", "limits": ends(metric)}
    return Chart(f"{task} ({metric})", data, f"Median best dev score: {text}.")


def _line(one: CellCurve, several: bool) -> dict[str, Any]:
    assert one.curve is not None
    shown = one.curve.at([float(k) for k in np.geomspace(1.0, one.curve.end, LINE_POINTS)])
    head = one.header
    name = " ".join(part for part in (head.encoder if several else "", title(head.mode), head.variant) if part)
    return {
        "name": name, "mode": head.mode,
        "points": [[round(point.trials, 4), round(scale(one.header.metric) * point.median, 4)] for point in shown],
        "bands": [_band(shown, place, scale(one.header.metric)) for place in range(len(LEVELS))],
    }  # fmt: skip


def _band(shown: Sequence[CurvePoint], place: int, factor: float) -> list[list[float]]:
    """(trials, low, high) of the points at which the band says anything."""
    inside = [(point.trials, band) for point in shown if (band := point.bands[place]) is not None]
    return [[round(trials, 4), round(factor * low, 4), round(factor * high, 4)] for trials, (low, high) in inside]


def cost_charts(cells: Sequence[CellSummary]) -> list[Chart]:
    """A chart of score against the seconds of one run for each task."""
    tasks: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for group in trade_offs(cells):
        best = pareto(group.by_run)
        tasks.setdefault((group.task, group.metric), []).append({
            "encoder": group.encoder, "split": group.split,
            "points": [_cost_point(point, point in best) for point in group.by_run],
        })  # fmt: skip
    return [_cost_chart(task, metric, groups) for (task, metric), groups in tasks.items()]


def _cost_point(point: Point, is_best: bool) -> dict[str, Any]:
    name = " ".join([title(point.cell[1]), *point.cell[3:]])
    return {
        "name": name, "mode": point.cell[1], "seconds": max(1e-3, round(point.cost, 4)),
        "score": round(scale(point.metric) * point.score, 4), "pareto": is_best,
    }  # fmt: skip


def _cost_chart(task: str, metric: str, groups: list[dict[str, Any]]) -> Chart:
    text = "; ".join(
        f"{group['encoder']} {point['name']}: {point['score']:.1f} in {point['seconds']:.3g} s"
        for group in groups for point in group["points"]
    )  # fmt: skip
    split = " and ".join(dict.fromkeys(group["split"] for group in groups))
    return Chart(
        f"{task} ({metric}, {split})",
        {"groups": groups, "y": axis_name(metric), "limits": ends(metric)},
        f"Score against seconds of one run: {text}.",
    )
