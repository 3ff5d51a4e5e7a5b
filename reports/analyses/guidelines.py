"""P1, table 1: when to freeze (❄) and when to fine-tune (🔥), from the finals of a sweep, with their uncertainty.

Δ = 🔥 − ❄ of each encoder on each task, and its mean over the tasks of a kind. The advice follows from the 95 %
interval of Δ: a mode if the interval excludes 0, `❄ ≈ 🔥` if it contains 0 and stays within one point of it, and none
if it is wider or a cell has fewer than two seeds. If a mode has heads of several sizes on a task, a second table
compares many task parameters with few in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from meltpoint.reports.analyses.core.analysis import Analysis, AnalysisOptions, write_table
from meltpoint.reports.analyses.core.tables import AnalysisTable, Column, Value, figures, points
from meltpoint.reports.analyses.core.welch import MeanDifference, average, mean_difference
from meltpoint.reports.matrix import FROZEN, TUNED
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.search.selection import Spread
from meltpoint.sweeps.specification.cells import cell_name

NAME = "guidelines"

COLUMNS = (
    Column("encoder"), Column("kind"), Column("task"), Column("split"), points("❄"), points("🔥"), points("Δ", "+.1f"),
    points("low", "+.1f"), points("high", "+.1f"), Column("seeds"), Column("advice"), Column("P1 says"),
)  # fmt: skip
FREEZE, TUNE, EITHER, UNKNOWN = "use ❄", "use 🔥", "❄ ≈ 🔥", "cannot be told"
SMALL = 0.01
"""P1 colours differences of at least one point (table 2)."""

HEAD_COLUMNS = (
    Column("encoder"), Column("mode"), Column("task"), Column("split"), Column("few"), figures("parameters", ",d"),
    points("score"), Column("many"), figures("parameters of many", ",d"), points("score of many"), points("Δ", "+.1f"),
    points("low", "+.1f"), points("high", "+.1f"), Column("seeds"), Column("advice"), Column("P1 says"),
)  # fmt: skip
ADD, SPARE, ALIKE = "add task parameters", "add few task parameters", "few do as well as many"
PAPER_HEADS = {FROZEN: "add many task parameters", TUNED: "add minimal task parameters"}

HEAD_METHOD = (
    "Few and many: the heads with the fewest and the most task parameters (all trained parameters outside the encoder) "
    "that the sweep has for a mode on a task; among equals, the best on dev.",
    "Δ = many − few; its interval and the advice are computed as in the first table.",
    "Heads differ in more than their size; so do those that P1 compares.",
)

METHOD = (
    "❄, 🔥: the mean over the finals' seeds ×100, on test where both cells are scored there, else on dev. Δ = 🔥 − ❄; "
    "low and high bound its 95 % interval (Welch's, over seeds). Of several variants of a mode on a task, the best on "
    "dev is shown.",
    "Advice: the better mode if the interval excludes 0 (with a note if Δ is under one point, which P1's table 2 does "
    "not colour), `❄ ≈ 🔥` if it contains 0 and stays within one point of it, `cannot be told` if it is wider (more "
    "seeds make it narrower) or a cell has fewer than two seeds.",
    "`all of the kind` is the mean Δ over the tasks above it; its interval covers their seeds, not the choice of "
    "tasks. Nothing covers the search: another one might have found another setting.",
    "P1 says: table 1 of Peters, Ruder & Smith 2019, which studied ELMo and BERT-base.",
)
WHOLE = "all of the kind"


def run(options: AnalysisOptions) -> list[Path]:
    """Compute the tables from the sweep's finals.

    Raises:
        ValueError: no sweep, a sweep without both modes, or a cell without finals.
    """
    sweep = options.needed_sweep(NAME)
    rows: list[tuple[Value, ...]] = []
    grouped: dict[tuple[str, str], list[tuple[CellSummary, CellSummary]]] = {}
    for encoder, task in options.pairs():
        by_mode = {mode: best_on_dev(cells) for mode, cells in _by_mode(options, encoder, task).items()}
        if not {FROZEN, TUNED} <= set(by_mode):
            raise ValueError(f"{NAME} compares {FROZEN} and {TUNED}; sweep '{sweep.name}' does not have both.")
        frozen, tuned = by_mode[FROZEN], by_mode[TUNED]
        grouped.setdefault((encoder, frozen.header.kind), []).append((frozen, tuned))
    for (encoder, kind), cells in grouped.items():
        rows += _kind_rows(encoder, kind, cells)
    table = AnalysisTable(NAME, f"Guidelines from sweep {sweep.name}", COLUMNS, tuple(rows), METHOD)
    return [*write_table(table, options), *_heads(options, sweep.name)]


def _by_mode(options: AnalysisOptions, encoder: str, task: str) -> dict[str, list[CellSummary]]:
    by_mode: dict[str, list[CellSummary]] = {}
    for cell in options.cells(encoder, task):
        by_mode.setdefault(cell.header.mode, []).append(cell)
    return by_mode


def best_on_dev(cells: Sequence[CellSummary]) -> CellSummary:
    """The cell (variant) of a mode whose finals are best on dev; the first among equals."""
    return max(cells, key=lambda cell: -math.inf if cell.dev is None else cell.dev.mean)


def _heads(options: AnalysisOptions, name: str) -> list[Path]:
    """Write the table of many task parameters against few; no file if no mode has heads of several sizes."""
    rows: list[tuple[Value, ...]] = []
    for encoder, task in options.pairs():
        for mode, cells in _by_mode(options, encoder, task).items():
            sizes: dict[int, list[CellSummary]] = {}
            for cell in cells:
                if cell.dev is not None and cell.best is not None and cell.best.task_parameters is not None:
                    sizes.setdefault(cell.best.task_parameters, []).append(cell)
            if len(sizes) > 1:
                rows.append(_head_row(mode, sizes))
    if not rows:
        return []
    title = f"Task parameters, many against few, from sweep {name}"
    return write_table(AnalysisTable(f"{NAME}_heads", title, HEAD_COLUMNS, tuple(rows), HEAD_METHOD), options)


def _head_row(mode: str, sizes: dict[int, list[CellSummary]]) -> tuple[Value, ...]:
    few, many = best_on_dev(sizes[min(sizes)]), best_on_dev(sizes[max(sizes)])
    split, below, above = _means(few, many)
    difference = mean_difference(above, below)
    low, high = difference.interval or (None, None)
    return (
        few.header.encoder, mode, few.header.task, split, few.header.head, min(sizes), below.mean, many.header.head,
        max(sizes), above.mean, difference.mean, low, high, f"{below.count} and {above.count}",
        verdict(difference, ADD, SPARE, ALIKE), PAPER_HEADS.get(mode, "not studied"),
    )  # fmt: skip


def _kind_rows(encoder: str, kind: str, cells: list[tuple[CellSummary, CellSummary]]) -> list[tuple[Value, ...]]:
    """One row per task, and one for the kind if it has several tasks."""
    kind_text, rows, differences = kind.replace("_", " "), [], []
    for frozen, tuned in cells:
        split, below, above = _means(frozen, tuned)
        difference = mean_difference(above, below)
        differences.append(difference)
        rows.append(
            _row(encoder, kind_text, frozen.header.task, split, below.mean, above.mean, difference,
                 f"{below.count} and {above.count}", paper_advice(encoder, kind))
        )  # fmt: skip
    if len(differences) > 1:
        rows.append(
            _row(encoder, kind_text, WHOLE, None, None, None, average(differences), None, paper_advice(encoder, kind))
        )  # fmt: skip
    return rows


def _means(lower: CellSummary, upper: CellSummary) -> tuple[str, Spread, Spread]:
    """The split that both cells are scored on, and their scores there."""
    for cell in (lower, upper):
        if cell.dev is None:
            name = cell_name(*cell.header.key)
            raise ValueError(f"Cell '{name}' has no finals yet; finish the sweep, or leave its task out with --task.")
    if lower.test and upper.test:
        return "test", lower.test, upper.test
    assert lower.dev
    assert upper.dev
    return "dev", lower.dev, upper.dev


def _row(
    encoder: str, kind: str, task: str, split: str | None, frozen: float | None, tuned: float | None,
    difference: MeanDifference, seeds: str | None, paper: str,
) -> tuple[Value, ...]:  # fmt: skip
    low, high = difference.interval or (None, None)
    return encoder, kind, task, split, frozen, tuned, difference.mean, low, high, seeds, advice(difference), paper


def advice(difference: MeanDifference) -> str:
    """The advice that follows from the difference 🔥 − ❄."""
    return verdict(difference, TUNE, FREEZE, EITHER)


def verdict(difference: MeanDifference, upper: str, lower: str, alike: str) -> str:
    """The conclusion from a difference: `upper` or `lower` is better, both are `alike`, or it cannot be told."""
    interval = difference.interval
    if interval is None:
        return UNKNOWN
    if interval[0] <= 0 <= interval[1]:
        return (
            alike if max(map(abs, interval)) <= SMALL else UNKNOWN
        )  # a wide interval does not show that they are alike
    better = upper if difference.mean > 0 else lower
    return better if abs(difference.mean) >= SMALL else f"{better} (by under one point)"


def paper_advice(encoder: str, kind: str) -> str:
    """P1's advice (table 1) for an encoder and a kind of task; on sentence pairs only for ELMo and BERT."""
    if not kind.startswith("pair"):
        return EITHER
    return FREEZE if encoder.startswith("elmo") else TUNE if encoder.startswith("bert-base") else "not studied"


ANALYSIS = Analysis(NAME, "table 1: freeze or fine-tune, from a sweep's finals and their uncertainty", run)
