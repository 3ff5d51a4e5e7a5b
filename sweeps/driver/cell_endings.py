"""Cell results for MLflow's dashboard: rank, scores as text, best setting, description."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from meltpoint.adapters import modes
from meltpoint.adapters.hyperparameters import Value
from meltpoint.sweeps.ledger.predictions import predictions_path
from meltpoint.sweeps.ledger.records import CellKey, TrialRecord
from meltpoint.sweeps.results.cost import NOTHING, CellCost, spread_text
from meltpoint.sweeps.results.guards import cell_guards
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.specification.cells import OpenCell, cell_name
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.sweeps.tracking.dashboard import ORDER, PLACE, CellEnding, searched
from meltpoint.tasks.core.metrics import gain
from meltpoint.tasks.core.scoring import unit_text
from meltpoint.tasks.core.wording import some

BEST_FILE = "best.yaml"
"""The best setting as a space with one point, among the files of a cell's run."""


def cell_endings(
    summary: SweepSummary, cells: Mapping[CellKey, OpenCell], recommended: Collection[CellKey]
) -> dict[CellKey, CellEnding]:  # fmt: skip
    """The results of every cell that has a best trial.

    Args:
        summary: the sweep's results.
        cells: its cells.
        recommended: as in `place_tags`.
    """
    places = place_tags(summary, recommended)
    return {
        key: _ending(summary, cell, cells[key], places[key][PLACE])
        for cell in summary.cells if cell.best is not None and (key := cell.header.key) in cells
    }  # fmt: skip


def _ending(summary: SweepSummary, cell: CellSummary, opened: OpenCell, place: str) -> CellEnding:
    assert cell.best is not None, "the cell has a best trial"
    current = {record.id for record in cell.finals}
    former = [record.id for record in cell.records if record.role == "final" and record.id not in current]
    return CellEnding(
        note="\n".join(_note(cell, opened, place)), best=cell.best.id, former=tuple(former),
        files={} if summary.folder is None else _files(summary.folder, cell),
    )  # fmt: skip


def _files(folder: StoragePath, cell: CellSummary) -> dict[str, StoragePath]:
    """The exported setting, and the predictions of the finalist whose weights are kept."""
    name = cell_name(*cell.header.key)
    files = {BEST_FILE: folder / "exports" / f"{name}.yaml"}
    if cell.kept is not None:
        for split in ("dev", "test"):
            file = predictions_path(folder, name, cell.kept, split)
            files[f"predictions/seed{cell.kept.seed}.{split}.jsonl"] = file
    return files


# Tags shown as columns in the view of cells.


def place_tags(
    summary: SweepSummary, recommended: Collection[CellKey]
) -> dict[CellKey, dict[str, str]]:  # fmt: skip
    """Each cell's rank within its task, and its scores as `85.1 ± 0.3`, in points of 100.

    Args:
        summary: the sweep's results.
        recommended: the cells that get the ★.
    """
    of_task: dict[str, list[CellSummary]] = defaultdict(list)
    for cell in summary.cells:
        of_task[cell.header.task].append(cell)
    return {cell.header.key: _tags(cell, of_task[cell.header.task], recommended) for cell in summary.cells}


def _tags(
    cell: CellSummary, rivals: list[CellSummary], recommended: Collection[CellKey]
) -> dict[str, str]:  # fmt: skip
    scores = {"test": cell.test, "dev": cell.dev, "default test": cell.default_test}
    place, of_task = _place(cell, rivals, recommended)
    return {
        PLACE: place,
        ORDER: f"{cell.header.task} {of_task:04d}",
        **{name: spread_text(over, cell.header.metric) for name, over in scores.items() if over},
    }


def _place(
    cell: CellSummary, rivals: list[CellSummary], recommended: Collection[CellKey]
) -> tuple[str, int]:  # fmt: skip
    """`1/3 ★` and 1, by mean test score; by dev if any cell of the task has no test score yet."""
    known = [rival for rival in rivals if rival.best is not None]
    on_test = all(rival.test is not None for rival in known)
    if cell not in known:
        return NOTHING, len(rivals)
    place = 1 + sum(_score(rival, on_test) > _score(cell, on_test) for rival in known)
    star = " ★" if cell.header.key in recommended else ""
    return f"{place}/{len(rivals)}{star}{'' if on_test else ' dev'}", place


def _score(cell: CellSummary, on_test: bool) -> float:
    """A cell's score, negated for an error metric, so that higher is better."""
    over = cell.test if on_test else cell.dev
    if over is not None:
        return gain(cell.header.metric, over.mean)
    best = cell.best
    return gain(cell.header.metric, best.dev) if best is not None and best.dev is not None else float("-inf")


# The description.


def _note(cell: CellSummary, opened: OpenCell, place: str) -> Iterator[str]:
    """The description, scores and best setting first: MLflow shows only a few lines until you expand it."""
    head, best = cell.header, cell.best
    assert best is not None, "the cell has a best trial"
    ranges = searched(opened.space)
    found = [f"{name} {value_text(best.setting[name])}" for name in ranges if name in best.setting]
    scores = f"test {spread_text(cell.test, head.metric)}, dev {spread_text(cell.dev, head.metric)}"
    yield f"**{place}** on {head.task}: **{scores}** ({head.metric} {unit_text(head.metric)})"
    yield ""
    trial = f"trial {best.number + 1} of {cell.counts['planned']}"
    yield f"**Best setting** ({trial}): {', '.join(found) or 'nothing was searched'}"
    yield ""
    variant = f" ({head.variant})" if head.variant else ""
    symbol = modes.get(head.mode).symbol
    yield f"{symbol} **{head.mode}** of {head.encoder} on **{head.task}**{variant}, head {head.head}."
    yield f"Scores are {head.metric} {unit_text(head.metric)}, ± the standard deviation over seeds."
    yield ""
    yield from _score_rows(cell)
    yield ""
    fixed = [f"`{name}` {value_text(value)}" for name, value in best.setting.items() if name not in ranges]
    yield from ("", f"Not searched: {', '.join(fixed)}.") if fixed else ()
    yield ""
    yield f"Train it again with `meltpoint train {BEST_FILE}`; the file is among this run's artifacts."
    yield ""
    data = f"{some(head.train_examples, 'training example')}, {some(head.dev_examples, 'dev example')}"
    yield "".join((f"Data: {data}.", *(f" {note}." for note in head.notes)))


def _score_rows(cell: CellSummary) -> Iterator[str]:
    metric = cell.header.metric
    yield "| | seeds | dev | test |"
    yield "|---|---:|---:|---:|"
    yield f"| best setting | {len(cell.finals)} | {spread_text(cell.dev, metric)} | {spread_text(cell.test, metric)} |"
    if cell.default_finals and cell.best is not None and cell.best.setting != cell.header.published:
        scores = f"{spread_text(cell.default_dev, metric)} | {spread_text(cell.default_test, metric)}"
        yield f"| published setting | {len(cell.default_finals)} | {scores} |"


def value_text(value: Value) -> str:
    """A value with four significant digits."""
    return str(value).lower() if isinstance(value, bool) else f"{value:.4g}" if isinstance(value, float) else str(value)


# Figures, tags, and runs without a result.


def missing_runs(summary: SweepSummary) -> list[str]:
    """A line for each cell of a finished search that has no trial, or lacks finals."""
    lines = []
    for cell in summary.cells:
        if cell.best is None:
            name = ".".join(cell.header.key)
            lines.append(f"{name}: no trial finished; `meltpoint status {summary.name}` says why.")
        else:
            lines += [line for line in (missing_finals(summary, cell), missing_defaults(cell)) if line]
    return lines


def missing_finals(summary: SweepSummary, cell: CellSummary) -> str | None:
    """One line on the finals of a searched cell that have no result; None if all have one."""
    planned = summary.seeds_of(cell)
    return _without(cell, f"{planned} finals", planned - len(cell.finals), cell.failed_finals)


def missing_defaults(cell: CellSummary) -> str | None:
    """One line on the planned finals of a cell's published setting that have no result; None if all have one."""
    planned = cell.default_seeds
    ended = len(cell.default_finals) if planned else 0
    return _without(cell, f"{planned} finals of the published setting", planned - ended, cell.failed_defaults)


def _without(cell: CellSummary, what: str, count: int, failed: Sequence[TrialRecord]) -> str | None:
    """One line on `count` finals without a result, with an error and the remedy; None if the count is 0."""
    if count <= 0:
        return None
    why = f" ({failed[0].error})" if failed else ""
    is_by_setting = any(not final.is_lost for final in failed)
    way = "add --retry-failed to retry" if is_by_setting else "the same command retries"
    return f"{'.'.join(cell.header.key)}: {count} of {what} without a result{why}; {way}."


def cell_tags(cell: CellSummary, summary: SweepSummary) -> dict[str, str]:
    """The tags of a cell's MLflow run: its warnings, and the code versions if its trials ran on more than one."""
    warnings = [guard.text for guard in cell_guards(cell, summary.baseline_of(cell))]
    return {
        **({"meltpoint.warnings": "; ".join(warnings)} if warnings else {}),
        **({"meltpoint.code_versions": "; ".join(map(str, cell.code_uses))} if cell.mixes_code else {}),
    }


def cell_figures(cell: CellSummary) -> dict[str, float]:
    """A cell's figures for its MLflow run, scores first: the run's page keeps this order."""
    scores = {"test": cell.test, "dev": cell.dev, "default_test": cell.default_test, "default_dev": cell.default_dev}
    figures = {}
    for name, over in scores.items():
        if over is not None:
            figures[f"{name}_mean"] = over.mean
            figures |= {} if over.std is None else {f"{name}_std": over.std}
    if cell.best is not None and cell.best.dev is not None:
        figures["best_dev"] = cell.best.dev
    figures |= {"seeds": float(len(cell.finals)), "trials_finished": float(cell.counts["finished"])}
    return figures | {"train_hours": cell.seconds / 3600} | cost_figures(cell.cost)


def cost_figures(cost: CellCost) -> dict[str, float]:
    """A cell's known costs, other than its hours."""
    peak = cost.peak_memory_bytes
    figures = {"gpu_hours": cost.gpu_hours, "trained_parameters": cost.trained_parameters}
    figures |= {"seconds_of_a_final": cost.seconds_of_a_final}
    figures |= {"peak_memory_gb": None if peak is None else peak / 1e9}
    return {name: float(value) for name, value in figures.items() if value is not None}
