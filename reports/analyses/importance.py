"""Hyperparameter importance per cell: which searched parameters decided whether a trial was among the best.

PED-ANOVA (Watanabe, Bansal & Hutter 2023) is the main figure, fANOVA (Hutter, Hoos & Leyton-Brown 2014) stands beside
it. Both are Optuna's.
"""

from __future__ import annotations

import math
from pathlib import Path

from meltpoint.reports.analyses.core.analysis import (
    CELL_COLUMNS,
    Analysis,
    AnalysisOptions,
    cell_values,
    panel_title,
    write_figure,
    write_table,
)
from meltpoint.reports.analyses.core.figures import BarPanel, Bars, in_rows
from meltpoint.reports.analyses.core.tables import AnalysisTable, Column, Value, figures
from meltpoint.reports.formats import value_text
from meltpoint.reports.statistics.importance import FEWEST_TRIALS, Importance, importances, scored_trials
from meltpoint.search_spaces.build import description
from meltpoint.sweeps.results.guards import EDGE
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.tasks.core.wording import some

NAME = "importance"
SHOWN = 8  # parameters of a cell in the figure; more are unreadable

COLUMNS = (
    *CELL_COLUMNS, Column("parameter"), figures("PED-ANOVA", ".2f"), figures("fANOVA", ".2f"), figures("trials", "d"),
    Column("best"), Column("range"), Column("edge"),
)  # fmt: skip
METHOD = (
    "PED-ANOVA (Watanabe, Bansal & Hutter 2023), by Optuna: the parameter's share of the importance for reaching the "
    "top quantile of dev, a tenth of the finished trials but at least five of them; the shares of a cell sum to 1.",
    "fANOVA (Hutter, Hoos & Leyton-Brown 2014), by Optuna: the share of the variance of dev over the whole space that "
    "the parameter explains alone, by a random forest; what is missing to 1 is interactions of parameters.",
    f"A parameter that fewer than {FEWEST_TRIALS} finished trials have has no importance here, and a cell with fewer "
    "trials none at all. These figures have no interval: with a few dozen trials, only large differences mean "
    "something, and neighbouring ranks do not.",
    "Conditional parameters count by the trials that have them. PED-ANOVA takes them by its conditional version (arXiv "
    "2601.20800); fANOVA fits a forest of their own to those trials, so that their shares do not add up with others.",
    "Both assume trials that were drawn at random. TPE's are not: they crowd where dev was good, so that a parameter "
    "which TPE settled early varies little among them and looks unimportant. `--searcher random` has no such bias.",
    f"`edge`: the best setting's value lies within {100 * EDGE:.0f} % of an end of its range (in the logarithm where "
    "that is searched), or is the lowest or highest of three values or more. Then a wider range may hold a better one.",
)


def run(options: AnalysisOptions) -> list[Path]:
    """Write the table, and a figure of the cells that have enough trials.

    Raises:
        ValueError: no sweep, or not the given encoders or tasks.
    """
    rows: list[tuple[Value, ...]] = []
    notes, panels = list(METHOD), []
    for cell in options.chosen_cells(NAME):
        name = cell_name(*cell.header.key)
        try:
            found = importances(cell)
        except ValueError as error:
            notes.append(f"{name} is left out: its space or a setting is not one that this version knows ({error})")
            continue
        rows += [_row(cell, one) for one in found]
        notes += _note(cell, found)
        shown = [one for one in found if one.ped_anova is not None][:SHOWN]
        if shown:
            panels.append(_panel(cell, shown))
    title = f"Importance of hyperparameters in sweep {options.needed_sweep(NAME).name}"
    table = AnalysisTable(NAME, title, COLUMNS, tuple(rows), tuple(notes))
    written = write_table(table, options)
    return [*written, *write_figure(NAME, in_rows(panels), options)] if panels else written


def _row(cell: CellSummary, one: Importance) -> tuple[Value, ...]:
    best = None if one.best is None else value_text(one.best)
    return (
        *cell_values(cell), one.name, one.ped_anova, one.fanova, one.trials, best, description(one.range), one.edge,
    )  # fmt: skip


def _note(cell: CellSummary, found: list[Importance]) -> list[str]:
    """The reason why a cell has no importance at all, if it has none."""
    trials = len(scored_trials(cell))
    if any(one.ped_anova is not None for one in found):
        return []
    name = cell_name(*cell.header.key)
    if not found:
        return [f"{name}: its space has nothing to search."]
    if trials < FEWEST_TRIALS:
        return [f"{name}: {some(trials, 'finished trial')}, {FEWEST_TRIALS} are needed."]
    return [f"{name}: all its {trials} finished trials have the same score, so that no parameter moved it."]


def _panel(cell: CellSummary, shown: list[Importance]) -> BarPanel:
    bars = (
        Bars("PED-ANOVA", tuple(math.nan if one.ped_anova is None else one.ped_anova for one in shown)),
        Bars("fANOVA", tuple(math.nan if one.fanova is None else one.fanova for one in shown)),
    )
    return BarPanel(panel_title(cell), "importance", tuple(one.name for one in shown), bars)


ANALYSIS = Analysis(NAME, "which searched hyperparameters moved dev, by PED-ANOVA and fANOVA", run)
