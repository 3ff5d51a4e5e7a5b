"""P1, table 1: when to freeze (❄) and when to fine-tune (🔥), from the finals of a sweep, with their uncertainty.

Δ = 🔥 − ❄ of each encoder on each task, by the comparisons of the result tables, and its mean over the tasks of a kind.
The advice is a mode if the adjusted p-value of Δ is below 0.05, `❄ ≈ 🔥` if the interval stays within one point of 0,
and `undecided` otherwise. If a mode has heads of several sizes on a task, a
second table compares many task parameters with few in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meltpoint.reports.analyses.core.analysis import AnalysisOptions, write_table
from meltpoint.reports.analyses.core.output import AnalysisTable, Column, Score, Value, figures, points
from meltpoint.reports.statistics.comparison import ALPHA, Comparer, Comparison, adjusted
from meltpoint.reports.table_values import FROZEN, TUNED, over_seeds
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.metrics import gain
from meltpoint.tasks.core.scoring import in_points
from meltpoint.tasks.core.wording import some

NAME = "guidelines"

COLUMNS = (
    Column("encoder"), Column("kind"), Column("task"), Column("split"), points("❄"), points("🔥"), points("Δ", "+.1f"),
    points("low", "+.1f"), points("high", "+.1f"), figures("adjusted p", ".3f"), figures("P(🔥 > ❄)", ".2f"),
    Column("seeds"), Column("advice"), Column("in words"), Column("P1 says"),
)  # fmt: skip
FREEZE, TUNE, EITHER, UNKNOWN = "use ❄", "use 🔥", "❄ ≈ 🔥", "undecided"
SMALL = 0.01
"""P1 colours differences of at least one point (table 2)."""

HEAD_COLUMNS = (
    Column("encoder"), Column("mode"), Column("task"), Column("split"), Column("few"), figures("parameters", ",d"),
    points("score"), Column("many"), figures("parameters of many", ",d"), points("score of many"), points("Δ", "+.1f"),
    points("low", "+.1f"), points("high", "+.1f"), figures("adjusted p", ".3f"), Column("seeds"), Column("advice"),
    Column("in words"), Column("P1 says"),
)  # fmt: skip
ADD, SPARE, ALIKE = "add task parameters", "add few task parameters", "few do as well as many"
PAPER_HEADS = {FROZEN: "add many task parameters", TUNED: "add minimal task parameters"}

HEAD_METHOD = (
    "Few and many: the heads with the fewest and the most task parameters (all trained parameters outside the encoder) "
    "that the sweep has for a mode on a task; among equals, the best on dev.",
    "Δ = many − few; its interval and the advice are computed as in the first table, p adjusted within this one.",
    "Heads differ in more than their size; so do those that P1 compares.",
)

METHOD = (
    "❄, 🔥: the mean over the finals' seeds ×100, on test if both cells are scored there, else on dev. Δ = 🔥 − ❄; "
    "low and high bound its 95 % interval, from the spread over seeds and a paired bootstrap over examples. Adjusted "
    "p: Holm's, over all tasks of this table. Of several variants of a mode on a task, the best on dev is shown.",
    "Advice: the better mode if its adjusted p is below 0.05, `❄ ≈ 🔥` if it is not and the interval stays within one "
    "point of 0, else `undecided`.",
    "`all of the kind`: the mean Δ over the tasks above it and its 95 % interval with tasks as the sample (Student's "
    "t), which gives the advice; none if a task is scored by an error. No interval covers the search: another search "
    "might have found another setting.",
    "P1 says: table 1 of Peters, Ruder & Smith 2019, which studied ELMo and BERT-base.",
)
WHOLE = "all of the kind"


@dataclass(frozen=True)
class Pair:
    """Two cells of a task and their comparison: ❄ and 🔥, or few and many task parameters."""

    lower: CellSummary
    upper: CellSummary
    comparison: Comparison

    @property
    def scores(self) -> tuple[float, float]:
        """The means of `lower` and `upper` on the comparison's split."""
        means = [over_seeds(cell, self.comparison.split) for cell in (self.lower, self.upper)]
        below, above = (over.mean if over else math.nan for over in means)
        return below, above

    @property
    def seeds(self) -> str:
        """`5 and 5`: the seeds of `lower` and `upper`."""
        return f"{len(self.lower.finals)} and {len(self.upper.finals)}"


def run(options: AnalysisOptions) -> list[Path]:
    """Compute the tables from the sweep's finals.

    Raises:
        ValueError: no sweep, a sweep without both modes, or a cell without finals.
    """
    sweep = options.needed_sweep(NAME)
    comparer = Comparer(sweep.folder, cells=sweep.cells)
    chosen, left_out = [], []
    for encoder, task in options.pairs():
        by_mode = {mode: best_on_dev(cells) for mode, cells in _by_mode(options, encoder, task).items()}
        if {FROZEN, TUNED} <= set(by_mode):
            chosen.append((by_mode[FROZEN], by_mode[TUNED]))
        else:
            left_out.append(f"{encoder} on {task}")
    if not chosen:
        raise ValueError(f"{NAME} compares {FROZEN} and {TUNED}; sweep '{sweep.name}' does not have both.")
    notes = [f"Left out, without one of the two modes: {', '.join(left_out)}."] if left_out else []
    grouped: dict[tuple[str, str], list[Pair]] = {}
    for pair in compared(chosen, comparer):
        grouped.setdefault((pair.lower.header.encoder, pair.lower.header.kind), []).append(pair)
    rows = [row for (encoder, kind), pairs in grouped.items() for row in _kind_rows(encoder, kind, pairs)]
    table = AnalysisTable(NAME, f"Guidelines from sweep {sweep.name}", COLUMNS, tuple(rows), (*METHOD, *notes))
    return [*write_table(table, options), *_heads(options, sweep.name, comparer)]


def compared(cells: Sequence[tuple[CellSummary, CellSummary]], comparer: Comparer) -> list[Pair]:
    """The comparisons of (lower, upper) cells, with p-values adjusted for all of them together.

    Raises:
        ValueError: a cell without finals.
    """
    made = []
    for lower, upper in cells:
        for cell in (lower, upper):
            if cell.dev is None:
                remedy = "finish the sweep, or leave its task out with --task"
                raise ValueError(f"Cell '{cell.name}' has no finals yet; {remedy}.")
        comparison = comparer.compare(upper, lower)
        assert comparison is not None, "both have dev scores"
        made.append(comparison)
    return [Pair(*pair, one) for pair, one in zip(cells, adjusted(made), strict=True)]


def _by_mode(options: AnalysisOptions, encoder: str, task: str) -> dict[str, list[CellSummary]]:
    """Mode → its cells; with `--train-sizes` those of the largest size, so that only equal data are compared."""
    by_mode: dict[str, list[CellSummary]] = {}
    cells = options.cells(encoder, task)
    most = max((cell.header.train_examples for cell in cells), default=0)
    for cell in (cell for cell in cells if cell.header.train_examples == most):
        by_mode.setdefault(cell.header.mode, []).append(cell)
    return by_mode


def best_on_dev(cells: Sequence[CellSummary]) -> CellSummary:
    """The cell (variant) of a mode whose finals are best on dev; the first among equals."""
    return max(cells, key=lambda cell: -math.inf if cell.dev is None else gain(cell.header.metric, cell.dev.mean))


def _heads(options: AnalysisOptions, name: str, comparer: Comparer) -> list[Path]:
    """Write the table of many task parameters against few; no file if no mode has heads of several sizes."""
    chosen = []
    for encoder, task in options.pairs():
        for cells in _by_mode(options, encoder, task).values():
            sizes: dict[int, list[CellSummary]] = {}
            for cell in cells:
                if cell.dev is not None and cell.best is not None and cell.best.task_parameters is not None:
                    sizes.setdefault(cell.best.task_parameters, []).append(cell)
            if len(sizes) > 1:
                chosen.append((best_on_dev(sizes[min(sizes)]), best_on_dev(sizes[max(sizes)])))
    if not chosen:
        return []
    rows = tuple(_head_row(pair) for pair in compared(chosen, comparer))
    title = f"Task parameters, many against few, from sweep {name}"
    return write_table(AnalysisTable(f"{NAME}_heads", title, HEAD_COLUMNS, rows, HEAD_METHOD), options)


def _head_row(pair: Pair) -> tuple[Value, ...]:
    few, many, known = pair.lower, pair.upper, pair.comparison
    assert few.best
    assert many.best
    below, above = Score.each(pair.scores, known.metric)
    mode = few.header.mode
    return (
        few.header.encoder, mode, few.header.task, known.split, few.header.head, few.best.task_parameters, below,
        many.header.head, many.best.task_parameters, above, *_difference(known), known.p_holm,
        pair.seeds, verdict(known, ADD, SPARE, ALIKE), known.words, PAPER_HEADS.get(mode, "not studied"),
    )  # fmt: skip


def _kind_rows(encoder: str, kind: str, pairs: list[Pair]) -> list[tuple[Value, ...]]:
    """One row per task, and one for the kind if it has several tasks."""
    rows: list[tuple[Value, ...]] = []
    kind_text, paper = kind.replace("_", " "), paper_advice(encoder, kind)
    for pair in pairs:
        known = pair.comparison
        rows.append((
            encoder, kind_text, pair.lower.header.task, known.split, *Score.each(pair.scores, known.metric),
            *_difference(known), known.p_holm, known.probability_better, pair.seeds,
            verdict(known, TUNE, FREEZE, EITHER), known.words, paper,
        ))  # fmt: skip
    if len(pairs) > 1:
        gains = [pair.comparison.gain for pair in pairs]
        mean, low, high = over_tasks(gains) if all(in_points(pair.comparison.metric) for pair in pairs) else NO_MEAN
        said = f"🔥 is ahead on {sum(gain > 0 for gain in gains)} of {some(len(gains), 'task')}"
        rows.append((
            encoder, kind_text, WHOLE, None, None, None, mean, low, high, None, None, None, kind_advice(low, high),
            said, paper,
        ))  # fmt: skip
    return rows


NO_MEAN = (None, None, None)
"""Errors of unlike tasks have unlike units, so that they have no mean."""


def over_tasks(gains: Sequence[float]) -> tuple[float, float, float]:
    """The mean over two tasks or more and its 95 % interval (Student's t), with tasks as the sample."""
    from scipy.stats import sem, t  # takes a second to import

    mean = math.fsum(gains) / len(gains)
    half = float(sem(gains) * t.ppf(1 - ALPHA / 2, len(gains) - 1))
    return mean, mean - half, mean + half


def kind_advice(low: float | None, high: float | None) -> str:
    """The advice for a kind of task, from the interval over its tasks."""
    if low is None or high is None:
        return UNKNOWN
    if not low <= 0 <= high:
        return TUNE if low > 0 else FREEZE
    return EITHER if max(-low, high) <= SMALL else UNKNOWN


def _difference(comparison: Comparison) -> tuple[Score | None, ...]:
    """Δ and its interval, as the metric is shown."""
    return Score.each((comparison.delta, comparison.low, comparison.high), comparison.metric)


def verdict(comparison: Comparison, upper: str, lower: str, alike: str) -> str:
    """The conclusion from a difference: `upper` or `lower` is better, both are `alike`, or it is undecided."""
    if comparison.is_claimed:
        return upper if comparison.gain > 0 else lower
    if comparison.low is None or comparison.high is None:
        return UNKNOWN
    # an interval that is wide and holds 0 does not show that they are alike
    is_small = in_points(comparison.metric) and max(-comparison.low, comparison.high) <= SMALL
    return alike if is_small else UNKNOWN


def paper_advice(encoder: str, kind: str) -> str:
    """P1's advice (table 1) for an encoder and a kind of task; on sentence pairs only for ELMo and BERT."""
    if not kinds.get(kind).is_pair:
        return EITHER
    return FREEZE if encoder.startswith("elmo") else TUNE if encoder.startswith("bert-base") else "not studied"
