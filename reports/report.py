"""A sweep's report as Markdown, CSV, JSON, LaTeX or one HTML page, also while the sweep is running."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from meltpoint.reports.findings import (
    DELTA_HEADS,
    DELTA_SIDES,
    GAIN_HEADS,
    GAIN_SIDES,
    NO_DEFAULTS,
    advice_lines,
    delta_lines,
    delta_row,
    gain_lines,
    gain_rows,
)
from meltpoint.reports.formats import (
    booktabs,
    duration,
    latex_text,
    markdown_text,
    marks,
    searched_names,
    setting_text,
    title,
    trials_text,
)
from meltpoint.reports.matrix import members_text
from meltpoint.reports.notes import cell_notes, notes, state_line
from meltpoint.reports.papers import paper_score
from meltpoint.reports.report_json import document_text
from meltpoint.reports.results import SweepResults, TuningGain, ran_nowhere, results_of
from meltpoint.reports.sizes import size_lines
from meltpoint.reports.statistics.cost import PARETO_NOTE, cost_notes, cost_rows, pareto_rows
from meltpoint.reports.statistics.finals_scores import (
    CLASS_HEADS,
    CLASSES_NOTE,
    class_rows,
    class_sections,
    confusion_rows,
)
from meltpoint.reports.table_values import EncoderBlock, TableEntry, TableRow
from meltpoint.reports.trial_view import cell_figures, spread_figures
from meltpoint.sweeps.machine.terminal import tell
from meltpoint.sweeps.results.cost import NOTHING, best_dev_text, spread_text
from meltpoint.sweeps.results.kept_results import Ensemble
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.results.sweep_file import CellHeader


def latex(results: SweepResults) -> str:
    """The ❄/🔥 table, also while the sweep is running; footnotes and conclusions are comments below each table."""
    footnotes = [f"{number}: {text}" for number, text in enumerate(results.table.footnotes, 1)]
    notes = [
        *advice_lines(results.recommendations),
        *footnotes,
        *delta_lines(results),
        *gain_lines(results),
        *results.legend,
    ]
    head = "% \\usepackage{booktabs}\n"
    return head + "\n".join(_table(block, results.summary, notes) for block in results.table.blocks)


def _table(block: EncoderBlock, summary: SweepSummary, notes: list[str]) -> str:
    heads = ["mode", "head", *(f"{task} ({metric})" if metric else task for task, metric in block.tasks)]
    parts = [[_row(row) for row in rows] for rows in (block.modes, block.ensembles, block.differences)]
    state = "" if summary.state == "done" else f" ({summary.state})"
    caption = f"Sweep {summary.name}{state}: {block.encoder}."
    label = re.sub(r"[^A-Za-z0-9]+", "-", f"{summary.name}-{block.encoder}").strip("-")
    return booktabs("ll" + "r" * len(block.tasks), [latex_text(head) for head in heads], parts, caption, label, notes)


def _row(row: TableRow) -> list[str]:
    return [latex_text(row.title), latex_text(row.head), *(_shown(shown, row.is_paper) for shown in row.entries)]


def _shown(shown: TableEntry, is_paper: bool) -> str:
    text = latex_text(shown.label)
    around = r"\textit" if is_paper and shown.split else ""
    marks = ",".join(map(str, shown.notes))
    return (f"{around}{{{text}}}" if around else text) + (rf"\textsuperscript{{{marks}}}" if marks else "")


COLUMNS = (
    "sweep", "encoder", "mode", "task", "head", "kind", "metric",
    "trials_planned", "trials_finished", "trials_stopped", "trials_failed", "trials_running", "trials_missing",
    "best_dev", "best_trial", "best_epoch", "seeds", "dev_mean", "dev_std", "test_mean", "test_std",
    "train_examples", "dev_examples", "train_seconds", "setting", "notes", "data_fingerprint", "code_version",
    "variant", "task_parameters", "paper_score", "paper_split", "paper_source", "paper_quoted",
    "default_dev_mean", "default_dev_std", "default_test_mean", "default_test_std",
    "gpu_hours", "peak_memory_bytes", "trained_parameters", "seconds_of_a_final",
    "tuning_delta", "tuning_low", "tuning_high", "recommended",
)  # fmt: skip
"""The columns of `report.csv`, described in docs/tables.md."""


def files_of(results: SweepResults) -> dict[str, str]:
    """The report files: file name → text."""
    return {f"report.{form}": make(results) for form, make in MAKERS.items()}


def markdown(results: SweepResults) -> str:
    """The Markdown report: the ❄/🔥 table, its findings, the cells, the best settings, and the notes."""
    summary, table = results.summary, results.table
    parts = [f"# Sweep {_plain(summary.name)}", _bullets(advice_lines(results.recommendations)), state_line(summary)]
    for block in table.blocks:
        parts += [f"## {_plain(block.encoder)}", _block(block)]
    parts.append(
        "\n".join(
            f"{marks([number])} {markdown_text(text)}.  " for number, text in enumerate(table.footnotes, 1)
        ).rstrip()
    )
    parts += _findings(results)
    parts += ["## How to read it", _bullets(results.legend)]
    parts += ["## Cells", _cells(summary), *_cost(results), "## Best settings", SETTINGS_NOTE, _settings(summary)]
    parts += [*_classes(summary), "## Notes", _bullets(notes(summary))]
    return "\n\n".join(part for part in parts if part) + "\n"


def _findings(results: SweepResults) -> list[str]:
    """The sections on the table's differences and on gains from tuning; none if there are no scores yet."""
    parts = []
    if results.family:
        rows = [[_plain(text) for text in delta_row(delta)] for delta in results.family]
        parts += ["## What the table shows", _table_tables(DELTA_HEADS, rows, DELTA_SIDES)]
    if lines := size_lines(results):
        parts += ["## Over sizes of train", _bullets(lines)]
    if results.gains:
        rows = [[_plain(text) for text in row] for row in gain_rows(results.gains)]
        table = _table_tables(GAIN_HEADS, rows, GAIN_SIDES)
        parts += ["## What tuning bought", NO_DEFAULTS if ran_nowhere(results.gains) else table]
    return parts


SETTINGS_NOTE = "The searched parameters only, rounded to three digits; the exported files hold every value exactly."


def _block(block: EncoderBlock) -> str:
    heads = ["mode", "head", *(_plain(f"{task} ({metric})" if metric else task) for task, metric in block.tasks)]
    rows = [_matrix_row(row) for row in (*block.modes, *block.ensembles, *block.differences)]
    return _table_tables(heads, rows, "ll" + "r" * len(block.tasks))


def _matrix_row(row: TableRow) -> list[str]:
    around = ["*" if row.is_paper and shown.split else "" for shown in row.entries]
    texts = zip(row.entries, around, strict=True)
    return [_plain(row.title), _plain(row.head), *(f"{a}{shown.label}{a}{marks(shown.notes)}" for shown, a in texts)]


def _cells(summary: SweepSummary) -> str:
    names = _names(summary)
    heads = [*names, "head", "trials finished", "best dev", "best epoch", "dev", "test", "training"]
    rows = [_cell_row(cell, len(names)) for cell in summary.cells]
    return _table_tables(heads, rows, "l" * len(names) + "lrrrrrr")


def _cost(results: SweepResults) -> list[str]:
    """The section on costs: the score and cost of each cell, and the Pareto sets."""
    summary = results.summary
    heads, *rows = ([*map(_plain, row)] for row in cost_rows(summary, results.table.deltas))
    alignment = "l" * len(_names(summary))
    alignment += "r" * (len(heads) - len(alignment))
    parts = ["## Score and cost", _table_tables(heads, rows, alignment), _bullets(cost_notes(summary))]
    heads, *rows = ([*map(_plain, row)] for row in pareto_rows(summary))
    return [*parts, *([_table_tables(heads, rows, "llll"), _bullets([PARETO_NOTE])] if rows else [])]


def _classes(summary: SweepSummary) -> list[str]:
    """The section on the classes of each cell; none if no predictions of classes are stored."""
    parts = []
    for name, scores in class_sections(summary):
        rows = [[_plain(text) for text in row] for row in class_rows(scores)]
        parts += [f"### {_plain(name)}", _table_tables(CLASS_HEADS, rows, "lrrrr")]
        if matrix := [[_plain(text) for text in row] for row in confusion_rows(scores)]:
            parts.append(_table_tables(matrix[0], matrix[1:], "l" + "r" * (len(matrix[0]) - 1)))
    return ["## Classes", CLASSES_NOTE, *parts] if parts else []


def _names(summary: SweepSummary) -> list[str]:
    """The columns that identify a cell."""
    return ["encoder", "mode", "task", *(["variant"] if summary.has_variants else [])]


def _key(head: CellHeader, names: int) -> list[str]:
    return [_plain(head.encoder), title(head.mode), _plain(head.task), _plain(head.variant)][:names]


def _cell_row(cell: CellSummary, names: int) -> list[str]:
    head, best = cell.header, cell.best
    return [
        *_key(head, names), _plain(head.head), trials_text(cell.counts),
        best_dev_text(best),
        NOTHING if best is None or best.best_epoch is None else f"{best.best_epoch} of {len(best.epochs)}",
        spread_text(cell.dev, head.metric), spread_text(cell.test, head.metric), duration(cell.seconds),
    ]  # fmt: skip


def _settings(summary: SweepSummary) -> str:
    rows, names = [], _names(summary)
    for cell in summary.cells:
        head = cell.header
        text = setting_text(cell.best.setting, searched_names(head)) or "nothing is searched" if cell.best else NOTHING
        rows.append([*_key(head, len(names)), _plain(text)])
    return _table_tables([*names, "best setting"], rows, "l" * len(names) + "l")


def _table_tables(heads: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> str:
    rules = ["---:" if side == "r" else "---" for side in align]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rules, *rows))


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {markdown_text(line)}" for line in lines)


def _plain(text: str) -> str:
    """Text that is safe in a row of a Markdown table."""
    return markdown_text(text).replace("|", "\\|")


def comma_separated(results: SweepResults) -> str:
    """The CSV report: one line per cell, then one per ensemble; scores are fractions, absent values are empty."""
    text, summary = io.StringIO(), results.summary
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    gains = {gain.cell.header.key: gain for gain in results.gains}
    winners = {one.winner.cell.header.key: one.certainty for one in results.recommendations}
    for cell in summary.cells:
        key = cell.header.key
        more = {**_gain_columns(gains.get(key)), "recommended": winners.get(key, "")}
        writer.writerow(_line(cell, results) | more)
    for made in summary.ensembles:
        writer.writerow(_ensemble_line(made, summary))
    return text.getvalue()


def _gain_columns(gain: TuningGain | None) -> dict[str, object]:
    """The columns on the gain from tuning."""
    bought = gain.comparison if gain else None
    return {
        "tuning_delta": bought and bought.delta, "tuning_low": bought and bought.low,
        "tuning_high": bought and bought.high,
    }  # fmt: skip


def _line(cell: CellSummary, results: SweepResults) -> dict[str, object]:
    summary, head, best = results.summary, cell.header, cell.best
    published = paper_score(summary.spec, head, results.paper)
    return {
        "sweep": summary.name, **cell_figures(cell),
        **{f"trials_{state}": number for state, number in cell.counts.items()},
        "seeds": " ".join(str(final.seed) for final in cell.finals),
        "setting": best and json.dumps(best.setting, sort_keys=True), "notes": "; ".join(cell_notes(cell)),
        "code_version": "; ".join([use.version for use in cell.code_uses] or [summary.code]),
        "paper_score": published and published.score, "paper_split": published and published.split,
        "paper_source": published and published.source, "paper_quoted": published and published.quoted,
    }  # fmt: skip


def _ensemble_line(made: Ensemble, summary: SweepSummary) -> dict[str, object]:
    return {
        "sweep": summary.name, "encoder": "+".join(made.encoders), "mode": "ensemble", "task": made.task,
        "head": "+".join(dict.fromkeys(member.head for member in made.members)), "kind": made.kind,
        "metric": made.metric, "seeds": " ".join(str(seed) for seed in made.members[0].seeds),
        **spread_figures("dev", made.spread("dev")), **spread_figures("test", made.spread("test")),
        "notes": "; ".join([members_text(made, summary.name), *made.notes]),
        "data_fingerprint": made.data_fingerprint, "code_version": "; ".join(made.code_versions) or summary.code,
    }  # fmt: skip


MAKERS: Mapping[str, Callable[[SweepResults], str]] = {
    "md": markdown, "csv": comma_separated, "json": document_text, "tex": latex,
}  # fmt: skip
"""Format → the function that renders it."""


def report(summary: SweepSummary, form: str, beside: str | None = None, margin: float | None = None) -> str:
    """The text of `meltpoint report`.

    Args:
        form: `md`, `html`, `csv`, `json` or `tex`.
        beside: the paper's table to compare with; None for the one of the sweep's specification file, if any.
        margin: of the recommendation, as a fraction; None for the sweep's own.

    Raises:
        ValueError: the table is unknown.
    """
    results = results_of(summary, beside, margin=margin)
    if form == "html":
        from meltpoint.reports.html.page import html  # SciPy and Jinja take a second to import

        return html(results)
    return MAKERS[form](results)


def kept_files(results: SweepResults) -> dict[str, str]:
    """The report files in a sweep's folder: file name → text; they include the page once every cell is done.

    A stopped sweep may have only seconds to exit, too few for the page.
    """
    files = files_of(results)
    if all(cell.is_done for cell in results.summary.cells):
        try:
            from meltpoint.reports.html.page import html

            files["report.html"] = html(results)
        except Exception as error:  # noqa: BLE001 - no error here may lose the tables and the exports
            tell(
                f"report.html was not written ({type(error).__name__}: {error}); `meltpoint report "
                f"{results.summary.name} --format html` tries again.",
                err=True,
            )
    return files
