"""The rules that wait for a better dev score: training ends after so many epochs without one, or its rate falls.

Prechelt 1998, "Early Stopping - But When?", section 2.1 (UP_s, here on the best score); AllenNLP's `patience`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from meltpoint.adapters.multiplier_table import Plan
from meltpoint.adapters.training.epoch_result import EpochResult, best_epoch
from meltpoint.tasks.core.metrics import gain

PLATEAU = 1e-4
"""The share of the best score by which a better one exceeds it: the default of torch's ReduceLROnPlateau."""


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


def plateaus(results: Sequence[EpochResult], plan: Plan, patience: int, metric: str) -> tuple[int, ...]:
    """The epochs after which `reduce_on_plateau` lowers the rate: more than `patience` in a row were not better.

    As torch's ReduceLROnPlateau counts them, which AllenNLP's `reduce_on_plateau` is, from 0 in each span of the
    schedule. torch takes a lower score for a better one where the best so far is a negative correlation; this does not.

    Args:
        results: the trial's epochs so far, in order.
        patience: 0 lowers the rate after each epoch that is not better.
        metric: the task's own.
    """
    found: list[int] = []
    best, waited, phase = -math.inf, 0, ""
    for result in results:
        if plan.restart_schedule and result.phase != phase:
            best, waited, phase = -math.inf, 0, result.phase
        score = gain(metric, result.dev[metric])
        if score > best * (1 + math.copysign(PLATEAU, best)):
            best, waited = score, 0
        else:
            waited += 1
        if waited > patience:
            found.append(result.epoch)
            waited = 0
    return tuple(found)
