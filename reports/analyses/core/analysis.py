"""What an analysis is, what it is given, and how its tables and figures become files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from meltpoint.adapters import encoders
from meltpoint.adapters.files import replacing, write_atomically
from meltpoint.reports.analyses.core.figures import Panel, draw
from meltpoint.reports.analyses.core.tables import Table
from meltpoint.reports.notes import code_notes
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.specification.cells import data_spec, word_of
from meltpoint.tasks import get
from meltpoint.tasks.core.registry import unknown
from meltpoint.tasks.core.task import DataSpec

FORMATS = ("md", "csv", "tex", "svg", "png")


@dataclass(frozen=True)
class Options:
    """What an analysis works on.

    Attributes:
        sweep: a sweep's results, or None where none is named.
        ledger: that sweep's folder.
        encoders, tasks: the words that were given; empty for all of the sweep.
        model: an exported folder whose encoder stands for the fine-tuned one.
        corpus: a text file: what the encoder was pretrained on, or a sample of it.
        data_dir, max_train_examples: as a sweep's; None for the sweep's own.
        out: the folder of what is written.
        formats: of `FORMATS`.
        tell: takes a line about what is being done.
    """

    sweep: SweepSummary | None
    ledger: Ledger | None
    out: Path
    encoders: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    model: Path | None = None
    corpus: Path | None = None
    data_dir: str | None = None
    max_train_examples: int | None = None
    formats: tuple[str, ...] = FORMATS
    tell: Callable[[str], None] = field(default=lambda line: None)

    def needed_sweep(self, name: str) -> SweepSummary:
        """The sweep's results.

        Raises:
            ValueError: none was named.
        """
        if self.sweep is None:
            raise ValueError(f"The analysis '{name}' is of a sweep's results; name the sweep in place of '-'.")
        return self.sweep

    def check_words(self) -> None:
        """Refuse unknown encoders and tasks, without loading any.

        Raises:
            ValueError: one line with near misses.
        """
        if self.sweep is not None:
            self.pairs()
            return
        kinds = dict.fromkeys(get(task).kind for task in self.tasks)
        for encoder in self.encoders:
            for kind in kinds:
                encoders.resolve(encoder, kind)

    def pairs(self) -> list[tuple[str, str]]:
        """(encoder, task) of everything to look at: the sweep's, narrowed by the words given, or their product.

        Raises:
            ValueError: a word that the sweep does not have, or no sweep and no words.
        """
        if self.sweep is None:
            if not (self.encoders and self.tasks):
                raise ValueError("Without a sweep, say what to look at: --encoder E --task T.")
            return [(encoder, task) for encoder in self.encoders for task in self.tasks]
        there = list(dict.fromkeys((cell.header.encoder, cell.header.task) for cell in self.sweep.cells))
        for what, given, known in (
            ("encoder", self.encoders, {encoder for encoder, _ in there}),
            ("task", self.tasks, {task for _, task in there}),
        ):
            for word in given:
                if word not in known:
                    raise unknown(word, f"{what} of sweep {self.sweep.name}", known)
        return [(e, t) for e, t in there if e in (self.encoders or (e,)) and t in (self.tasks or (t,))]

    def cells(self, encoder: str, task: str) -> list[CellSummary]:
        """The sweep's cells of an encoder and a task, one a mode; none without a sweep."""
        every = self.sweep.cells if self.sweep else []
        return [cell for cell in every if (cell.header.encoder, cell.header.task) == (encoder, task)]

    def data(self, task: str) -> DataSpec:
        """Which data a task's states are of: the sweep's, but for what was given."""
        if self.sweep is None:
            return DataSpec(task, self.data_dir, self.max_train_examples)
        spec = self.sweep.spec
        own = data_spec(spec, word_of(spec, task))
        size = own.max_train_examples if self.max_train_examples is None else self.max_train_examples
        return DataSpec(own.task, self.data_dir or own.data_dir, size, own.test_from)


@dataclass(frozen=True)
class Analysis:
    """A ready-made analysis.

    Attributes:
        name: its file name, and its word on the command line.
        summary: what it shows, one line.
        run: (options) → the files that it wrote.
    """

    name: str
    summary: str
    run: Callable[[Options], list[Path]]


def write_table(table: Table, options: Options) -> list[Path]:
    """Write a table in every format of tables that is asked for; below it, which cells mix versions of the code."""
    if options.sweep is not None:
        table = replace(table, notes=(*table.notes, *code_notes(options.sweep)))
    makers = {"md": table.markdown, "csv": table.comma_separated, "tex": table.latex}
    written = []
    for form, make in makers.items():
        if form in options.formats:
            path = options.out / f"{table.name}.{form}"
            write_atomically(path, make())
            written.append(path)
    return written


def write_figure(name: str, rows: Sequence[Sequence[Panel]], options: Options) -> list[Path]:
    """Write a figure in every format of figures that is asked for."""
    written = []
    for form in ("svg", "png"):
        if form in options.formats:
            path = options.out / f"{name}.{form}"
            with replacing(path) as beside:
                beside.write_bytes(draw(rows, form))
            written.append(path)
    return written
