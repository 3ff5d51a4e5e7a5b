"""The notes on how to read the ❄/🔥 table, the same ones in every format."""

from __future__ import annotations

from collections.abc import Sequence

from meltpoint.reports.formats import symbol
from meltpoint.reports.matrix import ENSEMBLE_NOTE
from meltpoint.reports.tuning import TuningGain, ran_nowhere
from meltpoint.sweeps.results.summary import SweepSummary
from meltpoint.tasks.core.metrics import is_lower_better
from meltpoint.tasks.core.wording import some

SPREAD_NOTE = (
    "Figures are ×100 (correlations too): the mean ± the sample standard deviation over seeds, on test unless marked "
    "`dev`. One seed has no deviation."
)
DIFFERENCE_NOTE = (
    "Δ is the difference of two means on the same split, with its 95 % interval from a paired bootstrap over seeds and "
    "examples: other seeds and other examples of the same kind would mostly give a Δ within it. Another search might "
    "have found another setting; no interval covers that. Without an interval, ± is the standard error over seeds "
    "alone, sqrt(s1²/n1 + s2²/n2)."
)
HOLM_NOTE = (
    "Adjusted p: Holm's, over all Δ of the table by each task's own metric; below 0.05 a difference is claimed. The "
    "intervals are each for itself. "
    "P(A > B): the probability that one run of A beats one of B on new examples."
)
TUNING_NOTE = (
    "What tuning bought: the winner's finals minus the published setting's, with the same seeds. These intervals are "
    "each for itself."
)
STAR_NOTE = "★ marks the recommended mode of each task; its sentence says how certain that is."
ENOUGH_SEEDS = 6
"""The fewest pairs with which an exact two-sided sign-flip test can be below 0.05: 2 / 2⁶ = 0.031."""


def legend(summary: SweepSummary, gains: Sequence[TuningGain]) -> list[str]:
    """The notes of a sweep's table, one line each."""
    lines = [STAR_NOTE, SPREAD_NOTE, *_errors(summary), DIFFERENCE_NOTE, *searches_note(summary), HOLM_NOTE]
    lines += [TUNING_NOTE] if gains and not ran_nowhere(gains) else []
    lines += seeds_note(summary)
    return lines + ([ENSEMBLE_NOTE] if summary.ensembles else [])


def seeds_note(summary: SweepSummary) -> list[str]:
    """One line that recommends more seeds, if a cell plans fewer than six."""
    planned = [summary.seeds_of(cell) for cell in summary.cells]
    if not planned or min(planned) >= ENOUGH_SEEDS:
        return []
    fewest = min(planned)
    return [
        f"Finals have {some(fewest, 'seed')}: six or more are recommended (--seeds 6), since an exact two-sided "
        f"sign-flip test on {some(fewest, 'pair')} cannot go below p = {2 ** (1 - fewest):.4g}; six reach 0.031."
    ]


def searches_note(summary: SweepSummary) -> list[str]:
    """One line that says whether the modes had equal searches, if there are several."""
    spec, searches = summary.spec, dict[str, list[str]]()
    for block in spec.products():
        for mode in block.modes:
            searches.setdefault(mode, []).append(f"{some(block.trials, 'setting')} by {spec.searcher_of(block)}")
    if len(searches) < 2:
        return []
    each = {mode: " or ".join(dict.fromkeys(texts)) for mode, texts in searches.items()}
    if len({*each.values()}) == 1:
        return [f"The modes have equal searches: {each.popitem()[1]} in a cell."]
    unequal = ", ".join(f"{symbol(mode)} {text}" for mode, text in each.items())
    return [
        f"The modes have unequal searches: {unequal} in a cell. Of more settings the best is better by chance alone."
    ]


def _errors(summary: SweepSummary) -> list[str]:
    """The note on columns of errors, where there are any."""
    heads = [cell.header for cell in summary.cells]
    names = dict.fromkeys(name for head in heads for name in (head.metric, *head.beside) if is_lower_better(name))
    return (
        [
            f"Of {' and '.join(names)} lower is better, so that there a Δ below 0 is for the upper side; they are "
            "in the unit of the task's scores, not ×100."
        ]
        if names
        else []
    )
