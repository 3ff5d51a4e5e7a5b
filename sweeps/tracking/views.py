"""A sweep in MLflow's dashboard: names and colours of its runs, its views, and the result of a cell for its run."""

from __future__ import annotations

import colorsys
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from meltpoint.adapters import modes
from meltpoint.search_spaces.ranges import Fixed, Range
from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.sweeps.tracking.saved_views import Chart, Column, View

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
"""The tags by which views filter, group and sort: the cell's name, a run's role, the row for a final's seeds, whether a
trial is the best of its cell, a cell's rank within its task, and the order of cells by task and rank."""

CURVES = "Learning curves"
MOST_CURVES = 40
"""The number of tasks with an open chart, because a view has to fit into a tag. Charts of other tasks are folded."""
BEST = Column("metrics", "best_dev", 90)
TEXT = 130
"""The width of a text column in pixels."""


def sweep_views(cells: Sequence[OpenCell]) -> list[View]:
    """The named views of a sweep, in reading order; the first one is opened."""
    return [cells_view(cells), curves_view(cells), finals_view()]


def cells_view(cells: Sequence[OpenCell]) -> View:
    """One row per cell, grouped by task, best on test first."""
    several = [word for word in ("encoder", "variant") if len({getattr(cell, word) for cell in cells}) > 1]
    columns = (
        Column("tags", PLACE, 80), Column("params", "task", TEXT), Column("tags", "test", TEXT),
        Column("tags", "dev", TEXT), Column("tags", "default test", TEXT), BEST,
        *(Column("params", word, TEXT) for word in several),
        Column("params", "mode", TEXT), Column("params", "head", 80), Column("metrics", "seeds", 60),
        Column("metrics", "gpu_hours", 90), Column("metrics", "train_hours", 90),
    )  # fmt: skip
    return View("cells", "Cells", f"tags.`{ROLE}` = 'cell'", Column("tags", ORDER), ascending=True, columns=columns)


def curves_view(cells: Sequence[OpenCell]) -> View:
    """The learning curves of each cell's best trial."""
    columns = (Column("params", "task"), Column("params", "mode", TEXT), BEST, Column("metrics", "best_epoch", 90))
    return View(
        "curves", f"{CURVES} (best trial of each cell)", f"tags.`{IS_BEST}` = 'true'", Column("tags", CELL),
        ascending=True, columns=columns, charts=_curves(cells),
    )  # fmt: skip


def _curves(cells: Iterable[OpenCell]) -> tuple[Chart, ...]:
    """One chart of dev scores per task, and one of the training loss."""
    tasks = list({cell.task_name: cell.task.metric for cell in cells}.items())[:MOST_CURVES]
    dev = [Chart(CURVES, curve(task), f"{task}: dev {metric} over steps") for task, metric in tasks]
    return (*dev, Chart(CURVES, "train/loss", "training loss over steps"))


def curve(task: str) -> str:
    """The metric of a task's learning curves: MLflow draws a chart for each metric, so each task has its own."""
    return "curve/" + re.sub(r"[^\w.:/ -]", " ", task)  # MLflow refuses the `+` of `mnli:fiction+slate`


def finals_view() -> View:
    """The finals: the seeds of a setting in one row with their means, which expands to the runs."""
    columns = (
        Column("metrics", "test_score", 120), BEST, Column("metrics", "seconds", 90),
        Column("metrics", "peak_memory_gb", TEXT), Column("params", "seed", 60), Column("params", "metric", 90),
    )  # fmt: skip
    return View(
        "finals", "Finals (seeds of a setting in one row)", f"tags.`{FINAL_OF}` LIKE '%'", Column("tags", FINAL_OF),
        ascending=True, columns=columns, group_by=FINAL_OF, name_width=300,
    )  # fmt: skip


def cell_view(cell: OpenCell) -> View:
    """The search trials of one cell: a table of searched parameters, and learning curves."""
    word = hashlib.sha256(cell.name.encode()).hexdigest()[:12]
    where = f"tags.`{CELL}` = '{cell.name}' and tags.`{ROLE}` = 'search'"
    columns = (
        Column("tags", IS_BEST, 90), BEST, *(Column("params", name, TEXT) for name in searched(cell.space)),
        Column("metrics", "best_epoch", 90), Column("metrics", "seconds"),
    )  # fmt: skip
    return View(f"cell-{word}", "", where, BEST, columns=columns, charts=_curves([cell]))


def every_view(cells: Sequence[OpenCell]) -> list[View]:
    """The named views, and one view per cell."""
    return [*sweep_views(cells), *(cell_view(cell) for cell in cells)]


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
