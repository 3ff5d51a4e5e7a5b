"""The front of the page as values: recommendations with their bars, warnings, the ❄/🔥 table, and the charts.

The charts are the history of each search, and score against cost.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meltpoint.reports.findings import curves_of
from meltpoint.reports.formats import p_text, title
from meltpoint.reports.recommendation import Recommendation
from meltpoint.reports.results import SweepResults
from meltpoint.reports.statistics.cost import Point, pareto, trade_offs
from meltpoint.reports.table_values import Delta, EncoderBlock
from meltpoint.sweeps.ledger.ledger import TASK
from meltpoint.sweeps.results.cost import spread_text
from meltpoint.sweeps.results.export import KEPT
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.metrics import gain, limits
from meltpoint.tasks.core.scoring import axis_name, in_points, scale, score_text
from meltpoint.tasks.core.wording import counted, some

Chart = dict[str, Any]
"""A plot: `title` of its panel, `data` for the page's scripts, and `text`, the alternative for screen readers."""
Card = dict[str, Any]
"""The recommendation of one task: `task`, and the `metric` of the scores, with `on dev` if they are not on test.

`sentence` is the recommendation, or the reason why there is none yet, and `certainty` is "" then. `bars` has the
candidates, the best first, then the baseline; `ticks` are (text, position in percent) of their axis; `commands` and
`python` use the recommended model."""
Table = dict[str, Any]
"""The table of one encoder, transposed: a row for each task and metric, a column for each mode and difference.

`heads` has (title, head) of each column; `rows` has (task, (text, adjusted p-value of a difference or "") of each
column)."""


def ends(metric: str) -> list[float | None]:
    """The limits of a metric as displayed; None on a side without a limit."""
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
        text = f"Dev score of each trial in order: {text}."
        charts.append({"title": f"{task} ({metric})", "data": data, "text": text})
    return charts


def _running_best(cell: CellSummary) -> list[tuple[int, float]]:
    """(trial number, score) of each trial that is better than all before it, and again at the last trial.

    A stopped trial is no candidate, so it is never the best.
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


def size_charts(results: SweepResults) -> list[Chart]:
    """A chart of the modes' scores over the sizes of train, for each task and encoder with several sizes."""
    charts = []
    for curve in curves_of(results.summary.cells):
        metric = curve.metric
        lines: list[dict[str, Any]] = [
            {"name": title(mode), "mode": mode, "points": [
                [size, round(scale(metric) * score.mean, 4), round(scale(metric) * (score.std or 0.0), 4)]
                for size, score in curve.scores(mode)
            ]}
            for mode in curve.cells
        ]  # fmt: skip
        each = {
            title(mode): [f"{score_text(score.mean, metric)} at {counted(size)}" for size, score in curve.scores(mode)]
            for mode in curve.cells
        }
        text = "; ".join(f"{name}: {', '.join(points)}" for name, points in each.items())
        charts.append({
            "title": f"{curve.task}, {curve.encoder} ({metric})", "text": f"Score over training examples: {text}.",
            "data": {"lines": lines, "sizes": curve.sizes, "y": axis_name(metric), "limits": ends(metric)},
        })  # fmt: skip
    return charts


def cost_charts(cells: Sequence[CellSummary]) -> list[Chart]:
    """A chart of score against the seconds of one run for each task."""
    tasks: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for (encoder, task, metric, split), points in trade_offs(cells).items():
        best = pareto(points)
        tasks.setdefault((task, metric), []).append({
            "encoder": encoder, "split": split, "points": [_cost_point(point, point in best) for point in points],
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
        f"{group['encoder']} {point['name']}: {score_text(point['score'] / scale(metric), metric)} in "
        f"{point['seconds']:.3g} s"
        for group in groups for point in group["points"]
    )  # fmt: skip
    split = " and ".join(dict.fromkeys(group["split"] for group in groups))
    return {
        "title": f"{task} ({metric}, {split})", "text": f"Score against seconds of one run: {text}.",
        "data": {"groups": groups, "y": axis_name(metric), "limits": ends(metric)},
    }  # fmt: skip


BASELINE = "baseline"
EXAMPLES = {"sentence": '"a text"', "pair": '("a text", "another text")', "words": '["Words", "of", "a", "sentence"]'}
"""Input of a kind of task → an argument of `predict`, as Python code."""


def cards(results: SweepResults) -> list[Card]:
    """A card for every task of a sweep, in the order of its cells."""
    known = {one.task: one for one in results.recommendations}
    metrics = {cell.header.task: cell.header.metric for cell in results.summary.cells}
    return [
        _card(known[task], results.summary) if task in known else _no_card(task, metric, results.summary)
        for task, metric in metrics.items()
    ]


def _no_card(task: str, metric: str, summary: SweepSummary) -> Card:
    cells = [cell for cell in summary.cells if cell.header.task == task]
    done = sum(cell.dev is not None for cell in cells)
    sentence = f"No recommendation yet: {done} of {some(len(cells), 'cell')} have finals."
    return {
        "task": task, "metric": metric, "sentence": sentence, "certainty": "", "details": (), "bars": [],
        "ticks": (), "commands": "", "python": "",
    }  # fmt: skip


def _card(known: Recommendation, summary: SweepSummary) -> Card:
    baseline = summary.baselines.get(known.task)
    baseline = baseline if baseline is not None and baseline.metric == known.metric else None
    scores = [one.score.mean + (one.score.std or 0.0) for one in known.standings]
    scores += [baseline.best[1]] if baseline else []
    least = min(*scores, *(one.score.mean - (one.score.std or 0.0) for one in known.standings))
    low = limits(known.metric)[0] if least < 0 else 0.0
    high = 1.0 if in_points(known.metric) else max(*scores, 1e-9)
    ticks = (low, (low + high) / 2, high)

    def share(score: float) -> float:
        return round(100 * (min(max(score, low), high) - low) / (high - low), 2)

    def drawn(score: float, std: float | None) -> dict[str, float | None]:
        """The bar, and the ends of its whisker, in percent of the axis; None for a single score."""
        origin = share(0.0)
        low, high = (None, None) if std is None else (share(score - std), share(score + std))
        return {"left": min(origin, share(score)), "width": abs(share(score) - origin), "low": low, "high": high}

    keys = [cell.header.key for cell in summary.cells]
    bars: list[dict[str, Any]] = [
        {"name": known.name(one), "detail": one.mode, "text": spread_text(one.score, known.metric), "mode": one.mode,
         "place": keys.index(one.cell.header.key), "is_recommended": one.is_recommended,
         **drawn(one.score.mean, one.score.std)}
        for one in known.standings
    ]  # fmt: skip
    if baseline:
        name, score = baseline.best
        detail = name if known.split == "dev" else f"{name}, on dev"
        bars.append({
            "name": BASELINE, "detail": detail, "text": score_text(score, known.metric), "mode": "", "place": None,
            "is_recommended": False, **drawn(score, None),
        })  # fmt: skip
    shown = tuple((f"{scale(known.metric) * tick:.3g}".replace("-", "−"), share(tick)) for tick in ticks)
    metric = known.metric + (" on dev" if known.split == "dev" else "")
    commands, python = use_of(known, summary)
    return {
        "task": known.task, "metric": metric, "sentence": known.sentence, "certainty": known.certainty,
        "details": known.details, "bars": bars, "ticks": shown, "commands": commands, "python": python,
    }  # fmt: skip


def use_of(known: Recommendation, summary: SweepSummary) -> tuple[str, str]:
    """The commands, and the lines of Python, that predict with the recommended model."""
    head = known.winner.cell.header
    name = summary.spec.name
    own = summary.folder if summary.has_one_task else None
    keeps = own is not None and any((own / place).exists() for place in (KEPT, TASK))
    example = EXAMPLES[kinds.get(head.kind).input]
    storage = "runs" if summary.folder is None else str(summary.folder.parent)
    storage = "runs" if storage == str(Path("runs").absolute()) else storage
    where = [] if storage == "runs" else ["--storage", storage]
    new = "new.conll" if kinds.get(head.kind).labels_words else "new.csv"
    if keeps:  # a running `tune` will keep it
        folder = f"{storage}/{name}/model"
        commands = shlex.join(["meltpoint", "predict", name, new, *where])
    else:
        cell = known.winner.cell.name
        folder = f"models/{cell}.model"
        export = ["meltpoint", "export", name, "--cell", cell, "--model", "--out", "models", *where]
        commands = f"{shlex.join(export)}\n{shlex.join(['meltpoint', 'predict', folder, new])}"
    python = f'import meltpoint as mp\nmodel = mp.load_model("{folder}")\nprint(model.predict([{example}]))'
    return commands, python


def front_table(block: EncoderBlock, deltas: Sequence[Delta]) -> Table:
    """The table of one encoder."""
    p_values = {
        (delta.task, delta.comparison.metric, delta.title): p_text(delta.comparison.p_holm)
        for delta in deltas if delta.encoder == block.encoder and delta.comparison.p_holm is not None
    }  # fmt: skip
    rows = [
        (name, [(row.entries[place].text_with_marks, p_values.get((*column, row.title), "")) for row in block.rows])
        for place, (name, column) in enumerate(zip(block.columns, block.tasks, strict=True))
    ]
    return {"encoder": block.encoder, "heads": [(row.title, row.head) for row in block.rows], "rows": rows}
