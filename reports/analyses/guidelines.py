"""P1, table 1: when to freeze (❄) and when to fine-tune (🔥), from the finals of a sweep, with their uncertainty.

Δ = 🔥 − ❄ of each encoder on each task, by the comparisons of the result tables, and its mean over the tasks of a kind.
The advice is a mode if the adjusted p-value of Δ is below 0.05, `❄ ≈ 🔥` if the interval stays within one point of 0,
and `cannot be told` otherwise, with the sizes that would change it. If a mode has heads of several sizes on a task, a
second table compares many task parameters with few in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from meltpoint.reports.analyses.core.analysis import Analysis, AnalysisOptions, write_table
from meltpoint.reports.analyses.core.output import AnalysisTable, Column, Score, Value, figures, points
from meltpoint.reports.statistics.comparison import ALPHA, Comparer, Comparison, adjusted
from meltpoint.reports.table_values import FROZEN, TUNED, over_seeds
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.metrics import gain
from meltpoint.tasks.core.scoring import in_points
from meltpoint.tasks.core.wording import some

NAME = "guidelines"

COLUMNS = (
    Column("encoder"), Column("kind"), Column("task"), Column("split"), points("❄"), points("🔥"), points("Δ", "+.1f"),
    points("low", "+.1f"), points("high", "+.1f"), figures("adjusted p", ".3f"), figures("P(🔥 > ❄)", ".2f"),
    Column("seeds"), Column("tasks agree"), figures("sign test p", ".3f"), Column("advice"),
    Column("what would change it"), Column("P1 says"),
)  # fmt: skip
FREEZE, TUNE, EITHER, UNKNOWN = "use ❄", "use 🔥", "❄ ≈ 🔥", "cannot be told"
SMALL = 0.01
"""P1 colours differences of at least one point (table 2)."""

HEAD_COLUMNS = (
    Column("encoder"), Column("mode"), Column("task"), Column("split"), Column("few"), figures("parameters", ",d"),
    points("score"), Column("many"), figures("parameters of many", ",d"), points("score of many"), points("Δ", "+.1f"),
    points("low", "+.1f"), points("high", "+.1f"), figures("adjusted p", ".3f"), Column("seeds"), Column("advice"),
    Column("what would change it"), Column("P1 says"),
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
    "low and high bound its 95 % interval, from a paired bootstrap over seeds and examples. Adjusted p: Holm's, over "
    "all tasks of this table. Of several variants of a mode on a task, the best on dev is shown.",
    "Advice: the better mode if its adjusted p is below 0.05 (with a note if Δ is under one point, which P1's table 2 "
    "does not colour), `❄ ≈ 🔥` if it is not and the interval stays within one point of 0, else `cannot be told`.",
    "`all of the kind`: the mean Δ over the tasks above it, its 95 % interval with tasks as the sample (Student's t), "
    "and the exact sign test over tasks (this alone if a task is scored by an error); `on these tasks` if each "
    "task is claimed and the interval over tasks still holds 0. No interval covers the search: another search might "
    "have found another setting.",
    "P1 says: table 1 of Peters, Ruder & Smith 2019, which studied ELMo and BERT-base.",
)
WHOLE = "all of the kind"
NOTHING_MORE = "another task, data set or search; more seeds would not"


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


MOST_TASKS = 200
"""The largest number of tasks suggested as enough."""


@dataclass(frozen=True)
class TaskAgreement:
    """The differences of several tasks, taken as a sample of tasks.

    Attributes:
        deltas: one per task, fractions; at least one.
    """

    deltas: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over tasks."""
        return math.fsum(self.deltas) / len(self.deltas)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's 95 % interval of the mean over tasks; None for one task."""
        from scipy.stats import sem, t  # takes a second to import

        if len(self.deltas) < 2:
            return None
        error = float(sem(self.deltas))
        if error == 0:
            return self.mean, self.mean
        low, high = t.interval(1 - ALPHA, len(self.deltas) - 1, loc=self.mean, scale=error)
        return float(low), float(high)

    @property
    def above(self) -> int:
        """The number of tasks whose difference is above 0."""
        return sum(delta > 0 for delta in self.deltas)

    @property
    def below(self) -> int:
        """The number of tasks whose difference is below 0."""
        return sum(delta < 0 for delta in self.deltas)

    @property
    def agreeing(self) -> int:
        """The number of tasks on the majority side."""
        return max(self.above, self.below)

    @property
    def p_sign(self) -> float:
        """The exact two-sided sign test over the tasks with a difference; 1 if there are none."""
        return _sign_test(self.above, self.above + self.below)

    @property
    def needed_tasks(self) -> int | None:
        """The number of tasks at which a sign test would fall below `ALPHA`, at the same rate of agreement."""
        share = self.agreeing / len(self.deltas)
        if share <= 0.5:
            return None
        sizes = range(len(self.deltas), MOST_TASKS + 1)
        return next((size for size in sizes if _sign_test(math.floor(share * size), size) < ALPHA), None)


def _sign_test(above: int, count: int) -> float:
    from scipy.stats import binomtest  # takes a second to import

    return float(binomtest(above, count).pvalue) if count else 1.0


def run(options: AnalysisOptions) -> list[Path]:
    """Compute the tables from the sweep's finals.

    Raises:
        ValueError: no sweep, a sweep without both modes, or a cell without finals.
    """
    sweep = options.needed_sweep(NAME)
    comparer = Comparer(sweep.folder, cells=sweep.cells)
    chosen = []
    for encoder, task in options.pairs():
        by_mode = {mode: best_on_dev(cells) for mode, cells in _by_mode(options, encoder, task).items()}
        if not {FROZEN, TUNED} <= set(by_mode):
            raise ValueError(f"{NAME} compares {FROZEN} and {TUNED}; sweep '{sweep.name}' does not have both.")
        chosen.append((by_mode[FROZEN], by_mode[TUNED]))
    grouped: dict[tuple[str, str], list[Pair]] = {}
    for pair in compared(chosen, comparer):
        grouped.setdefault((pair.lower.header.encoder, pair.lower.header.kind), []).append(pair)
    rows = [row for (encoder, kind), pairs in grouped.items() for row in _kind_rows(encoder, kind, pairs)]
    table = AnalysisTable(NAME, f"Guidelines from sweep {sweep.name}", COLUMNS, tuple(rows), METHOD)
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
                name = cell_name(*cell.header.key)
                raise ValueError(
                    f"Cell '{name}' has no finals yet; finish the sweep, or leave its task out with --task."
                )
        comparison = comparer.compare(upper, lower)
        assert comparison is not None, "both have dev scores"
        made.append(comparison)
    return [Pair(*pair, one) for pair, one in zip(cells, adjusted(made), strict=True)]


def _by_mode(options: AnalysisOptions, encoder: str, task: str) -> dict[str, list[CellSummary]]:
    by_mode: dict[str, list[CellSummary]] = {}
    for cell in options.cells(encoder, task):
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
        pair.seeds, verdict(known, ADD, SPARE, ALIKE), what_would_change(known), PAPER_HEADS.get(mode, "not studied"),
    )  # fmt: skip


def _kind_rows(encoder: str, kind: str, pairs: list[Pair]) -> list[tuple[Value, ...]]:
    """One row per task, and one for the kind if it has several tasks."""
    rows: list[tuple[Value, ...]] = []
    kind_text, paper = kind.replace("_", " "), paper_advice(encoder, kind)
    for pair in pairs:
        known = pair.comparison
        rows.append((
            encoder, kind_text, pair.lower.header.task, known.split, *Score.each(pair.scores, known.metric),
            *_difference(known), known.p_holm, known.probability_better, pair.seeds, None, None, advice(known),
            what_would_change(known), paper,
        ))  # fmt: skip
    if len(pairs) > 1:
        comparisons = [pair.comparison for pair in pairs]
        tasks = TaskAgreement(tuple(one.gain for one in comparisons))
        low, high = tasks.interval or (None, None)
        mean = (tasks.mean, low, high) if _in_one_unit(comparisons) else (None, None, None)
        rows.append((
            encoder, kind_text, WHOLE, None, None, None, *mean, None, None, None, agreeing(tasks),
            tasks.p_sign, kind_advice(tasks, comparisons), what_would_change_kind(tasks), paper,
        ))  # fmt: skip
    return rows


def _difference(comparison: Comparison) -> tuple[Score | None, ...]:
    """Δ and its interval, as the metric is shown."""
    return Score.each((comparison.delta, comparison.low, comparison.high), comparison.metric)


def _in_one_unit(comparisons: Iterable[Comparison]) -> bool:
    """True if differences may be averaged: errors of unlike tasks have unlike units."""
    return all(in_points(one.metric) for one in comparisons)


def advice(comparison: Comparison) -> str:
    """The advice that follows from the difference 🔥 − ❄ on a task."""
    return verdict(comparison, TUNE, FREEZE, EITHER)


def verdict(comparison: Comparison, upper: str, lower: str, alike: str) -> str:
    """The conclusion from a difference: `upper` or `lower` is better, both are `alike`, or it cannot be told."""
    if comparison.is_claimed:
        return _better(comparison.gain, upper, lower, has_points=in_points(comparison.metric))
    if comparison.low is None or comparison.high is None:
        return UNKNOWN
    # an interval that is wide and holds 0 does not show that they are alike
    is_small = in_points(comparison.metric) and max(-comparison.low, comparison.high) <= SMALL
    return alike if is_small else UNKNOWN


def _better(delta: float, upper: str, lower: str, has_points: bool = True) -> str:
    better = upper if delta > 0 else lower
    return f"{better} (by under one point)" if has_points and abs(delta) < SMALL else better


def what_would_change(comparison: Comparison) -> str:
    """The sizes needed for a clearer or different conclusion on a task."""
    if comparison.is_claimed:
        return NOTHING_MORE
    if comparison.low is None:
        return f"no interval: {comparison.reason}"
    if comparison.needed_seeds is None:
        return f"more than {some(comparison.examples, 'example')}; no number of seeds would"
    return f"about {some(comparison.needed_seeds, 'seed')}, or more than {some(comparison.examples, 'example')}"


def agreeing(tasks: TaskAgreement) -> str:
    """`3 of 3 for 🔥`, or `1 of 2 each` if the modes tie."""
    if tasks.above == tasks.below:
        return f"{tasks.above} of {len(tasks.deltas)} each"
    return f"{tasks.agreeing} of {len(tasks.deltas)} for {'🔥' if tasks.above > tasks.below else '❄'}"


def kind_advice(tasks: TaskAgreement, comparisons: Sequence[Comparison]) -> str:
    """The advice for a kind of task: from the interval over tasks, or for these tasks alone if each is claimed."""
    has_points = _in_one_unit(comparisons)
    low, high = (tasks.interval if has_points else None) or (-math.inf, math.inf)
    if not low <= 0 <= high:
        return _better(tasks.mean, TUNE, FREEZE)
    if all(one.is_claimed for one in comparisons) and tasks.agreeing == len(comparisons):
        return f"{_better(tasks.mean, TUNE, FREEZE, has_points)} on these tasks"
    return EITHER if max(-low, high) <= SMALL else UNKNOWN


def what_would_change_kind(tasks: TaskAgreement) -> str:
    """`3 of 3 tasks agree; a sign test needs 6 tasks to reach 0.05`."""
    found = f"{tasks.agreeing} of {some(len(tasks.deltas), 'task')} agree"
    if tasks.p_sign < ALPHA:
        return f"{found}; tasks of another sort"
    needed = tasks.needed_tasks
    if needed is None:
        return f"{found}; at that rate no number of tasks would"
    about = "" if tasks.agreeing == len(tasks.deltas) else "about "
    return f"{found}; a sign test needs {about}{needed} tasks to reach {ALPHA:g}"


def paper_advice(encoder: str, kind: str) -> str:
    """P1's advice (table 1) for an encoder and a kind of task; on sentence pairs only for ELMo and BERT."""
    if not kinds.get(kind).is_pair:
        return EITHER
    return FREEZE if encoder.startswith("elmo") else TUNE if encoder.startswith("bert-base") else "not studied"


ANALYSIS = Analysis(NAME, "table 1: freeze or fine-tune, from a sweep's finals and their uncertainty", run)
