"""Scores of cells in words, for tables, pages, the terminal and MLflow alike."""

from __future__ import annotations

from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.search.selection import Spread
from meltpoint.tasks.core.scoring import score_text, scores_text

NOTHING = "–"
"""Stands where there is no score."""


def spread_text(spread: Spread | None, metric: str) -> str:
    """`85.1 ± 0.3`, in the metric's unit; without the deviation of a single seed; a dash of none."""
    return NOTHING if spread is None else scores_text(spread.mean, spread.std, metric)


def best_dev_text(best: TrialRecord | None) -> str:
    """The dev score of a cell's best trial; a dash where there is none yet."""
    return NOTHING if best is None or best.dev is None else score_text(best.dev, best.metric)
