"""Findings of a sweep, and its overview."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from meltpoint.reports.formats import bounds_text, duration, listed, p_text, symbol
from meltpoint.reports.recommendation import Recommendation
from meltpoint.reports.results import NO_FINALS, WON, SweepResults, TuningGain, ran_nowhere
from meltpoint.reports.statistics.comparison import Comparison
from meltpoint.reports.table_values import Delta, place_of
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.cost import NOTHING, spread_text
from meltpoint.sweeps.results.summary import CellSummary, summarise
from meltpoint.sweeps.search.selection import Spread
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.tasks.core.scoring import difference_text, in_points
from meltpoint.tasks.core.wording import counted, some

NO_DEFAULTS = (
    "The published setting's finals have not run, so the gain from tuning is unknown (by default, they run only if "
    "they are under a tenth of the runs; `sweep --default-finals` requests them)."
)

DELTA_HEADS = ("encoder", "task", "Δ", "value", "95 % interval", "adjusted p", "P(A > B)", "conclusion")
DELTA_SIDES = "lllrrrrl"
GAIN_HEADS = ("encoder", "mode", "task", "published setting", "winner − published setting")
GAIN_SIDES = "lllrl"


def advice_lines(recommendations: Sequence[Recommendation]) -> list[str]:
    """A line for each task: the recommendation and its details, after the task's name if there are several."""
    lines = ((one.task, " ".join([one.sentence, *one.details])) for one in recommendations)
    return [f"{task}: {line}" if len(recommendations) > 1 else line for task, line in lines]


def delta_row(delta: Delta) -> list[str]:
    """The cells of a difference under `DELTA_HEADS`."""
    known = delta.comparison
    value = f"{'dev ' if known.split == 'dev' else ''}{difference_text(known.delta, known.metric)}"
    bounds = NOTHING if known.low is None or known.high is None else bounds_text(known.low, known.high, known.metric)
    chance = NOTHING if known.probability_better is None else f"{known.probability_better:.2f}"
    p = NOTHING if known.p_holm is None else p_text(known.p_holm)
    return [delta.encoder, delta.task, delta.title, value, bounds, p, chance, known.words]


def delta_lines(results: SweepResults) -> list[str]:
    """`minilm sst2, Δ 🔥 − ❄: +8.2 [+6.5, +9.9], adjusted p 0.004, P(A > B) 0.98: fine-tuning is better`, and so on."""
    lines = []
    for encoder, task, title, value, bounds, p, chance, words in map(delta_row, results.family):
        parts = [value if bounds == NOTHING else f"{value} {bounds}"]
        parts += [f"{name} {text}" for name, text in (("adjusted p", p), ("P(A > B)", chance)) if text != NOTHING]
        lines.append(f"{encoder} {task}, {title}: {', '.join(parts)}: {words}")
    return lines


POINTS = "accuracy"
"""A metric in points, for the format of differences."""
FEWEST_CELLS = 3
"""The fewest cells whose gains have an interval over cells."""


def overtuning_line(gains: Sequence[TuningGain]) -> str:
    """The mean gain from tuning over the cells, on test, with its 95 % t interval; "" for too few cells.

    There is none while a cell lacks the published setting's finals: cells in which it won have a gain of 0 without
    any. A winner on dev can be worse on test than the published setting: about one in ten is (Schneider, Bischl &
    Feurer 2025, arXiv 2506.19540). Scores in other units than points are left out.
    """
    known = [0.0 if gain.comparison is None else gain.comparison.gain for gain in gains if _is_on_test(gain)]
    if len(known) < FEWEST_CELLS or any(gain.words == NO_FINALS for gain in gains):
        return ""
    from scipy.stats import t  # takes a second to import

    mean = statistics.mean(known)
    half = float(t.ppf(0.975, len(known) - 1)) * statistics.stdev(known) / math.sqrt(len(known))
    worse = sum(gain < 0 for gain in known)
    value = f"{difference_text(mean, POINTS)} {bounds_text(mean - half, mean + half, POINTS)}"
    return (
        f"Winner minus published setting on test, over {some(len(known), 'cell')}: {value} points; "
        f"{worse or 'none'} of the winners {'are' if worse > 1 else 'is'} worse."
    )


def _is_on_test(gain: TuningGain) -> bool:
    if gain.words == WON:
        return gain.cell.test is not None and in_points(gain.cell.header.metric)
    known = gain.comparison
    return known is not None and known.split == "test" and in_points(known.metric)


def gain_lines(results: SweepResults) -> list[str]:
    """The gains from tuning, a line for each cell; cells with the same text share one."""
    if ran_nowhere(results.gains):
        return [NO_DEFAULTS] if results.gains else []
    grouped: dict[str, list[str]] = {}
    over = overtuning_line(results.gains)
    for gain in results.gains:
        grouped.setdefault(gain.words, []).append(" ".join(_words_of(gain)))
    return [*([over] if over else []), *(f"{', '.join(names)}: {words}" for words, names in grouped.items())]


def gain_rows(gains: Sequence[TuningGain]) -> list[list[str]]:
    """The cells under `GAIN_HEADS`."""
    return [[*_words_of(gain), _default_score(gain), gain.words] for gain in gains]


def _default_score(gain: TuningGain) -> str:
    """The published setting's score, or a dash before it has run."""
    cell = gain.cell
    over, prefix = (cell.default_test, "") if cell.default_test else (cell.default_dev, "dev ")
    if over is None or gain.words == NO_FINALS:
        return NOTHING
    return prefix + spread_text(over, cell.header.metric)


def _words_of(gain: TuningGain) -> list[str]:
    head = gain.cell.header
    return [head.encoder, f"{symbol(head.mode)} {head.variant}".strip(), head.task]


def sweep_rows(storage: StoragePath) -> list[dict[str, Any]]:
    """The sweeps of a storage for `list sweeps --json`, the latest to begin first; damaged and not begun ones last."""
    rows = [_row(storage, path.parent.name) for path in storage.glob("*/sweep.json")]
    return sorted(rows, key=lambda row: (-(row["started_at"] or 0.0), row["name"]))


def shown_sweep(row: dict[str, Any]) -> dict[str, object]:
    """A sweep's row in the table of `list sweeps`."""
    began = "" if row["started_at"] is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(row["started_at"]))
    return {
        "name": row["name"], "state": row["state"], "cells done": f"{row['cells_done']}/{row['cells']}",
        "trials": f"{row['trials']}/{row['trials_planned']}", "began": began,
        "training": duration(row["seconds"]) if row["seconds"] else "", "encoders": row["encoders"],
        "tasks": row["tasks"], "fault": row["fault"],
    }  # fmt: skip


def _row(storage: StoragePath, name: str) -> dict[str, Any]:
    cells: list[CellSummary] = []
    state, fault = "damaged", ""
    try:
        summary = summarise(Ledger(storage / name), leaves_out=True)
        cells, state, fault = summary.cells, summary.state, "; ".join(summary.damaged)
    except ValueError as error:
        fault = str(error)
    except OSError as error:  # for example, another user's file
        fault = f"{error.strerror or error} ({error.filename or storage / name})"
    heads = [cell.header for cell in cells]
    starts = [record.started_at for cell in cells for record in (*cell.search[:1], *cell.finals[:1])]
    return {
        "name": name, "state": state, "cells": len(cells), "cells_done": sum(cell.is_done for cell in cells),
        "trials": sum(cell.counts["finished"] for cell in cells),
        "trials_planned": sum(cell.counts["planned"] for cell in cells),
        "encoders": list(dict.fromkeys(head.encoder for head in heads)),
        "modes": list(dict.fromkeys(head.mode for head in heads)),
        "tasks": list(dict.fromkeys(head.task for head in heads)),
        "started_at": min(starts, default=None), "seconds": sum(cell.seconds for cell in cells), "fault": fault,
    }  # fmt: skip


# Sizes of train come from `--train-sizes`, or from any variants of a cell that train on different numbers of examples.
# Two modes change places between two sizes only if one is surely better at the smaller and the other at the larger one
# (adjusted p < 0.05). Nothing is said about sizes that were not trained.


@dataclass(frozen=True)
class SizeCurve:
    """One encoder's cells of a task, by size of train.

    Attributes:
        sizes: the sizes, ascending.
        cells: mode → its cell at each size that it was trained on.
    """

    encoder: str
    task: str
    sizes: tuple[int, ...]
    cells: dict[str, dict[int, CellSummary]]

    @property
    def metric(self) -> str:
        """The metric of its scores."""
        return next(cell.header.metric for of_mode in self.cells.values() for cell in of_mode.values())

    def scores(self, mode: str) -> list[tuple[int, Spread]]:
        """A mode's score at each of its sizes: on test where the cell has been scored on it, else on dev."""
        found = ((size, self.cells[mode][size]) for size in self.sizes if size in self.cells[mode])
        known = ((size, cell.test or cell.dev) for size, cell in found)
        return [(size, score) for size, score in known if score is not None]


def curves_of(cells: Sequence[CellSummary]) -> list[SizeCurve]:
    """The curves of a sweep: encoder × task with scores at several sizes of train."""
    groups: dict[tuple[str, str], dict[str, dict[int, CellSummary]]] = {}
    for cell in cells:
        head = cell.header
        if cell.dev is not None:
            modes = groups.setdefault((head.encoder, head.task), {})
            modes.setdefault(head.mode, {})[head.train_examples] = cell
    found = []
    for (encoder, task), modes in groups.items():
        sizes = tuple(sorted({size for of_mode in modes.values() for size in of_mode}))
        if len(sizes) > 1:
            found.append(SizeCurve(encoder, task, sizes, {mode: modes[mode] for mode in sorted(modes, key=place_of)}))
    return found


LEVEL = "cannot be told apart at any size"


def size_lines(results: SweepResults) -> list[str]:
    """For each curve, where the lead changes between two modes: one sentence a pair, and one for all level pairs."""
    lines = []
    for curve in curves_of(results.summary.cells):
        each = (crossing(curve, *pair, results.table.deltas) for pair in combinations(curve.cells, 2))
        said = [sentence for sentence in each if sentence]
        level = sum(LEVEL in sentence for sentence in said)
        if level > 1:
            said = [sentence for sentence in said if LEVEL not in sentence]
            rest = f"{counted(level)} other pairs of modes {LEVEL}."
            said = [*said, rest] if said else ["no two modes can be told apart at any size."]
        lines += [f"{curve.task}, {curve.encoder}: {sentence}" for sentence in said]
    return lines


def crossing(curve: SizeCurve, lower: str, upper: str, deltas: Sequence[Delta]) -> str:
    """The mode of two that is surely better at each size, as a sentence; "" if they were compared at no size."""
    each = ((size, _compared(curve, size, deltas, lower, upper)) for size in curve.sizes)
    compared = {size: known for size, known in each if known is not None}
    if not compared:
        return ""
    ahead: dict[str, list[int]] = {lower: [], upper: []}
    for size, known in compared.items():
        if known.is_claimed:
            ahead[(known.upper if known.gain > 0 else known.lower)[1]].append(size)
    names = {mode: symbol(mode) for mode in (lower, upper)}
    for first, second in ((lower, upper), (upper, lower)):
        if ahead[first] and ahead[second] and max(ahead[first]) < min(ahead[second]):
            between = f"{counted(max(ahead[first]))} and {counted(min(ahead[second]))} examples"
            return f"{names[second]} overtakes {names[first]} between {between}."
    if ahead[lower] and ahead[upper]:
        return f"{names[lower]} and {names[upper]} change places more than once; see the table."
    for mode, other in ((lower, upper), (upper, lower)):
        if ahead[mode]:
            head = f"{names[mode]} is better than {names[other]} at"
            if len(ahead[mode]) == len(curve.sizes):
                return f"{head} each size."
            head += f" {listed(map(counted, ahead[mode]))} examples"
            level = [size for size in compared if size not in ahead[mode]]
            return f"{head}; at {listed(map(counted, level))} they cannot be told apart." if level else f"{head}."
    return f"{names[lower]} and {names[upper]} {LEVEL}."


def _compared(curve: SizeCurve, size: int, deltas: Sequence[Delta], lower: str, upper: str) -> Comparison | None:
    """The comparison of two modes at a size, if it has a p-value."""
    cells = [curve.cells[mode].get(size) for mode in (lower, upper)]
    keys = {cell.header.key for cell in cells if cell is not None}
    found = (delta.comparison for delta in deltas if delta.in_family and delta.comparison.p_holm is not None)
    return next((known for known in found if {known.upper, known.lower} == keys), None)
