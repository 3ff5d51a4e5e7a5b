"""The patience rule: a trial ends once so many epochs in a row have not raised its best dev score.

Prechelt 1998, "Early Stopping - But When?", section 2.1 (UP_s, here on the best score); AllenNLP's `patience`.
"""

from __future__ import annotations

from collections.abc import Sequence

from meltpoint.adapters.multiplier_table import Plan
from meltpoint.adapters.training.epoch_result import EpochResult, best_epoch


def is_over(results: Sequence[EpochResult], plan: Plan, patience: int, metric: str) -> bool:
    """True where a trial has waited `patience` epochs for a better dev score.

    Only epochs of the plan's last phase are counted, and compared with each other.

    Args:
        results: the trial's epochs so far, at least one.
        patience: 0 never ends a trial.
        metric: the task's own.
    """
    best = best_epoch(results, metric, plan.phases[-1].name)
    return best is not None and 0 < patience <= results[-1].epoch - best.epoch
