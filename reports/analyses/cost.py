"""The cost of each cell's score (time, GPU-hours, energy, memory, size), and the Pareto set of score against cost.

Of the cells of an encoder on a task, the set has those that no other one equals or beats in score and in cost, being
better in one. Cost is the seconds of one run of the best setting, or the seconds of the whole search.
"""

from __future__ import annotations

from pathlib import Path

from meltpoint.adapters.files import replacing
from meltpoint.reports.analyses.core.analysis import Analysis, AnalysisOptions, write_table
from meltpoint.reports.analyses.core.tables import AnalysisTable, Column, Score, Value, figures, points
from meltpoint.reports.cost_plot import draw_cost
from meltpoint.reports.statistics.cost import PARETO_NOTE, TradeOff, cost_notes, pareto, score_of, trade_offs
from meltpoint.sweeps.results.summary import CellSummary

NAME = "cost"

COLUMNS = (
    Column("encoder"), Column("mode"), Column("task"), Column("variant"), Column("split"), points("score"),
    figures("one run (s)", ".3g"), figures("search (s)", ".0f"), figures("finals (s)", ".0f"),
    figures("GPU-hours", ".3g"), figures("energy (J)", ".0f"), figures("trials without energy", "d"),
    figures("energy of one run (J)", ".0f"),
    figures("peak memory (bytes)", ",d"), figures("numbers trained", ",d"),
    Column("in the set by one run"), Column("in the set by search"),
)  # fmt: skip

MEMBER, OTHER = "yes", "no"


def run(options: AnalysisOptions) -> list[Path]:
    """Write the table and the figure.

    Raises:
        ValueError: no sweep, or none of its cells has finals.
    """
    sweep = options.needed_sweep(NAME)
    cells = [cell for encoder, task in options.pairs() for cell in options.cells(encoder, task)]
    groups = trade_offs(cells)
    if not groups:
        raise ValueError(f"No cell of sweep '{sweep.name}' has finals yet; finish it, and ask again.")
    places = {point.cell: group for group in groups for point in group.by_run}
    rows = tuple(_row(cell, places.get(cell.header.key)) for cell in cells)
    table = AnalysisTable(
        NAME, f"Score and cost, from sweep {sweep.name}", COLUMNS, rows, (*cost_notes(sweep), PARETO_NOTE)
    )
    return [*write_table(table, options), *_figures(groups, options)]


def _row(cell: CellSummary, group: TradeOff | None) -> tuple[Value, ...]:
    head, cost = cell.header, cell.cost
    score = None if group is None else score_of(cell, group.split)
    return (
        head.encoder, head.mode, head.task, head.variant or None, group and group.split,
        score and Score(score.mean, head.metric),
        cost.seconds_of_a_final, cost.search_seconds, cost.final_seconds, cost.gpu_hours, cost.energy_joules,
        cost.energy_lacking, cost.energy_of_a_final, cost.peak_memory_bytes, cost.trained_parameters,
        *(_memberships(cell, group) if group else (None, None)),
    )  # fmt: skip


def _memberships(cell: CellSummary, group: TradeOff) -> tuple[str, str]:
    by_run, by_search = (
        MEMBER if cell.header.key in {point.cell for point in pareto(points)} else OTHER
        for points in (group.by_run, group.by_search)
    )
    return by_run, by_search


def _figures(groups: list[TradeOff], options: AnalysisOptions) -> list[Path]:
    written = []
    for form in ("svg", "png"):
        if form in options.formats:
            path = options.out / f"{NAME}.{form}"
            with replacing(path) as temporary:
                temporary.write_bytes(draw_cost(groups, form))
            written.append(path)
    return written


ANALYSIS = Analysis(
    NAME, "score against cost: time, GPU-hours, energy, memory, size; the Pareto set of each encoder on each task", run
)
