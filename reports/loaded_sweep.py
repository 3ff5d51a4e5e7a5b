"""A sweep's results as Python objects and pandas frames: `meltpoint.load_sweep("runs/NAME")`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from meltpoint.reports.best_settings import best_json, chosen_cells
from meltpoint.reports.formats import searched_names
from meltpoint.reports.table_values import EncoderBlock, TableEntry
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary, summarise
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.storage.files import readable_storage
from meltpoint.sweeps.storage.layout import sweep_folder

if TYPE_CHECKING:  # it takes half a second to import
    import pandas

    from meltpoint.reports.results import SweepResults
    from meltpoint.reports.sweep_comparison import SweepDifference


@dataclass(frozen=True)
class LoadedSweep:
    """A sweep as it was when it was loaded; `refreshed` reads it again.

    Attributes:
        place: its folder, or the address of one in an object store.
        summary: its results.
    """

    place: str
    summary: SweepSummary

    @classmethod
    def at(cls, place: str) -> LoadedSweep:
        """The sweep of a folder.

        Raises:
            ValueError: there is no sweep, or one of its files is damaged.
        """
        storage, _, name = place.rstrip("/").rpartition("/")
        return cls(place, summarise(Ledger(sweep_folder(readable_storage(storage or "."), name))))

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

    def refreshed(self) -> LoadedSweep:
        """The sweep as it is now."""
        return LoadedSweep.at(self.place)

    @property
    def cells(self) -> pandas.DataFrame:
        """One row a cell, by its name: what it is, trials, best dev, scores over seeds (fractions), seconds."""
        import pandas

        rows = {cell_name(*cell.header.key): _cell_row(cell) for cell in self.summary.cells}
        return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("cell")

    @property
    def trials(self) -> pandas.DataFrame:
        """One row a trial, by its id: cell, role, status, scores, and a column a searched hyperparameter."""
        import pandas

        rows = {
            record.id: _trial_row(record, searched_names(cell.header))
            for cell in self.summary.cells
            for record in (*cell.search, *cell.finals)
        }
        return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("trial")

    def best(self, cell: str) -> dict[str, Any]:
        """The best setting of a cell with its scores, as `meltpoint best --json` prints it.

        Raises:
            ValueError: there is no such cell, or it has no finished trial yet.
        """
        return best_json(chosen_cells(self.summary, cell))[0]

    def table(self) -> pandas.DataFrame:
        """The ❄/🔥 table: rows (encoder, mode), a column a task, texts as `meltpoint report` prints them."""
        import pandas

        rows: dict[tuple[str, str], dict[str, str]] = {}
        for block in self._results.table.blocks:
            rows |= _block_rows(block)
        index = pandas.MultiIndex.from_tuples(list(rows), names=["encoder", "mode"])
        return pandas.DataFrame(list(rows.values()), index=index)

    def compare(self, other: LoadedSweep) -> SweepDifference:
        """The differences between this sweep and another one, as `meltpoint compare` prints them."""
        from meltpoint.reports.sweep_comparison import compare_sweeps

        return compare_sweeps(self.summary, other.summary)

    def report(self, form: str = "md") -> str:
        """The report in one format, as `meltpoint report` prints it: `md`, `html`, `csv`, `tex`.

        Raises:
            ValueError: another format.
        """
        from meltpoint.reports.report import report
        from meltpoint.reports.tables import MAKERS
        from meltpoint.tasks.core.registry import unknown

        if form not in (*MAKERS, "html"):
            raise unknown(form, "format", (*MAKERS, "html"))
        return report(self.summary, form)

    def _repr_html_(self) -> str:
        """The report's tables, for notebooks."""
        from markdown_it import MarkdownIt

        from meltpoint.reports.tables import markdown

        # Raw HTML is escaped, since names and notes come from users.
        rendered: str = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown(self._results))
        return rendered


def _cell_row(cell: CellSummary) -> dict[str, Any]:
    head = cell.header
    return {
        "encoder": head.encoder, "mode": head.mode, "task": head.task, "variant": head.variant, "head": head.head,
        "metric": head.metric, "trials_finished": cell.counts["finished"], "trials_planned": cell.counts["planned"],
        "best_dev": cell.best and cell.best.dev, "best_trial": cell.best and cell.best.id, "seeds": len(cell.finals),
        "dev_mean": cell.dev and cell.dev.mean, "dev_std": cell.dev and cell.dev.std,
        "test_mean": cell.test and cell.test.mean, "test_std": cell.test and cell.test.std,
        "train_seconds": cell.seconds,
    }  # fmt: skip


def _trial_row(record: TrialRecord, searched: list[str]) -> dict[str, Any]:
    return {
        "cell": cell_name(*record.cell), "role": record.role, "status": record.status, "seed": record.seed,
        "suggested_by": record.suggested_by, "dev": record.dev, "test": (record.test or {}).get(record.metric),
        "best_epoch": record.best_epoch, "epochs_run": record.epoch_count, "seconds": record.seconds,
        **{name: record.setting.get(name) for name in searched},
    }  # fmt: skip


def _block_rows(block: EncoderBlock) -> dict[tuple[str, str], dict[str, str]]:
    columns = [f"{task} ({metric})" if metric else task for task, metric in block.tasks]
    every = (*block.modes, *block.ensembles, *block.differences)
    return {(block.encoder, row.title): _texts(columns, row.entries) for row in every}


def _texts(columns: list[str], entries: tuple[TableEntry, ...]) -> dict[str, str]:
    return {column: entry.label for column, entry in zip(columns, entries, strict=True)}
