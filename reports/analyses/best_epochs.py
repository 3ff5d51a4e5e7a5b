"""Best epoch against the cap on epochs, and how far train is ahead of dev, per cell.

Epochs come from the ledger. Training records the loss on train and, only where stack-and-finetune's gap rule asks for
it, the metric on train; so the metric on train of the final whose weights are kept is computed here, on a sample.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from meltpoint.adapters import modes
from meltpoint.reports.analyses.core.analysis import CELL_COLUMNS, Analysis, AnalysisOptions, cell_values, write_table
from meltpoint.reports.analyses.core.finalists import needed_finalist, train_score
from meltpoint.reports.analyses.core.tables import AnalysisTable, Column, Score, Value, figures, points
from meltpoint.reports.matrix import ends_at_best
from meltpoint.sweeps.ledger.records import EpochRecord, TrialRecord
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.specification.cells import cell_name

NAME = "best_epochs"
MOST_EXAMPLES = 2000
"""Training examples that are scored for the gap: enough for a standard error of about a point."""

COLUMNS = (
    *CELL_COLUMNS, Column("trials"), figures("count", "d"), figures("best epoch", ".1f"), figures("last epoch", ".1f"),
    figures("cap", ".1f"), points("best is last", ".0f"), points("best is last, constant rate", ".0f"),
    figures("train loss", ".3f"),
    points("dev"), points("gap recorded"), figures("with a gap", "d"),
)  # fmt: skip
GAP_COLUMNS = (
    *CELL_COLUMNS, figures("seed", "d"), figures("best epoch", "d"), figures("examples", "d"), points("train"),
    points("dev"), points("gap", "+.1f"),
)  # fmt: skip
METHOD = (
    "`best epoch`, `last epoch`, `cap`: medians over the finished search trials, and over the finals. The cap is what "
    "the setting allows, all phases together; `patience` may end a trial before it.",
    "`best is last`: share of trials whose best epoch is their last; `best is last, constant rate`: share that also "
    "has no schedule. There more epochs may be better. Under a schedule that ends with the last epoch the best one is "
    "expected there, so that it says nothing.",
    "`train loss`, `dev`: medians at the best epoch. The loss is the mean over the epoch's steps, with dropout, while "
    "the weights moved: it is not a score, and no difference to dev is taken of it.",
    "`gap recorded`: median of train − dev, by the task's metric, over the trials that have it (`with a gap`), in the "
    "last epoch that has it. Training scores train only where `stack_and_finetune.largest_gap` asks for it.",
)
GAP_METHOD = (
    "The final whose weights are kept, scored on training examples as it is on dev: without dropout, at its best "
    f"epoch. At most {MOST_EXAMPLES} examples, evenly spaced. Nothing is trained, and no test split is opened.",
    "A large gap with a best epoch far from the cap is overfitting: look at dropout, weight decay, fewer trained "
    "layers. A small gap with the best epoch at the cap is a model that has not finished learning.",
)


def run(options: AnalysisOptions) -> list[Path]:
    """Write the table of epochs, and that of the gaps of finals with weights.

    Raises:
        ValueError: no sweep, or not the given encoders or tasks.
    """
    sweep, cells = options.needed_sweep(NAME), options.chosen_cells(NAME)
    rows = tuple(
        _row(cell, role, trials) for cell in cells for role, trials in trials_of(cell).items() if trials
    )  # fmt: skip
    written = write_table(AnalysisTable(NAME, f"Best epochs in sweep {sweep.name}", COLUMNS, rows, METHOD), options)
    gaps: list[tuple[Value, ...]] = []
    notes = list(GAP_METHOD)
    for cell in cells:
        try:
            gaps.append(_gap_row(options, cell))
        except (ValueError, OSError) as error:
            notes.append(f"{cell_name(*cell.header.key)} has no gap: {error}")
    title = f"Train and dev scores of the finals in sweep {sweep.name}"
    return [
        *written,
        *write_table(AnalysisTable(f"{NAME}_gap", title, GAP_COLUMNS, tuple(gaps), tuple(notes)), options),
    ]


def trials_of(cell: CellSummary) -> dict[str, list[TrialRecord]]:
    """Role → the finished trials of a cell that have epochs."""
    return {
        role: [one for one in trials if one.status == "finished" and one.epochs]
        for role, trials in (("search", cell.search), ("finals", cell.finals))
    }


def _row(cell: CellSummary, role: str, trials: Sequence[TrialRecord]) -> tuple[Value, ...]:
    best = [best_of(one) for one in trials]
    gaps = [gap for one in trials if (gap := recorded_gap(one)) is not None]
    metric = cell.header.metric
    dev = statistics.median(one.dev[metric] for one in best)
    return (
        *cell_values(cell), role, len(trials), statistics.median(one.epoch for one in best),
        statistics.median(one.last_epoch for one in trials), statistics.median(map(cap_of, trials)),
        statistics.fmean(one.best_epoch == one.last_epoch for one in trials),
        statistics.fmean(map(ends_at_best, trials)), statistics.median(one.train_loss for one in best),
        *Score.each((dev, statistics.median(gaps) if gaps else None), metric), len(gaps),
    )  # fmt: skip


def best_of(record: TrialRecord) -> EpochRecord:
    """The best epoch of a finished trial."""
    return next(epoch for epoch in record.epochs if epoch.epoch == record.best_epoch)


def cap_of(record: TrialRecord) -> int:
    """The number of epochs that a trial's setting allows, all phases together."""
    return sum(phase.epochs for phase in modes.get(record.mode).phases(record.setting))


def recorded_gap(record: TrialRecord) -> float | None:
    """The task's metric on train less that on dev in the last epoch with both; None where no epoch has."""
    gaps = [one.train[record.metric] - one.dev[record.metric] for one in record.epochs if record.metric in one.train]
    return gaps[-1] if gaps else None


def _gap_row(options: AnalysisOptions, cell: CellSummary) -> tuple[Value, ...]:
    """The gap of a cell's kept final.

    Raises:
        ValueError: it has no final with weights, or its data or encoder are missing or others.
    """

    final = needed_finalist(options, cell)
    assert final.dev is not None, "a finished final has a dev score"
    score, examples = train_score(options, final, MOST_EXAMPLES)
    return (
        *cell_values(cell), final.seed, final.best_epoch, examples,
        *Score.each((score, final.dev, score - final.dev), cell.header.metric),
    )  # fmt: skip


ANALYSIS = Analysis(NAME, "best epoch against the cap, and how far train is ahead of dev", run)
