"""Calibration of finalists: how far their probabilities are from how often they are right, before and after scaling.

It reads the predictions that are stored with the finals; nothing is trained, and no test split is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from meltpoint.reports.analyses.core.analysis import (
    CELL_COLUMNS,
    Analysis,
    AnalysisOptions,
    cell_values,
    panel_title,
    write_figure,
    write_table,
)
from meltpoint.reports.analyses.core.figures import Line, Panel, in_rows
from meltpoint.reports.analyses.core.tables import AnalysisTable, Column, Value, figures, points
from meltpoint.reports.statistics.calibration import (
    BINS,
    COLDEST,
    HOTTEST,
    SMALLEST,
    Binning,
    Scored,
    brier_score,
    calibrated_errors,
    cooled,
    error_interval,
    fitted_temperature,
    is_at_limit,
    mean_error,
    mean_of,
    negative_log_likelihood,
    reliability,
    scored,
)
from meltpoint.sweeps.ledger.predictions import check_aligned, read_predictions
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.tasks.core import kinds

NAME = "calibration"
BEFORE, AFTER, POOLED = "before", "after temperature", "all"

COLUMNS = (
    *CELL_COLUMNS, Column("split"), figures("examples", "d"), figures("seeds", "d"), points("accuracy"),
    points("confidence"), points("ECE"), points("low"), points("high"), points("if calibrated"), points("up to"),
    points("ECE equal width"), figures("Brier", ".3f"), figures("NLL", ".3f"), figures("temperature", ".2f"),
    points("ECE after temperature"), points("low after"), points("high after"), figures("Brier after", ".3f"),
    figures("NLL after", ".3f"),
)  # fmt: skip
BIN_COLUMNS = (
    *CELL_COLUMNS, Column("split"), Column("seed"), Column("probabilities"), figures("bin", "d"), figures("low", ".6f"),
    figures("high", ".6f"), figures("confidence", ".6f"), figures("accuracy", ".6f"), figures("count", "d"),
)  # fmt: skip
METHOD = (
    "All figures are means over the finals' seeds. `confidence` is the mean probability of the predicted label; above "
    "the accuracy, a model is overconfident. Figures in percent points but for Brier, NLL (nats) and temperature.",
    f"`ECE`: expected calibration error (Guo et al. 2017), {BINS} bins of equal mass, because their bias is smaller "
    "than that of bins of equal width (Roelofs et al. 2022), which stand beside it for comparison with papers. Every "
    "binned error is too high on few examples, and hides what differs within a bin (Kumar, Liang & Ma 2019).",
    "`if calibrated`, `up to`: what a perfectly calibrated model with the same confidences would show, in the mean and "
    "in 95 % of cases (consistency resampling, Vaicenavicius et al. 2019). An ECE below `up to` is no sign of bad "
    "calibration, and its interval then begins at 0.",
    "`low`, `high`: 95 % bootstrap interval of the ECE over examples (scipy.stats.bootstrap), the seeds' mean in each "
    "resample. It covers the examples and not the choice of seeds.",
    "`temperature`: fitted to each final's stored dev predictions by likelihood, and applied to its test predictions; "
    "above 1, probabilities are made less extreme. The predicted labels stay. Where a cell has no test labels, the "
    "figures are of dev, and nothing is shown after temperature, which was fitted there.",
    f"Stored probabilities have six digits; a 0 is read as {SMALLEST:.0e}, so that no likelihood is infinite.",
)


@dataclass(frozen=True)
class CellPredictions:
    """A cell's stored predictions, one a seed.

    Attributes:
        split: that of `seeds`: test, or dev where there are no test labels.
        seeds: the predictions to judge.
        after: the same after temperature scaling; empty on dev.
        temperatures: fitted on dev.
    """

    cell: CellSummary
    split: Literal["dev", "test"]
    finals: tuple[TrialRecord, ...]
    seeds: tuple[Scored, ...]
    after: tuple[Scored, ...]
    temperatures: tuple[float, ...]


def run(options: AnalysisOptions) -> list[Path]:
    """Write the table, the bins of the reliability diagrams as CSV, and the diagrams.

    Raises:
        ValueError: no sweep, or stored predictions that are damaged.
    """
    notes, read = list(METHOD), []
    for cell in options.chosen_cells(NAME):
        reason = _left_out(cell)
        if reason:
            notes.append(f"{cell_name(*cell.header.key)} is left out: {reason}.")
            continue
        read.append(predictions_of(cell, _folder(options)))
    rows = tuple(_row(one) for one in read)
    limits = [cell_name(*one.cell.header.key) for one in read if any(map(is_at_limit, one.temperatures))]
    if limits:
        notes.append(f"At a limit of the fit ({COLDEST:g} to {HOTTEST:g}), undetermined by dev: {', '.join(limits)}.")
    title = f"Calibration of the finalists of sweep {options.needed_sweep(NAME).name}"
    written = write_table(AnalysisTable(NAME, title, COLUMNS, rows, tuple(notes)), options)
    if not read:
        return written
    bins = tuple(row for one in read for row in _bin_rows(one))
    table = AnalysisTable(f"{NAME}_bins", "Bins of the reliability diagrams", BIN_COLUMNS, bins)
    only_csv = tuple(form for form in options.formats if form == "csv")
    return [
        *written, *write_table(table, replace(options, formats=only_csv)),
        *write_figure(NAME, in_rows([_panel(one) for one in read]), options),
    ]  # fmt: skip


def _folder(options: AnalysisOptions) -> StoragePath:
    assert options.ledger is not None, "a sweep has a folder"
    return options.ledger.folder / "predictions"


def _left_out(cell: CellSummary) -> str:
    """The reason why a cell has no calibration; "" if it has."""
    if not kinds.get(cell.header.kind).has_distribution:
        return f"{cell.header.kind.replace('_', ' ')} has no distribution over labels"
    if not any(final.test is not None for final in cell.finals):
        return "no finalist is scored yet"
    return ""


def predictions_of(cell: CellSummary, folder: StoragePath) -> CellPredictions:
    """Read a cell's stored predictions, and fit the temperatures.

    Raises:
        ValueError: a file is missing or damaged, or the seeds' files are of other examples.
    """
    finals = tuple(final for final in cell.finals if final.test is not None)
    dev = _read(cell, finals, folder, "dev")
    temperatures = tuple(map(fitted_temperature, dev))
    if not all(final.test for final in finals):
        return CellPredictions(cell, "dev", finals, dev, (), temperatures)
    test = _read(cell, finals, folder, "test")
    after = tuple(cooled(one, temperature) for one, temperature in zip(test, temperatures, strict=True))
    return CellPredictions(cell, "test", finals, test, after, temperatures)


def _read(
    cell: CellSummary, finals: Sequence[TrialRecord], folder: StoragePath, split: Literal["dev", "test"]
) -> tuple[Scored, ...]:  # fmt: skip
    name = cell_name(*cell.header.key)
    members = [read_predictions(folder / f"{name}.seed{final.seed}.{split}.jsonl") for final in finals]
    check_aligned(members)
    return tuple(map(scored, members))


def _row(one: CellPredictions) -> tuple[Value, ...]:
    accuracy = mean_of(one.seeds, lambda own: float(own.is_right.mean()))
    confidence = mean_of(one.seeds, lambda own: float(own.confidence.mean()))
    error, low, high, calibrated, limit = _errors(one.seeds)
    width: Binning = "width"
    after: tuple[float | None, ...] = (None,) * 5
    if one.after:
        after = (*_errors(one.after)[:3], mean_of(one.after, brier_score), mean_of(one.after, negative_log_likelihood))
    return (
        *cell_values(one.cell), one.split, len(one.seeds[0].gold), len(one.seeds), accuracy, confidence, error, low,
        high, calibrated, limit, mean_error(one.seeds, width), mean_of(one.seeds, brier_score),
        mean_of(one.seeds, negative_log_likelihood), sum(one.temperatures) / len(one.temperatures), *after,
    )  # fmt: skip


def _errors(seeds: Sequence[Scored]) -> tuple[float, float, float, float, float]:
    """(ECE, the ends of its interval, the mean and the 95 % quantile of a calibrated model's); equal in every run."""
    rng = np.random.default_rng(0)
    calibrated = calibrated_errors(seeds, rng)
    low, high = error_interval(seeds, rng, calibrated)
    return mean_error(seeds), low, high, float(calibrated.mean()), float(np.quantile(calibrated, 0.95))


def _bin_rows(one: CellPredictions) -> list[tuple[Value, ...]]:
    """The bins of each seed, and of all seeds' predictions together, before and after temperature."""
    rows: list[tuple[Value, ...]] = []
    for state, seeds in ((BEFORE, one.seeds), (AFTER, one.after)):
        for seed, own in [*zip([str(final.seed) for final in one.finals], seeds, strict=False), *_pooled(seeds)]:
            for number, each in enumerate(reliability(own.confidence, own.is_right), 1):
                figures_of = (each.low, each.high, each.confidence, each.accuracy, each.count)
                rows.append((*cell_values(one.cell), one.split, seed, state, number, *figures_of))
    return rows


def _pooled(seeds: Sequence[Scored]) -> list[tuple[str, Scored]]:
    """All seeds' predictions as one; nothing of nothing."""
    if not seeds:
        return []
    return [
        (POOLED, Scored(
            np.concatenate([one.probabilities for one in seeds]), np.concatenate([one.gold for one in seeds]),
            np.concatenate([one.predicted for one in seeds]),
        ))
    ]  # fmt: skip


def _panel(one: CellPredictions) -> Panel:
    """The reliability diagram of all seeds' predictions together."""
    lines = [Line("calibrated", (0.0, 1.0), is_reference=True, x=(0.0, 1.0))]
    for label, seeds in ((f"{BEFORE} temperature", one.seeds), (AFTER, one.after)):
        for _, own in _pooled(seeds):
            bins = reliability(own.confidence, own.is_right)
            accuracies, confidences = ([getattr(each, part) for each in bins] for part in ("accuracy", "confidence"))
            lines.append(Line(label, tuple(accuracies), x=tuple(confidences)))
    return Panel(f"{panel_title(one.cell)}, {one.split}", "accuracy", tuple(lines), (0.0, 1.02), "confidence")


ANALYSIS = Analysis(NAME, "calibration of the finalists: expected calibration error, reliability, temperature", run)
