"""Notes below the tables: data, truncated inputs, seeds, searcher, hardware and the rule of selection."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from meltpoint.reports.formats import duration, listed, symbol
from meltpoint.sweeps.ledger.records import CellKey, HardwareRecord, TrialRecord, strays_in_words
from meltpoint.sweeps.results.guards import FEW_STEPS, Guard, guard_lines, guards
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.results.sweep_file import mixture_in_words
from meltpoint.sweeps.search.locked_test import Closing
from meltpoint.sweeps.specification.space_rules import FITTED
from meltpoint.tasks.core.wording import counted, plural, some

FOLDED = {
    "baseline": ("did not beat the best baseline on dev", "check the data, the steps and the trials"),
    "failed_runs": ("had finals that did not learn", "lower the learning rates, or run more trials"),
    "few_steps": (f"chose a setting of fewer than {FEW_STEPS} steps", "raise the epochs or the trials"),
    "result": ("got a note on the best epoch", "see `report --explain`"),
    "edge": ("chose a value at the edge of its range", "widen it with --set or --space"),
}
"""Kind of a guard → the words for all of its cells, and the remedy."""
NAMED = 4
"""Most cells or tasks that a line names."""

SELECTION = (
    "Selection: the best epoch of a trial by dev, the earliest among equals; the best setting of a cell by dev, among "
    "equals the one of fewer epochs, then the earlier; stopped trials do not count. After that, a test "
    "split is opened once per finalist."
)


def notes(summary: SweepSummary) -> list[str]:
    """Every note of a sweep's tables, one line each."""
    return [
        *warning_notes(summary), *data_notes(summary), *trial_notes(summary), *input_notes(summary), *_method(summary),
    ]  # fmt: skip


def warning_notes(summary: SweepSummary) -> list[str]:
    """Damaged records, and the sweep's tripped guards against wrong conclusions, a line each."""
    return [*summary.damaged, *(f"Warning: {line}." for line in guard_lines(summary))]


def folded_warnings(summary: SweepSummary) -> list[str]:
    """The warnings for a screen, one line per kind: damaged records, guards, short searches, lost trials."""
    found, several = guards(summary), len({cell.header.encoder for cell in summary.cells}) > 1
    lines = [*summary.damaged]
    alike: dict[str, list[Guard]] = {}
    for guard in found:
        if guard.kind == "data":  # the same words with other sizes
            alike.setdefault(re.sub(r"[\d ]+", "", guard.text), []).append(guard)
    for same in alike.values():
        first, *rest = dict.fromkeys(guard.cell[2] for guard in same)
        lines.append(f"Warning: {first}: {same[0].text}{f'; likewise {_first(rest)}' if rest else ''}.")
    for kind, (words, remedy) in FOLDED.items():
        keys = dict.fromkeys(guard.cell for guard in found if guard.kind == kind)
        lines += _folded([_short(key, several) for key in keys], words, remedy, summary)
    early = [cell for cell in summary.cells if cell.closed_early]
    lost = [cell for cell in summary.cells if cell.counts["failed"] or cell.failed_finals or cell.failed_defaults]
    for cells, words, remedy in (
        (early, "ended the search early", "to search on, use another --name, or --new-test-round"),
        (lost, "had trials without a result", f"see `meltpoint status {summary.name}`"),
    ):
        lines += _folded([_short(cell.header.key, several) for cell in cells], words, remedy, summary)
    return lines


def _folded(names: Sequence[str], words: str, remedy: str, summary: SweepSummary) -> list[str]:
    """The warning about the cells with these names; the names are left out if it covers all cells."""
    count = len(summary.cells)
    if not names:
        return []
    if 1 < len(names) == count:
        return [f"Warning: all {count} cells {words}: {remedy}."]
    return [f"Warning: {len(names)} of {some(count, 'cell')} {words} ({_first(names)}): {remedy}."]


def _short(key: CellKey, with_encoder: bool) -> str:
    """A cell in a line: `🔥 sst2`, with its encoder and variant if they are needed."""
    encoder, mode, *rest = key
    return " ".join([*([encoder] if with_encoder else []), symbol(mode), *rest])


def _first(names: Sequence[str]) -> str:
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return ", ".join([*names[:NAMED], *more])


def task_notes(summary: SweepSummary, with_ranges: bool = True) -> list[str]:
    """Changes to the tasks' splits (a sample, a carved test, hidden labels), one line for tasks that share them.

    Args:
        with_ranges: False leaves out the ranges that were fitted to a task's size.
    """
    notes: dict[str, dict[str, None]] = {}
    for head in (cell.header for cell in summary.cells):
        kept = (note for note in head.notes if with_ranges or FITTED not in note)
        notes.setdefault(head.task, {}).update(dict.fromkeys(kept))
    tasks: dict[str, list[str]] = {}
    for task, own in notes.items():
        if own:
            tasks.setdefault("; ".join(own), []).append(task)
    return [f"{listed(names)}: {words}" for words, names in tasks.items()]


def data_notes(summary: SweepSummary) -> list[str]:
    """The number of examples and the changes to the splits, one line per task."""
    lines = []
    for cell in summary.cells:
        head = cell.header
        sizes = f"{counted(head.train_examples)} training and {some(head.dev_examples, 'dev example')}"
        facts = "; ".join([sizes, *head.notes])
        lines.append(f"Data of {head.task}: {facts} (fingerprint {head.data_fingerprint}).")
    return list(dict.fromkeys(lines))


def trial_notes(summary: SweepSummary) -> list[str]:
    """The search trials and finals that ended without a result, one line per affected cell."""
    lines = []
    for cell in summary.cells:
        failed, lost = cell.counts["failed"] - cell.lost, cell.lost
        losses = [f"{failed} failed"] * bool(failed) + [f"{lost} lost with their workers or machines"] * bool(lost)
        if losses:
            planned = some(cell.counts["planned"], "search trial")
            lines.append(f"{'.'.join(cell.header.key)}: of {planned}, {' and '.join(losses)}.")
        for records, finals in (
            (cell.failed_finals, some(summary.seeds_of(cell), "final")),
            (cell.failed_defaults, f"{some(cell.default_seeds, 'final')} of its published setting"),
        ):
            if records:
                lines.append(f"{'.'.join(cell.header.key)}: of {finals}, {len(records)} without a result.")
    return lines


def code_notes(summary: SweepSummary) -> list[str]:
    """The cells whose trials used several versions of Meltpoint's code, a line each."""
    mixed = [cell for cell in summary.cells if cell.mixes_code]
    return [f"{'.'.join(cell.header.key)} {mixture_in_words(cell.code_uses, cell.best)}." for cell in mixed]


def growth_notes(summary: SweepSummary) -> list[str]:
    """The additions to the sweep under its name, with their dates, a line each."""
    lines = []
    for grown in summary.growth:
        day = time.strftime("%Y-%m-%d", time.localtime(grown.at))
        after = f", after {some(grown.opened, 'finalist')} had been scored on test" if grown.opened else ""
        seeds = any(change.startswith("seeds") for change in grown.changes) and grown.opened
        looked = "; tests over the seeds do not account for that first look" if seeds else ""
        lines.append(f"The sweep grew on {day}{after}: {'; '.join(grown.changes)}{looked}.")
    return lines


def state_line(summary: SweepSummary) -> str:
    """The state of a sweep, its finished cells, and its training time."""
    done, seconds = sum(cell.is_done for cell in summary.cells), sum(cell.seconds for cell in summary.cells)
    cells = some(len(summary.cells), "cell")
    return f"State: {summary.state}; {done} of {cells} done; {duration(seconds)} of training."


def cell_notes(cell: CellSummary) -> list[str]:
    """Changes to a cell's data and inputs, and differences of its search from others."""
    lines = [*cell.header.notes, *(cell.best.input_notes if cell.best else ())]
    lines += [searched_less(cell.closed_early)] if cell.closed_early else []
    lines += [str(cell.early_end)] if cell.early_end else []
    lines += [searched_again(cell.test_round)] if cell.test_round > 1 else []
    return lines + ([mixture_in_words(cell.code_uses, cell.best)] if cell.mixes_code else [])


def searched_less(closing: Closing) -> str:
    """The note that a cell's search ended before all its trials were run."""
    return f"its search ended after {closing}"


def searched_again(test_round: int) -> str:
    """The note that a cell's setting was chosen after its test split had been opened."""
    return f"searched on after its test split was opened (test round {test_round}): test is no longer unseen data"


def input_notes(summary: SweepSummary) -> list[str]:
    """Notes of the best trials and finals on inputs that were too long; modes with equal notes are grouped."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for cell in summary.cells:
        head = cell.header
        for note in dict.fromkeys(note for record in _records(cell) for note in record.input_notes):
            grouped.setdefault((head.encoder, head.task, note), []).append(symbol(head.mode))
    return [
        f"Inputs of {task}, {encoder} ({', '.join(symbols)}): {note}."
        for (encoder, task, note), symbols in grouped.items()
    ]


def _method(summary: SweepSummary) -> Iterator[str]:
    spec = summary.spec
    seeds = sorted({final.seed for cell in summary.cells for final in cell.finals})
    if spec.origin:
        yield f"Specification: {spec.origin}; {some(len(spec.blocks), 'block')}."
    yield from spec.notes
    yield from spec.missing()
    trials = listed(block.trials for block in spec.products())
    noun = "trial" if trials == "1" else plural("trial")
    searchers = listed(spec.searcher_of(block) for block in spec.products())
    most = "at most " if spec.race or spec.auto_trials else ""
    yield f"Search: {searchers}, {most}{trials} {noun} planned per cell, seed {spec.seed}."
    planned = listed(block.seeds for block in spec.products())
    yield f"Finals: {f'seeds {listed(seeds)}' if seeds else 'none yet'}; {planned} planned per cell."
    for name, word in spec.encoder_words().items():
        yield f"Encoder {name}: {word}."
    if spec.space is not None:
        yield f"Space: {Path(spec.space).name} in place of the shipped spaces."
    if spec.overrides:
        yield f"Set by hand: {listed(spec.overrides)}."
    records = (record for cell in summary.cells for record in _records(cell))
    hardware = dict.fromkeys(_hardware(record.hardware) for record in records if record.hardware)
    if hardware:
        yield f"Trained on: {'; '.join(hardware)}."
    yield f"Code: meltpoint {', '.join(summary.code_versions)}."
    yield from code_notes(summary)
    yield from growth_notes(summary)
    if summary.strays:
        yield strays_in_words(summary.strays)
    yield SELECTION


def _hardware(hardware: HardwareRecord) -> str:
    share = f", {hardware.gpu_share:g} of the GPU" if 0 < hardware.gpu_share < 1 else ""
    threads = some(hardware.threads, "thread")
    return f"{hardware.name} ({hardware.device}, {threads}{share}, {hardware.precision})"


def _records(cell: CellSummary) -> list[TrialRecord]:
    """The records behind a cell's scores."""
    return [*([cell.best] if cell.best else []), *cell.finals]
