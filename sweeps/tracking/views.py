"""A sweep in MLflow's dashboard: names and colours of its runs, its pages, and the result of a cell for its run."""

from __future__ import annotations

import colorsys
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from meltpoint.adapters import modes
from meltpoint.search_spaces.ranges import Fixed, Range
from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.storage.files import StoragePath

OTHER_HUE = 0.36
GOLDEN = 0.618034
"""Golden-ratio steps spread any number of trials evenly over the lightness range."""


def mode_symbol(mode: str) -> str:
    """A mode's symbol (❄, 🔥, ❄🔥), or its name if it has none."""
    return modes.get(mode).symbol if mode in modes.names() else mode


def cell_labels(cells: Iterable[OpenCell]) -> dict[str, str]:
    """Cell name → `🔥 sst2`, with the encoder if the sweep has several, and the variant if the cell has one."""
    opened = list(cells)
    has_several = len({cell.encoder for cell in opened}) > 1
    return {cell.name: _label(cell, has_several) for cell in opened}


def _label(cell: OpenCell, with_encoder: bool) -> str:
    words = [f"{mode_symbol(cell.mode)} {cell.task_name}", cell.variant]
    words += [short_encoder(cell.encoder)] if with_encoder else []
    return " · ".join(word for word in words if word)


def short_encoder(encoder: str) -> str:
    """An encoder's name without its prefix: `roberta-large` for `hf:FacebookAI/roberta-large`."""
    return re.split(r"[:/\\]", encoder.rstrip("/\\"))[-1] or encoder


def setting_label(label: str, role: str) -> str:
    """The name of the row that groups a setting's seeds."""
    return f"{label} · {'best' if role == 'final' else 'published'} setting"


def former_label(label: str) -> str:
    """The name of the row for a setting that was the best before more trials ran."""
    return f"{label} · former best setting"


def colour(mode: str, number: int | None = None) -> str:
    """A run's colour as `#rrggbb`: the mode's hue, with a separate lightness for each trial.

    Args:
        number: the trial's number; None for a cell's run, which has the middle lightness.
    """
    lightness = 0.48 if number is None else 0.32 + 0.36 * (number * GOLDEN % 1.0)
    hue = modes.get(mode).hue if mode in modes.names() else OTHER_HUE
    parts = colorsys.hls_to_rgb(hue, lightness, 0.72)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def searched(space: Space) -> dict[str, Range]:
    """The searched parameters of a space, in its order."""
    return {name: range_ for name, range_ in space.parameters.items() if not _is_one_value(range_)}


def _is_one_value(range_: Range) -> bool:
    return isinstance(range_, Fixed) or range_.count == 1


CELL, ROLE, FINAL_OF, IS_BEST, PLACE, ORDER = (
    "meltpoint.cell", "meltpoint.role", "meltpoint.final_of", "meltpoint.is_best", "place", "meltpoint.order",
)  # fmt: skip
"""The tags by which pages filter, group and sort: the cell's name, a run's role, the row for a final's seeds, whether a
trial is the best of its cell, a cell's rank within its task, and the order of cells by task and rank."""


def curve(task: str) -> str:
    """The metric of a task's learning curves: MLflow draws a chart for each metric, so each task has its own."""
    return "curve/" + re.sub(r"[^\w.:/ -]", " ", task)  # MLflow refuses the `+` of `mnli:fiction+slate`


# Pages of MLflow's dashboard, after the server's address.


def cells_page(experiment: str) -> str:
    """The URL of one row per cell, grouped by task, best on test first."""
    return _runs_page(experiment, f"tags.`{ROLE}` = 'cell'", f"tags.`{ORDER}`")


def finals_page(experiment: str) -> str:
    """The URL of all finals, the seeds of a setting below each other."""
    return _runs_page(experiment, f"tags.`{FINAL_OF}` LIKE '%'", f"tags.`{FINAL_OF}`")


def trials_page(experiment: str, cell: str, charts: bool = False) -> str:
    """The URL of a cell's search trials, best first.

    Args:
        cell: the cell's name.
        charts: whether it opens with the curves instead of the table.
    """
    condition = f"tags.`{CELL}` = '{cell}' and tags.`{ROLE}` = 'search'"
    return _runs_page(experiment, condition, "metrics.`best_dev`", ascending=False, charts=charts)


def _runs_page(experiment: str, condition: str, order: str, ascending: bool = True, charts: bool = False) -> str:
    words = {
        "workflowType": "machine_learning", "compareRunsMode": "CHART" if charts else "TABLE",
        "searchFilter": condition, "orderByKey": order, "orderByAsc": str(ascending).lower(),
    }  # fmt: skip
    return f"#/experiments/{experiment}/runs?{urlencode(words)}"


def run_page(experiment: str, run: str, tab: str = "") -> str:
    """The URL of a run's page, or of one of its tabs (`artifacts`, `model-metrics`)."""
    return f"#/experiments/{experiment}/runs/{run}{f'/{tab}' if tab else ''}?workflowType=machine_learning"


@dataclass(frozen=True)
class CellEnding:
    """The result of one cell, for its run.

    Attributes:
        note: its description in Markdown, without links.
        best: the id of the best search trial; "" if there is none.
        former: the ids of finals of a setting that was the best before more trials ran.
        files: file name → the file to copy.
    """

    note: str = ""
    best: str = ""
    former: tuple[str, ...] = ()
    files: Mapping[str, StoragePath] = field(default_factory=dict)
