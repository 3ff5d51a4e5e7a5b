"""The cost of 🔥 over ❄ for each encoder and task, compared with the ratio from a lecture.

`report` has the table of all costs and the Pareto sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from meltpoint.reports.analyses.core.analysis import Analysis, AnalysisOptions, write_table
from meltpoint.reports.analyses.core.output import AnalysisTable, Column, Value, figures
from meltpoint.reports.table_values import FROZEN, TUNED
from meltpoint.sweeps.results.summary import CellSummary

NAME = "cost"

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
    "One run: as in the table of costs, so that ❄ reads cached states. A search trial: the search's seconds divided "
    "by its trials; set-up counts, and a frozen encoder's states are computed once.",
)


def run(options: AnalysisOptions) -> list[Path]:
    """Write the table.

    Raises:
        ValueError: no sweep, or no encoder and task with finals of both modes.
    """
    sweep, rows = options.needed_sweep(NAME), tuple(ratio_rows(options.chosen_cells(NAME)))
    if not rows:
        raise ValueError(
            f"Sweep '{sweep.name}' has no task with finals of both ❄ and 🔥; `meltpoint report` has costs."
        )
    title = f"Cost of 🔥 over ❄, from sweep {sweep.name}"
    return write_table(AnalysisTable(RATIOS, title, RATIO_COLUMNS, rows, RATIO_NOTES), options)


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


ANALYSIS = Analysis(NAME, "seconds of 🔥 over ❄, per run and per search trial; a lecture says ~10×", run)
