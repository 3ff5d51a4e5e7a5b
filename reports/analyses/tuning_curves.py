"""Tuning curves (Lourie, Cho & He 2023): the median best dev score against trials and against training seconds.

The table has a row for each cell and number of trials. Both figures have a panel for each task, and a line with bands
for each mode. Only random trials count, and each curve ends where its bands stop being informative.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from meltpoint.reports.analyses.core.analysis import Analysis, AnalysisOptions, write_figure, write_table
from meltpoint.reports.analyses.core.output import (
    AnalysisTable,
    Column,
    Line,
    Panel,
    Score,
    Shade,
    Value,
    figures,
    in_rows,
    points,
)
from meltpoint.reports.statistics.tuning_curves import LEVELS, CellCurve, CurvePoint, cell_curve, shown_trials

NAME = "tuning_curves"
LINE_POINTS = 200
"""Points of a line; the curve is a step function of the number of trials."""

COLUMNS = (
    Column("encoder"), Column("mode"), Column("task"), Column("variant"), Column("metric"), Column("suggested by"),
    figures("random trials", "d"), figures("valid, 95 %", "d"), figures("valid, 80 %", "d"), figures("k", "d"),
    figures("seconds", ".1f"), Column("unit"), points("low, 95 %"), points("low, 80 %"), points("median"),
    points("high, 80 %"), points("high, 95 %"), Column("note"),
)  # fmt: skip

METHOD = (
    "median: of the best dev score of k random trials ×100, F̂⁻¹(0.5^(1/k)), where F̂ is the distribution of the scores "
    "of the cell's random trials. low and high: exact bands, simultaneous for the whole curve (Lourie, Cho & He 2023; "
    "opda, ld_equal_tailed); about 20 of 100 such bands at 80 % miss the true curve somewhere. Tied scores make them "
    "wider than necessary, never narrower.",
    "valid: the largest k for which the band is informative. Beyond it, the upper bound is the metric's highest value, "
    "whatever the scores are; the table then shows dashes, and the lines end.",
    "Only random trials count: the bands hold for independent draws whose number is fixed beforehand, not for "
    "TPE's trials, the published setting, or a setting that won in another cell. A small space is sampled without "
    "repeats, which makes the bands wider than necessary.",
    "seconds: k times the mean cost of a random trial: trial seconds times its share of the GPU (GPU-seconds), or the "
    "seconds of a CPU worker, whatever its threads; concurrent trials of one worker share its seconds equally. The "
    "bands do not cover the error of that mean, nor the variation between trials.",
    "A trial whose setting failed counts as the metric's lowest value: a search that draws it gains nothing. All "
    "trials use the search's seed, so the bands do not cover seeds; the best of k scores on dev is higher than that "
    "setting's score elsewhere.",
)


def run(options: AnalysisOptions) -> list[Path]:
    """Compute the curves from the sweep's search trials; figures only if a cell has a curve.

    Raises:
        ValueError: no sweep.
    """
    sweep = options.needed_sweep(NAME)
    curves = [cell_curve(cell) for cell in options.chosen_cells(NAME)]
    rows = tuple(row for curve in curves for row in _rows(curve))
    table = AnalysisTable(NAME, f"Tuning curves of sweep {sweep.name}", COLUMNS, rows, (*_ranges(curves), *METHOD))
    written = write_table(table, options)
    by_trials, by_seconds = _panels(curves, by_seconds=False), _panels(curves, by_seconds=True)
    for name, panels in ((NAME, by_trials), (f"{NAME}_seconds", by_seconds)):
        if panels:
            written += write_figure(name, in_rows(panels), options)
    return written


def _rows(one: CellCurve) -> list[tuple[Value, ...]]:
    """A row for each of some numbers of trials; one row for a cell without a curve."""
    head, trials = one.header, one.trials
    first = (head.encoder, head.mode, head.task, head.variant, head.metric, trials.words, len(trials.scores))
    note = "; ".join([one.reason] * bool(one.reason) + list(one.notes))
    if one.curve is None:
        return [(*first, *(None,) * 4, "", *(None,) * 5, note)]
    shown, unit = shown_trials(max(one.curve.valid)), trials.cost.unit if trials.cost else ""
    rows: list[tuple[Value, ...]] = []
    for k, point in zip(shown, one.curve.at(shown), strict=True):
        (low_95, high_95), (low_80, high_80) = (Score.each(band or (None, None), head.metric) for band in point.bands)
        scores = (low_95, low_80, Score(point.median, head.metric), high_80, high_95)
        rows.append((*first, *one.curve.valid, k, one.seconds(k), unit, *scores, note))
    return rows


def _ranges(curves: Sequence[CellCurve]) -> list[str]:
    """The valid range of each curve, a line for each."""
    return [f"{'.'.join(one.header.key)}: {one.valid_words}." for one in curves if one.curve is not None]


def _panels(curves: Sequence[CellCurve], *, by_seconds: bool) -> list[Panel]:
    """One panel for each encoder, task and unit of the horizontal axis, for cells with a curve."""
    grouped: dict[tuple[str, ...], list[CellCurve]] = {}
    several = len({one.header.encoder for one in curves}) > 1
    for one in curves:
        if one.curve is None or (by_seconds and one.trials.cost is None):
            continue
        unit = one.trials.cost.unit if by_seconds and one.trials.cost else "random trials"
        heading = f"{one.header.encoder}, {one.header.task}" if several else one.header.task
        grouped.setdefault((heading, unit, one.header.metric), []).append(one)
    return [
        Panel(
            heading,
            f"dev {metric}",
            tuple(_line(one, by_seconds=by_seconds) for one in members),
            x_name=unit,
            has_log_x=True,
        )
        for (heading, unit, metric), members in grouped.items()
    ]


def _line(one: CellCurve, *, by_seconds: bool) -> Line:
    assert one.curve is not None
    grid = [float(k) for k in np.geomspace(1.0, one.curve.end, LINE_POINTS)]
    shown = one.curve.at(grid)
    scale = one.trials.cost.seconds if by_seconds and one.trials.cost else 1.0
    label = f"{one.header.mode} {one.header.variant}".strip()
    shades = tuple(_shade(shown, place, scale) for place in range(len(LEVELS)))
    x = tuple(scale * point.trials for point in shown)
    return Line(label, tuple(point.median for point in shown), x=x, shades=shades)


def _shade(shown: Sequence[CurvePoint], place: int, scale: float) -> Shade:
    inside = [(scale * point.trials, *band) for point in shown if (band := point.bands[place]) is not None]
    x, low, high = zip(*inside, strict=True) if inside else ((), (), ())
    return Shade(tuple(x), tuple(low), tuple(high))


ANALYSIS = Analysis(NAME, "the best dev score against trials and seconds, with bands, from random trials", run)
