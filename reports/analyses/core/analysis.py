"""The base of every analysis: its inputs, its cells and finalists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from meltpoint.adapters import encoders
from meltpoint.adapters.files import replacing, write_atomically
from meltpoint.reports.analyses.core.output import AnalysisTable, Panel, draw, in_rows
from meltpoint.reports.notes import code_notes
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.specification.cells import data_spec, word_of
from meltpoint.tasks import get
from meltpoint.tasks.core.registry import unknown
from meltpoint.tasks.core.task import DataSpec

FORMATS = ("md", "csv", "tex", "svg", "png")


@dataclass(frozen=True)
class AnalysisOptions:
    """The inputs and outputs of an analysis.

    Attributes:
        sweep: a sweep's results, or None without a sweep.
        ledger: that sweep's ledger.
        encoders, tasks: the given names; empty for all of the sweep.
        corpus: a text file with the encoder's pretraining data, or a sample of it.
        data_dir, max_train_examples: as in a sweep; None for the sweep's values.
        out: the output folder.
        formats: some of `FORMATS`.
        tell: a function that reports progress, one line at a time.
    """

    sweep: SweepSummary | None
    ledger: Ledger | None
    out: Path
    encoders: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    corpus: Path | None = None
    data_dir: str | None = None
    max_train_examples: int | None = None
    formats: tuple[str, ...] = FORMATS
    tell: Callable[[str], None] = field(default=lambda line: None)

    def needed_sweep(self, name: str) -> SweepSummary:
        """The sweep's results.

        Raises:
            ValueError: there is no sweep.
        """
        if self.sweep is None:
            raise ValueError(f"The analysis '{name}' reads a sweep's results; name the sweep in place of '-'.")
        return self.sweep

    def check_names(self) -> None:
        """Refuse unknown encoders and tasks, without loading any.

        Raises:
            ValueError: an unknown name; close matches are listed.
        """
        if self.sweep is not None:
            self.pairs()
            return
        for encoder, task in product(self.encoders, self.tasks):
            encoders.resolve(encoder, get(task).kind)

    def pairs(self) -> list[tuple[str, str]]:
        """The (encoder, task) pairs to analyse: the sweep's pairs with the given names, or all pairs of the names.

        Raises:
            ValueError: a name that the sweep does not have, or neither a sweep nor names.
        """
        if self.sweep is None:
            if not (self.encoders and self.tasks):
                raise ValueError("Without a sweep, name encoders and tasks: --encoder E --task T.")
            return list(product(self.encoders, self.tasks))
        pairs = list(dict.fromkeys((cell.header.encoder, cell.header.task) for cell in self.sweep.cells))
        for what, given, known in (
            ("encoder", self.encoders, {encoder for encoder, _ in pairs}),
            ("task", self.tasks, {task for _, task in pairs}),
        ):
            for name in given:
                if name not in known:
                    raise unknown(name, f"{what} of sweep {self.sweep.name}", known)
        return [(e, t) for e, t in pairs if e in (self.encoders or (e,)) and t in (self.tasks or (t,))]

    def encoder_word(self, name: str) -> str:
        """The encoder's location, by its name in the sweep; the name itself without a sweep."""
        return name if self.sweep is None else self.sweep.spec.named_encoder(name)

    def cells(self, encoder: str, task: str) -> list[CellSummary]:
        """The sweep's cells of an encoder and a task, one per mode and variant; none without a sweep."""
        every = self.sweep.cells if self.sweep else []
        return [cell for cell in every if (cell.header.encoder, cell.header.task) == (encoder, task)]

    def chosen_cells(self, name: str) -> list[CellSummary]:
        """The sweep's cells of the given encoders and tasks, for the analysis `name`.

        Raises:
            ValueError: there is no sweep, or it does not have them.
        """
        self.needed_sweep(name)
        return [cell for pair in self.pairs() for cell in self.cells(*pair)]

    def data(self, task: str) -> DataSpec:
        """The data of a task: the sweep's, unless given otherwise."""
        if self.sweep is None:
            return DataSpec(task, self.data_dir, self.max_train_examples)
        spec = self.sweep.spec
        data = data_spec(spec, word_of(spec, task))
        size = data.max_train_examples if self.max_train_examples is None else self.max_train_examples
        return DataSpec(data.task, self.data_dir or data.data_dir, size, data.test_from, data.max_dev_examples)


def write_table(table: AnalysisTable, options: AnalysisOptions) -> list[Path]:
    """Write a table in every requested table format, with notes on cells that mix code versions."""
    if options.sweep is not None:
        table = replace(table, notes=(*table.notes, *code_notes(options.sweep)))
    makers = {"md": table.markdown, "csv": table.comma_separated, "tex": table.latex}
    written = {options.out / f"{table.name}.{form}": make for form, make in makers.items() if form in options.formats}
    for path, make in written.items():
        write_atomically(path, make())
    return list(written)


def write_figure(name: str, options: AnalysisOptions, *strips: Sequence[Panel]) -> list[Path]:
    """Write a figure in every requested image format: rows of at most four panels, in turn from each strip."""
    rows = [row for across in zip(*map(in_rows, strips), strict=True) for row in across]
    written = [options.out / f"{name}.{form}" for form in ("svg", "png") if form in options.formats]
    for path in written:
        with replacing(path) as temporary:
            temporary.write_bytes(draw(rows, path.suffix[1:]))
    return written
