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
from meltpoint.tasks.core.score_text import axis_name, scale

LINE_POINTS = 60
"""Points of a line; the curve is a step function of the number of trials."""
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
    notes = []
    for cell in summary.cells:
        name = ".".join(cell.header.key)
        if not cell.search:
            notes.append(f"{name}: no curve: no trial has ended.")
            continue
        curve = cell_curve(cell, MOST_SIMULATED)
        notes += [f"{name}: {line}." for line in (curve.valid_words, *curve.notes)]
        if curve.trials.left_out:
            command = f"meltpoint analyse {summary.name} tuning_curves"
            notes.append(f"{name}: `{command}` counts up to {MOST_TRIALS} of them.")
        if curve.curve is not None:
            charts.setdefault((cell.header.task, cell.header.metric), []).append(curve)
    several = len({cell.header.encoder for cell in summary.cells}) > 1
    return [_tuning_chart(task, metric, found, several) for (task, metric), found in charts.items()], notes


def _tuning_chart(task: str, metric: str, curves: Sequence[CellCurve], several: bool) -> Chart:
    lines = [_line(one, several) for one in curves]
    text = "; ".join(f"{line['name']}: {line['points'][0][1]:.1f} with 1 trial, {line['points'][-1][1]:.1f} with "
                     f"{line['points'][-1][0]:.0f}" for line in lines)  # fmt: skip
    data = {"lines": lines, "x": "random trials", "y": f"dev {axis_name(metric)}", "log": True}
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
        {"groups": groups, "y": axis_name(metric)},
        f"Score against seconds of one run: {text}.",
    )
