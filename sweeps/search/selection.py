"""Selection by dev only: the best trial of a cell, its finals, the mean over seeds.

A trial's best epoch is chosen by `epochs.best_epoch`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from meltpoint.adapters.hyperparameters import Setting
from meltpoint.sweeps.ledger.records import Role, TrialRecord
from meltpoint.tasks.core.metrics import gain, is_lower_better

_dev: Callable[[TrialRecord], float] = attrgetter("dev")


def best_of(records: Iterable[TrialRecord]) -> TrialRecord | None:
    """The finished trial with the best dev score; ties go to fewer epochs, then to the lowest number.

    The id breaks remaining ties, so that every reader of the same records finds the same trial, in any order.
    A stopped trial is no candidate: its training did not run to the end.

    Args:
        records: of one cell, which has one metric.
    """
    finished = [one for one in records if one.status == "finished" and one.dev is not None]
    if not finished:
        return None
    choose = min if is_lower_better(finished[0].metric) else max
    scores = list(map(_dev, finished))
    best = choose(scores)
    equals = [record for record, score in zip(finished, scores, strict=True) if score == best]
    return min(equals, key=lambda record: (record.epoch_count, record.number, record.id))


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; the deviation of one seed is None, not 0."""

    mean: float
    std: float | None
    count: int


def spread(values: Sequence[float]) -> Spread | None:
    """The spread of some values; None if there are no values."""
    if not values:
        return None
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def spread_on_dev(finals: Iterable[TrialRecord]) -> Spread | None:
    """The spread of the dev scores of finals."""
    return spread([final.dev for final in finals if final.dev is not None])


def spread_on_test(finals: Iterable[TrialRecord], metric: str) -> Spread | None:
    """The spread of a metric on test; None while no final has it."""
    return spread([final.test[metric] for final in finals if final.test])


def finals_of(best: TrialRecord | None, records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The finished finals of a cell's best setting, by seed."""
    if best is None:
        return []
    return _finished(records, "final", best.setting)


def default_finals_of(
    best: TrialRecord | None, published: Setting | None, records: Iterable[TrialRecord]
) -> list[TrialRecord]:
    """The finished finals of a cell's published setting, by seed; the best setting's if both are the same.

    Args:
        best: the best search trial.
        published: the space's published setting, complete; None if a file of an older version lacks it.
        records: of the cell.
    """
    if best is None or published is None:
        return []
    return _finished(records, "final" if best.setting == published else "default", published)


def _finished(records: Iterable[TrialRecord], role: Role, setting: Setting) -> list[TrialRecord]:
    """The finished trials of a role and a setting, by seed."""
    found = [r for r in records if r.role == role and r.status == "finished" and r.setting == setting]
    return sorted(found, key=lambda record: record.seed)


def best_final(finals: Sequence[TrialRecord]) -> TrialRecord | None:
    """The finalist whose weights are kept: the best dev score, then the lowest seed."""
    return max(finals, key=lambda r: (gain(r.metric, r.dev) if r.dev is not None else -math.inf, -r.seed), default=None)
