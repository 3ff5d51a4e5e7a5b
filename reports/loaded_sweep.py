"""A sweep's results as Python objects and pandas frames (`mp.load_sweep("runs/NAME")`), and two sweeps compared."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meltpoint.adapters.hyperparameters import Value
from meltpoint.reports.formats import searched_names, value_text
from meltpoint.reports.recommendation import Recommendation
from meltpoint.reports.trial_view import RankedCell, best_json, cell_figures, chosen_cells, dev_gain, ranked_cells
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.cost import spread_text
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary, summarise
from meltpoint.sweeps.search.selection import Spread
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.storage.files import readable_storage, sweep_folder
from meltpoint.tasks.core.scoring import difference_text
from meltpoint.tasks.core.wording import some

if TYPE_CHECKING:  # half a second to import
    import pandas

    from meltpoint.adapters.exported_model import ExportedModel
    from meltpoint.reports.results import SweepResults


@dataclass(frozen=True)
class CellDifference:
    """A cell that both sweeps have.

    Attributes:
        cell: its name.
        metric: of the scores; both sweeps' if they differ.
        conditions: differences in the basis of its numbers, `data: 0a1b → 2c3d`; scores compare settings only if empty.
        setting: parameter → its values in the best settings, if they differ; None if one does not have it.
        split: of the scores: test if both have test scores, else dev.
        a, b: mean scores over seeds; None without finals.
        delta: b − a.
    """

    cell: str
    metric: str
    conditions: list[str] = field(default_factory=list)
    setting: dict[str, tuple[Value | None, Value | None]] = field(default_factory=dict)
    split: str = "dev"
    a: Spread | None = None
    b: Spread | None = None
    delta: float | None = None


@dataclass(frozen=True)
class SweepDifference:
    """Two sweeps, `a` and `b`.

    Attributes:
        specification: differences between the specifications, `trials 16 → 32`.
        code: the code versions of each.
        only_a, only_b: names of cells that the other one does not have.
        cells: the cells of both.
    """

    a: str
    b: str
    specification: list[str]
    code: tuple[tuple[str, ...], tuple[str, ...]]
    only_a: list[str]
    only_b: list[str]
    cells: list[CellDifference]


CONDITIONS: Mapping[str, str] = {
    "head": "head", "metric": "metric", "data_fingerprint": "data", "documents_fingerprint": "documents",
    "encoder_fingerprint": "the encoder's files", "space_fingerprint": "space", "train_examples": "training examples",
    "dev_examples": "dev examples",
}  # fmt: skip
"""Field of a cell's header → its name in a comparison."""


def compare_sweeps(a: SweepSummary, b: SweepSummary) -> SweepDifference:
    """Compare two sweeps; nothing is trained or scored."""
    ours, theirs = ({cell.name: cell for cell in one.cells} for one in (a, b))
    return SweepDifference(
        a.name, b.name, [line for line in b.spec.differences(a.spec) if not line.startswith("name ")],
        (a.code_versions, b.code_versions), [name for name in ours if name not in theirs],
        [name for name in theirs if name not in ours],
        [_cell(name, cell, theirs[name]) for name, cell in ours.items() if name in theirs],
    )  # fmt: skip


def _cell(name: str, a: CellSummary, b: CellSummary) -> CellDifference:
    split = "test" if a.test and b.test else "dev"
    of_a, of_b = (a.test, b.test) if split == "test" else (a.dev, b.dev)
    metrics = dict.fromkeys((a.header.metric, b.header.metric))
    delta = of_b.mean - of_a.mean if of_a and of_b and len(metrics) == 1 else None
    facts = ((word, getattr(a.header, field), getattr(b.header, field)) for field, word in CONDITIONS.items())
    conditions = [f"{word}: {before} → {now}" for word, before, now in facts if before != now]
    if split == "test":
        before, now = (", ".join(sorted({final.test_fingerprint or "–" for final in one.finals})) for one in (a, b))
        conditions += [f"test: {before} → {now}"] if before != now else []
    ours, theirs = (a.best.setting, b.best.setting) if a.best and b.best else ({}, {})
    setting = {key: (ours.get(key), theirs.get(key)) for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)}
    return CellDifference(name, " → ".join(metrics), conditions, setting, split, of_a, of_b, delta)


def comparison_lines(found: SweepDifference) -> Iterator[str]:
    """The comparison as text, one fact per line."""
    yield f"a: {found.a} · b: {found.b}"
    yield f"Specification: {'; '.join(found.specification) or 'the same'}."
    before, now = (", ".join(versions) for versions in found.code)
    yield "Code: the same." if before == now else f"Code: {before} → {now}."
    for name, only in ((found.a, found.only_a), (found.b, found.only_b)):
        if only:
            yield f"Only in {name}: {', '.join(only)}."
    for cell in found.cells:
        lacking = " and ".join(name for name, over in (("a", cell.a), ("b", cell.b)) if over is None)
        change = "" if cell.delta is None else f", Δ {difference_text(cell.delta, cell.metric)}"
        scores = (spread_text(over, cell.metric) for over in (cell.a, cell.b))
        said = f"no finals in {lacking} yet" if lacking else f"{cell.split} {cell.metric} {' → '.join(scores)}{change}"
        yield f"{cell.cell}: {said}"
        if cell.conditions:
            yield f"  not the same: {'; '.join(cell.conditions)}"
        texts = (
            f"{name} {' → '.join('absent' if one is None else value_text(one) for one in both)}"
            for name, both in cell.setting.items()
        )
        if cell.setting:
            yield f"  {', '.join(texts)}"


@dataclass(frozen=True)
class LoadedSweep:
    """A snapshot of a sweep; `refreshed` reads it again.

    Attributes:
        place: its folder, or the address of one in an object store.
        summary: its results.
    """

    place: str
    summary: SweepSummary = field(repr=False)

    @classmethod
    def at(cls, place: str) -> LoadedSweep:
        """The sweep of a folder.

        Raises:
            ValueError: there is no sweep, or one of its files is damaged.
        """
        return cls(place, summarise(_ledger(place)))

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.summary.name

    @property
    def state(self) -> str:
        """`running`, `done`, `stopped` or `failed`."""
        return self.summary.state

    @cached_property
    def _results(self) -> SweepResults:
        from meltpoint.reports.results import results_of

        return results_of(self.summary)

    @property
    def recommendations(self) -> Mapping[str, Recommendation]:
        """Task → its recommendation; a task whose finals have not ended has none."""
        return {one.task: one for one in self._results.recommendations}

    @property
    def recommendation(self) -> Recommendation:
        """The recommendation of a sweep of one task.

        Raises:
            ValueError: it has several tasks, or no finals yet.
        """
        found = self.recommendations
        tasks = {cell.header.task for cell in self.summary.cells}
        if len(tasks) > 1:
            names = ", ".join(sorted(tasks))
            raise ValueError(
                f"{self.name} has {some(len(tasks), 'task')}; take .recommendations[TASK] for one of {names}."
            )
        if not found:
            raise ValueError(f"{self.name} has no recommendation yet: no finals have ended.")
        return next(iter(found.values()))

    def leaderboard(self) -> pandas.DataFrame:
        """One row per search trial, the best first: by task, then by the rank of its cell, then by dev.

        `rank` is the cell's rank within its task. The finals' scores over seeds are in the row of the cell's best
        trial, which has the same setting. Scores are fractions.
        """
        rows = {
            record.id: _board_row(one, record)
            for one in ranked_cells(self._results)
            for record in sorted(one.cell.search, key=dev_gain, reverse=True)
        }
        return _frame(rows, "trial")

    def best_model(self, task: str | None = None) -> ExportedModel:
        """The recommended finalist of a task (by default, the only task), ready to predict.

        Raises:
            ValueError: there are several tasks and none is named, no finals yet, or its weights were deleted.
        """
        from meltpoint.adapters.exported_model import load_folder
        from meltpoint.reports.exports import export_recommended
        from meltpoint.sweeps.results.export import KEPT, export_finalist, is_kept
        from meltpoint.tasks.core.registry import unknown

        found = self.recommendations
        if task is not None and task not in found:
            raise unknown(task, "task with a recommendation", list(found))
        known = self.recommendation if task is None else found[task]
        ledger = _ledger(self.place)
        if isinstance(ledger.folder, Path):
            if self.summary.has_one_task and is_kept(ledger.folder, known.winner.cell.kept):
                return load_folder(str(ledger.folder / KEPT))
            return load_folder(str(export_recommended(ledger, known, self.summary)))
        with tempfile.TemporaryDirectory(prefix="meltpoint-") as scratch:  # a sweep in an object store
            return load_folder(str(export_finalist(ledger, self.summary, known.winner.cell.name, Path(scratch))))

    def refreshed(self) -> LoadedSweep:
        """The sweep in its current state."""
        return LoadedSweep.at(self.place)

    @property
    def cells(self) -> pandas.DataFrame:
        """One row per cell, by name: its parts, trials, best dev, scores over seeds (fractions), seconds."""
        rows = {
            cell.name: {
                **cell_figures(cell), "trials_finished": cell.counts["finished"],
                "trials_planned": cell.counts["planned"], "seeds": len(cell.finals),
            }
            for cell in self.summary.cells
        }  # fmt: skip
        return _frame(rows, "cell")

    @property
    def trials(self) -> pandas.DataFrame:
        """One row per trial, by id: cell, role, status, scores, and a column for each searched hyperparameter."""
        rows = {
            record.id: _trial_row(record, searched_names(cell.header))
            for cell in self.summary.cells
            for record in (*cell.search, *cell.finals, *cell.default_finals)
        }
        return _frame(rows, "trial")

    def best(self, cell: str) -> dict[str, Any]:
        """The best setting of a cell with its scores, as `meltpoint best --json` prints it.

        Raises:
            ValueError: there is no such cell, or it has no finished trial yet.
        """
        return best_json(chosen_cells(self._results, cell))[0]

    def table(self) -> pandas.DataFrame:
        """The ❄/🔥 table: rows (encoder, mode), one column per task, texts as `meltpoint report` prints them."""
        import pandas

        rows = [(block, row) for block in self._results.table.blocks for row in block.rows]
        index = pandas.MultiIndex.from_tuples([(block.encoder, row.title) for block, row in rows],
                                              names=["encoder", "mode"])  # fmt: skip
        texts = [dict(zip(block.columns, (one.label for one in row.entries), strict=True)) for block, row in rows]
        return pandas.DataFrame(texts, index=index)

    def compare(self, other: LoadedSweep) -> SweepDifference:
        """The differences between this sweep and another one, as `meltpoint compare` prints them."""
        return compare_sweeps(self.summary, other.summary)

    def report(self, form: str = "md") -> str:
        """The report in one format, as `meltpoint report` prints it: `md`, `html`, `csv`, `tex`.

        Raises:
            ValueError: the format is unknown.
        """
        from meltpoint.reports.report import MAKERS, report
        from meltpoint.tasks.core.registry import unknown

        if form not in (*MAKERS, "html"):
            raise unknown(form, "format", (*MAKERS, "html"))
        return report(self.summary, form)

    def _repr_html_(self) -> str:
        """The recommendations and the ❄/🔥 table, for notebooks; `report("html")` is the whole page."""
        from html import escape

        advice = self._results.recommendations
        said = "".join(f"<p>{escape(one.task)}: <b>{escape(one.sentence)}</b></p>" for one in advice)
        return f"<h4>{escape(repr(self).splitlines()[0])}</h4>{said}{self.table().to_html(na_rep='')}"

    def __repr__(self) -> str:
        """The state and the recommendations, at most 16 lines."""
        lines = [f"{one.task}: {one.sentence}" for one in self._results.recommendations]
        more = [f"… and {len(lines) - 14} more tasks"] if len(lines) > 14 else []
        cells = some(len(self.summary.cells), "cell")
        return "\n".join([f"Sweep {self.name}, {self.state}: {cells} ({self.place})", *lines[:14], *more])


def _frame(rows: Mapping[str, Mapping[str, Any]], index: str) -> pandas.DataFrame:
    import pandas

    return pandas.DataFrame.from_dict(dict(rows), orient="index").rename_axis(index)


def _ledger(place: str) -> Ledger:
    storage, _, name = place.rstrip("/").rpartition("/")
    return Ledger(sweep_folder(readable_storage(storage or "."), name))


def _board_row(ranked: RankedCell, record: TrialRecord) -> dict[str, Any]:
    cell = ranked.cell
    head, is_best = cell.header, cell.best is not None and cell.best.id == record.id
    dev, test = (cell.dev, cell.test) if is_best else (None, None)
    return {
        "task": head.task, "rank": ranked.rank, "recommended": ranked.is_recommended and is_best,
        **{name: getattr(head, name) for name in ("encoder", "mode", "variant", "head", "metric")}, "dev": record.dev,
        "test_mean": test and test.mean, "test_std": test and test.std, "dev_mean": dev and dev.mean,
        "seeds": len(cell.finals) if is_best else 0, "status": record.status, "seconds": record.seconds,
        **{name: record.setting.get(name) for name in searched_names(head)},
    }  # fmt: skip


def _trial_row(record: TrialRecord, searched: list[str]) -> dict[str, Any]:
    return {
        "cell": cell_name(*record.cell), "role": record.role, "status": record.status, "seed": record.seed,
        "suggested_by": record.suggested_by, "dev": record.dev, "test": (record.test or {}).get(record.metric),
        "best_epoch": record.best_epoch, "epochs_run": record.epoch_count, "seconds": record.seconds,
        **{name: record.setting.get(name) for name in searched},
    }  # fmt: skip
