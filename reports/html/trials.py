"""A cell's search trials for the page: rows of its table, axes and rows of its plots, and each axis's importance.

Importance is PED-ANOVA (Watanabe, Bansal & Hutter 2023, arXiv 2304.10255), by Optuna: a hyperparameter's share of the
importance for reaching the top quantile of dev. Conditional hyperparameters count by the trials that have them (arXiv
2601.20800). It assumes trials drawn at random; TPE's trials crowd where dev was good, so a hyperparameter that TPE
settled early looks unimportant.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from meltpoint.adapters import settings
from meltpoint.adapters.hyperparameters import Value
from meltpoint.reports.formats import searched_names
from meltpoint.reports.html.front import ends
from meltpoint.search_spaces import documents, files
from meltpoint.search_spaces.ranges import Choice, Integer, Range, Real, active
from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.results.sweep_file import CellHeader
from meltpoint.tasks.core.metrics import gain
from meltpoint.tasks.core.scoring import axis_name, scale
from meltpoint.tasks.core.wording import counted, some

MOST_ROWS = 12_000
"""Most trials in the tables of a page; at about 250 bytes each, the page stays below 5 MB."""
MOST_LINES, MOST_POINTS, MOST_CURVES = 400, 1500, 60
"""Most trials in a cell's parallel coordinates, its plots of single hyperparameters, and its learning curves."""
FEWEST_TRIALS = 10
"""With fewer trials, no importance is computed: the top quantile would be more than half of them."""
FEWEST_ABOVE, SMALLEST_QUANTILE = 5, 0.1
"""Optuna's advice and default: at least five trials in the top quantile, a tenth of the trials."""
DIGITS = 6
"""Significant digits of a searched value in tables and plots; the best setting is shown exactly."""

T = TypeVar("T")


@dataclass(frozen=True)
class Axis:
    """A searched hyperparameter as an axis.

    Attributes:
        range: in words: `1e-5 … 1e-4, log`, `2, 3, 4`.
        values: of a categorical axis, in order; empty for a numeric one.
        low, high: of a numeric axis; None if the space does not say.
        log: True if the axis is logarithmic, as the range is.
        conditions: the settings in which the hyperparameter has an effect.
    """

    name: str
    range: str = ""
    values: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    log: bool = False
    conditions: Any = field(default_factory=dict)


@dataclass(frozen=True)
class TrialRows:
    """The trials of a cell that the page shows, and notes on omissions.

    Attributes:
        axes: the searched hyperparameters.
        columns: name → a value for each row; `settings` has a list for each axis.
        lines, points: the rows that parallel coordinates and scatter plots draw.
        curves: (row, [(epoch, dev score)]) of the learning curves.
        metric: of the scores.
        notes: omissions and missing data, a sentence each.
    """

    axes: tuple[Axis, ...]
    columns: dict[str, list[Any]]
    lines: list[int]
    points: list[int]
    curves: list[tuple[int, list[tuple[int, float | None]]]]
    metric: str
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The object that the page's scripts read."""
        axes = [
            {"name": a.name, "values": a.values, "low": a.low, "high": a.high, "log": a.log} for a in self.axes
        ]  # fmt: skip
        return {
            "axes": axes, "rows": self.columns, "lines": self.lines, "points": self.points, "curves": self.curves,
            "scale": scale(self.metric), "limits": ends(self.metric), "score": f"dev {axis_name(self.metric)}",
        }  # fmt: skip


def trial_rows(cell: CellSummary, most_rows: int = MOST_ROWS) -> TrialRows:
    """The trials of a cell's search, the best first.

    Args:
        most_rows: the maximum number of trials in the table.
    """
    axes, notes = axes_of(cell.header)
    ranked = sorted(cell.search, key=_rank)
    kept = thinned(ranked, most_rows)
    place = {id(record): row for row, record in enumerate(kept)}
    scored = [record for record in kept if record.dev is not None]
    followed = [record for record in scored if record.epoch_count]
    lines, points, curves = thinned(scored, MOST_LINES), thinned(scored, MOST_POINTS), thinned(followed, MOST_CURVES)
    said = [
        _left_out("The table has", len(kept), len(ranked), "`meltpoint.load_sweep` has all."),
        _left_out("Parallel coordinates draw", len(lines), len(scored)),
        _left_out("The plots of single hyperparameters draw", len(points), len(scored)),
        _left_out("Learning curves are drawn of", len(curves), len(followed)),
    ]
    return TrialRows(
        axes, _columns(kept, axes), [place[id(one)] for one in lines], [place[id(one)] for one in points],
        [(place[id(one)], _curve(one)) for one in curves], cell.header.metric, (*notes, *filter(None, said)),
    )  # fmt: skip


def _rank(record: TrialRecord) -> tuple[bool, float, int]:
    return record.dev is None, -gain(record.metric, record.dev or 0.0), record.number


def thinned(ranked: Sequence[T], most: int) -> list[T]:
    """Up to `most` items in order: all, or half of `most` from the top and the rest evenly from the others."""
    if len(ranked) <= most:
        return list(ranked)
    best = most // 2
    others, wanted = len(ranked) - best, most - best
    return [*ranked[:best], *(ranked[best + place * others // wanted] for place in range(wanted))]


def _left_out(what: str, shown: int, there: int, more: str = "") -> str:
    """The sentence about a thinned list; "" if nothing is left out."""
    if shown == there:
        return ""
    half = counted(shown // 2)
    text = f"{what} {counted(shown)} of {some(there, 'trial')}: the best {half} by dev, and others evenly by rank."
    return f"{text} {more}".strip()


def axes_of(header: CellHeader) -> tuple[tuple[Axis, ...], list[str]]:
    """The searched hyperparameters of a cell as axes, and a note if their ranges are unknown."""
    try:
        ranges = space_of(header).parameters
    except ValueError as error:
        reason = f"This version does not know the ranges of the search ({error}), so the axes are linear."
        try:
            return tuple(Axis(name) for name in searched_names(header)), [reason]
        except ValueError:
            return (), [reason]
    return tuple(axis_of(name, range_) for name, range_ in ranges.items() if range_.count != 1), []


def axis_of(name: str, range_: Range) -> Axis:
    """A range as an axis; a choice of numbers becomes categories in ascending order."""
    if isinstance(range_, Real):
        text = f"{range_.low:g} … {range_.high:g}{', log' if range_.log else ''}"
        return Axis(name, text, (), range_.low, range_.high, range_.log, range_.when)
    if isinstance(range_, Integer):
        return Axis(name, f"{range_.low} … {range_.high}", (), range_.low, range_.high, False, range_.when)
    values = range_.values if isinstance(range_, Choice) else ()
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        values = tuple(sorted(values, key=lambda value: float(value)))
    texts = tuple(map(text_of, values))
    return Axis(name, ", ".join(texts), texts, conditions=range_.when)


def text_of(value: Value) -> str:
    """A value of a categorical axis."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


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


def importances(cell: CellSummary, axes: Sequence[Axis]) -> tuple[dict[str, float], str]:
    """Axis → its importance, if enough finished trials have it; and the reason why figures are missing."""
    scored = [record for record in cell.search if record.status == "finished" and record.dev is not None]
    if len(scored) < FEWEST_TRIALS:
        return {}, f"No importance yet: {some(len(scored), 'scored trial')}; it needs at least {FEWEST_TRIALS}."
    if len({one.dev for one in scored}) < 2:
        return {}, "No importance: all trials have the same score."
    if not axes:
        return {}, ""
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    try:
        space = space_of(cell.header)
        for record in scored:
            params, distributions = space.from_params(record.setting)
            value = gain(record.metric, record.dev or 0.0)
            study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=value))
    except ValueError as error:
        return {}, f"No importance: {error}"
    trials = study.get_trials(deepcopy=False)
    having = [axis.name for axis in axes if sum(axis.name in one.params for one in trials) >= FEWEST_TRIALS]
    evaluator = PedAnovaImportanceEvaluator(target_quantile=max(SMALLEST_QUANTILE, FEWEST_ABOVE / len(scored)))
    with warnings.catch_warnings():  # on few trials; the page says so itself
        warnings.simplefilter("ignore")
        return get_param_importances(study, evaluator=evaluator, params=having), ""


def _columns(records: Sequence[TrialRecord], axes: Sequence[Axis]) -> dict[str, list[Any]]:
    return {
        "number": [record.number + 1 for record in records], "id": [record.id for record in records],
        "status": [record.status for record in records], "from": [record.suggested_by or "" for record in records],
        "dev": [record.dev if record.dev is None else round(record.dev, 8) for record in records],
        "epoch": [record.best_epoch for record in records], "epochs": [record.epoch_count for record in records],
        "seconds": [round(record.seconds, 1) for record in records],
        "run": [record.mlflow_run_id or "" for record in records],
        "error": [" ".join((record.error or "").split())[:200] for record in records],
        "settings": [[_value(axis, record.setting) for record in records] for axis in axes],
    }  # fmt: skip


def _value(axis: Axis, setting: dict[str, Value]) -> float | str | None:
    """A trial's value on an axis; None if the hyperparameter has no effect in its setting."""
    value = setting.get(axis.name)
    if value is None or not active(axis.conditions, setting):
        return None
    if axis.values or isinstance(value, bool | str):
        return text_of(value)
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _curve(record: TrialRecord) -> list[tuple[int, float | None]]:
    return [(epoch.epoch, _rounded(epoch.dev.get(record.metric))) for epoch in record.epochs]


def _rounded(score: float | None) -> float | None:
    return score if score is None or score != score else round(score, DIGITS)
