"""Hyperparameter importance of a cell's search, by Optuna's evaluators on its finished trials."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meltpoint.adapters import settings
from meltpoint.adapters.hyperparameters import Setting, Value
from meltpoint.search_spaces import documents, files
from meltpoint.search_spaces.ranges import Choice, Integer, Range, Real
from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.guards import EDGE
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.results.sweep_file import CellHeader
from meltpoint.tasks.core.metrics import gain

if TYPE_CHECKING:  # slow to import
    import optuna

FEWEST_TRIALS = 10
"""Below this nothing is shown, because PED-ANOVA's top quantile would be more than half of the trials."""
FEWEST_ABOVE, SMALLEST_QUANTILE = 5, 0.1
"""Optuna's advice and default: at least five trials in the top quantile, a tenth of the trials."""
TREES_SEED = 0


@dataclass(frozen=True)
class Importance:
    """A searched parameter of a cell.

    Attributes:
        range: its values in the space.
        trials: the number of finished trials that have it.
        ped_anova: its share of the importance for reaching the top quantile; None where too few trials have it.
        fanova: the share of the variance of dev that it explains alone, by a random forest; None like `ped_anova`.
        best: its value in the best setting; None where that does not have it.
        edge: "low" or "high" where that value lies at the edge of its range, else None.
    """

    name: str
    range: Range
    trials: int
    ped_anova: float | None
    fanova: float | None
    best: Value | None
    edge: str | None


def space_of(header: CellHeader) -> Space:
    """The space that a cell of `sweep.json` was searched in.

    Raises:
        ValueError: this version does not know one of its parameters.
    """
    allowed = {parameter.name: parameter for parameter in settings.parameters(header.mode, header.head)}
    document = documents.parse(header.space, "sweep.json")
    if not isinstance(document, dict):
        raise ValueError("sweep.json: a cell holds no space; restore the file.")
    return Space.of(files.parameters_of(document, "sweep.json"), allowed, where="sweep.json")


def scored_trials(cell: CellSummary) -> list[TrialRecord]:
    """The search trials that count: finished, with a score."""
    return [record for record in cell.search if record.status == "finished" and record.dev is not None]


def importances(cell: CellSummary) -> list[Importance]:
    """The searched parameters of a cell, the most important by PED-ANOVA first; in the space's order without figures.

    Raises:
        ValueError: the cell's space or a trial's setting is of another version.
    """
    space, trials = space_of(cell.header), scored_trials(cell)
    searched = {name: range_ for name, range_ in space.parameters.items() if range_.count != 1}
    study = study_of(space, trials)
    having = {name: sum(name in one.params for one in told(study)) for name in searched}
    shown = [name for name in searched if having[name] >= FEWEST_TRIALS]
    ped, forest = (ped_anova(study, shown), fanova(study, shown)) if _tells(trials) else ({}, {})
    best: Setting = space.trimmed(cell.best.setting) if cell.best else {}
    found = [
        Importance(
            name, range_, having[name], ped.get(name), forest.get(name), best.get(name),
            edge_of(range_, best[name]) if name in best else None,
        ) for name, range_ in searched.items()
    ]  # fmt: skip
    return sorted(found, key=lambda one: -1.0 if one.ped_anova is None else one.ped_anova, reverse=True)


def _tells(trials: Sequence[TrialRecord]) -> bool:
    """True if there are enough trials, and they do not all have one score."""
    return len(trials) >= FEWEST_TRIALS and len({one.dev for one in trials}) > 1


def study_of(space: Space, trials: Sequence[TrialRecord]) -> optuna.Study:
    """An Optuna study in memory of finished trials; fixed parameters are no part of it.

    Raises:
        ValueError: a setting does not belong to the space.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    for record in trials:
        params, distributions = space.from_params(record.setting)
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=_gain(record)))
    return study


def told(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """The trials of a study. `Study.trials` copies all of them, which takes a second for five thousand."""
    return study.get_trials(deepcopy=False)


def _gain(record: TrialRecord) -> float | None:
    return None if record.dev is None else gain(record.metric, record.dev)


def target_quantile(trials: int) -> float:
    """The top quantile of PED-ANOVA: a tenth of the trials, or the share that five of them are."""
    return max(SMALLEST_QUANTILE, FEWEST_ABOVE / trials)


def ped_anova(study: optuna.Study, names: Sequence[str]) -> dict[str, float]:
    """Each parameter's share of the importance for reaching the top quantile of dev (Watanabe et al. 2023).

    A conditional parameter counts by the trials that have it, and not by the choice that gives it to them, whose share
    the other parameter has (conditional PED-ANOVA, arXiv 2601.20800).
    """
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    evaluator = PedAnovaImportanceEvaluator(target_quantile=target_quantile(len(told(study))))
    with warnings.catch_warnings():  # on few trials, of which the notes of the table tell
        warnings.simplefilter("ignore")
        return get_param_importances(study, evaluator=evaluator, params=list(names))


def fanova(study: optuna.Study, names: Sequence[str]) -> dict[str, float]:
    """The share of the variance of dev over the space that each parameter explains alone (Hutter et al. 2014).

    A random forest is fitted to the parameters that all trials have; for a conditional one, to the trials that have it
    and the parameters that all of these have. What is missing to 1 is interactions.
    """
    trials, groups = told(study), dict[frozenset[int], list[str]]()
    for name in names:
        groups.setdefault(frozenset(one.number for one in told(study) if name in one.params), []).append(name)
    found: dict[str, float] = {}
    for numbers, own in groups.items():
        common = [name for name in names if all(name in trials[number].params for number in numbers)]
        shares = _forest(study, common)
        found |= {name: shares[name] for name in own if name in shares}
    return found


def _forest(study: optuna.Study, names: list[str]) -> dict[str, float]:
    """The shares by a forest on the trials that have all of some parameters; none if these have one score."""
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    values = {one.value for one in told(study) if set(names) <= one.params.keys()}
    if len(values) < 2:
        return {}
    evaluator = FanovaImportanceEvaluator(seed=TREES_SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return get_param_importances(study, evaluator=evaluator, params=names, normalize=False)


def edge_of(range_: Range, value: Value) -> str | None:
    """The end of a range that a value lies at; None in between, and where the values have no order.

    Two values are no range: one of them is always best.
    """
    if isinstance(range_, Real) and range_.high > range_.low:
        scale = math.log if range_.log else float
        place = (scale(float(value)) - scale(range_.low)) / (scale(range_.high) - scale(range_.low))
        return "low" if place <= EDGE else "high" if place >= 1 - EDGE else None
    if isinstance(range_, Choice):
        ends = [float(one) for one in range_.values if not isinstance(one, bool | str)]
        if len(ends) < max(3, len(range_.values)):
            return None
        return "low" if value == min(ends) else "high" if value == max(ends) else None
    if isinstance(range_, Integer) and range_.high > range_.low + 1:
        return "low" if value == range_.low else "high" if value == range_.high else None
    return None
