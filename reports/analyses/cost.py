"""The cost of each cell's score (time, GPU-hours, energy, memory, size), and the Pareto set of score against cost.

Of the cells of an encoder on a task, the set has those that no other one equals or beats in score and in cost, being
better in one. Cost is the seconds of one run of the best setting, or the seconds of the whole search. A second table
has the ratio of 🔥 to ❄, beside that of a lecture.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from meltpoint.adapters.files import replacing
from meltpoint.reports.analyses.core.analysis import Analysis, AnalysisOptions, write_table
from meltpoint.reports.analyses.core.tables import AnalysisTable, Column, Score, Value, figures, points
from meltpoint.reports.best_settings import draw_cost
from meltpoint.reports.statistics.cost import PARETO_NOTE, TradeOff, cost_notes, pareto, score_of, trade_offs
from meltpoint.reports.table_values import FROZEN, TUNED
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

RATIOS = "cost_ratios"
LECTURE = "~10×"
RATIO_COLUMNS = (
    Column("encoder"), Column("task"), Column("variant"),
    figures("❄ one run (s)", ".3g"), figures("🔥 one run (s)", ".3g"), figures("🔥 ÷ ❄, one run", ".1f"),
    figures("❄ search trial (s)", ".3g"), figures("🔥 search trial (s)", ".3g"), figures("🔥 ÷ ❄, search trial", ".1f"),
    Column("lecture"),
)  # fmt: skip
RATIO_NOTES = (
    "The lecture (E. Simpson, University of Bristol, Fine-tuning) says of ❄: 'Training cost is much lower (~10x) as we "
    "only train weights on the final layers.' Here both are as the sweep ran them, each with its own head and epochs.",
    "One run: as in the table of costs, so that ❄ reads cached states. A search trial: the search's seconds over its "
    "trials, in which a frozen encoder's states are computed once and set-up counts.",
)

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
    ratios = AnalysisTable(
        RATIOS, f"Cost of 🔥 over ❄, from sweep {sweep.name}", RATIO_COLUMNS, tuple(ratio_rows(cells)), RATIO_NOTES
    )
    written = [*write_table(table, options), *(write_table(ratios, options) if ratios.rows else [])]
    return [*written, *_figures(groups, options)]


def ratio_rows(cells: Sequence[CellSummary]) -> list[tuple[Value, ...]]:
    """The rows under `RATIO_COLUMNS`: a ❄ cell with finals, and the 🔥 cell of its encoder, task and variant."""
    done = {cell.header.key: cell for cell in cells if cell.dev is not None and cell.cost.seconds_of_a_final}
    rows: list[tuple[Value, ...]] = []
    for (encoder, mode, task, *variant), frozen in done.items():
        tuned = done.get((encoder, TUNED, task, *variant))
        if mode == FROZEN and tuned is not None:
            each = [(cell.cost.seconds_of_a_final or 0.0, _seconds_of_a_trial(cell)) for cell in (frozen, tuned)]
            costs = [value for cold, hot in zip(*each, strict=True) for value in (cold, hot, hot / cold)]
            rows.append((encoder, task, "".join(variant) or None, *costs, LECTURE))
    return rows


def _seconds_of_a_trial(cell: CellSummary) -> float:
    return cell.cost.search_seconds / sum(record.answered_by is None for record in cell.search)


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
