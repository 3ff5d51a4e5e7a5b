"""The matrix of a sweep: modes × tasks with baselines and ensembles, and the differences of all pairs of modes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, zip_longest

from meltpoint.adapters import modes
from meltpoint.adapters.settings import CONSTANT, SCHEDULE
from meltpoint.reports.formats import symbol, title
from meltpoint.reports.notes import searched_again, searched_less
from meltpoint.reports.statistics.comparison import Comparer
from meltpoint.reports.table_values import (
    TUNED,
    Contrasts,
    Delta,
    EncoderBlock,
    EnsembleOf,
    Matrix,
    ModeVariant,
    RowPair,
    Split,
    TableEntry,
    TableRow,
    in_one_table,
    over_seeds,
    place_of,
)
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.cost import spread_text
from meltpoint.sweeps.results.kept_results import Ensemble
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.results.sweep_file import mixture_in_words
from meltpoint.tasks.core.scoring import score_text
from meltpoint.tasks.core.wording import some


def _entry(task: str, metric: str, summary: SweepSummary) -> TableEntry:
    known = summary.baselines.get(task)
    if known is None or known.metric != metric:
        return TableEntry()
    name, score = known.best
    return TableEntry(score_text(score, metric), "dev", score, (f"{name}, the best baseline; on dev only",))


ENSEMBLE_NOTE = (
    "An ensemble averages the probabilities that its members' finalists gave when each was scored, seed by seed; test "
    "was not opened again. Its members were named, or are all finished cells of the task: none was chosen by test."
)
SEVERAL = "several encoders"
STALE = "its members' finalists have changed: run `meltpoint ensemble` again"


def heading(made: Ensemble) -> str:
    """The encoder whose block of the table contains the ensemble, or the heading for ensembles of several encoders."""
    return made.encoders[0] if len(made.encoders) == 1 else SEVERAL


def members_text(made: Ensemble, sweep: str) -> str:
    """`ensemble of minilm ❄ (bilstm), minilm 🔥 (linear)`; cells of other sweeps are prefixed with the sweep."""
    names = []
    for member in made.members:
        prefix = "" if member.sweep == sweep else f"{member.sweep}/"
        head = ", ".join(part for part in (member.head, member.variant) if part)
        names.append(f"{prefix}{member.encoder} {symbol(member.mode)} ({head})")
    return f"ensemble of {', '.join(names)}"


def is_current(made: Ensemble, summary: SweepSummary) -> bool:
    """True if this sweep's members still have the finalists that were combined."""
    current = {final.id for cell in summary.cells for final in cell.finals}
    return all(trial in current for member in made.members if member.sweep == summary.name for trial in member.trials)


MOST_COMPARED = 4
"""Modes of which every pair has a row: six differences."""
HIDDEN = "the test labels are hidden; dev is shown"
NO_TEST = "there is no labelled test; dev is shown"
CLOSED = "the specification leaves test closed; dev is shown"
UNSCORED = "not scored on test yet; dev is shown"
AT_CAP = "the best epoch of a seed is the last that `epochs` allows: more may score higher"


def matrix(
    summary: SweepSummary, split: Split = "test", pairs: Sequence[RowPair] = (), comparer: Comparer | None = None
) -> Matrix:
    """The ❄/🔥 table of a sweep, also while it is running.

    Args:
        split: "dev" to show dev even if there are test scores.
        pairs: further differences to show, if the sweep has both rows.
        comparer: a comparer whose results are reused; None for a new one.
    """
    comparer = comparer or Comparer(summary.folder, cells=summary.cells)
    encoders = dict.fromkeys(cell.header.encoder for cell in summary.cells)
    made = (_block(summary, encoder, split, pairs, comparer) for encoder in encoders)
    blocks = [_with_ensembles(block, summary, split) for block in made]
    for name in dict.fromkeys(heading(made) for made in summary.ensembles):
        if name not in encoders:
            tasks = dict.fromkeys((made.task, made.metric) for made in summary.ensembles if heading(made) == name)
            blocks.append(_with_ensembles(EncoderBlock(name, tuple(tasks), (), ()), summary, split))
    return Matrix.of(blocks, in_one_table([delta for block in blocks for delta in block.deltas]))


def _block(
    summary: SweepSummary, encoder: str, split: Split, pairs: Sequence[RowPair], comparer: Comparer
) -> EncoderBlock:  # fmt: skip
    encoder_cells = [cell for cell in summary.cells if cell.header.encoder == encoder]
    cells = {(ModeVariant(cell.header.mode, cell.header.variant), cell.header.task): cell for cell in encoder_cells}
    columns = _columns(encoder_cells)
    sides = _in_order(side for side, _ in cells)
    rows = [_mode_row(side, cells, columns, summary, split) for side in sides]
    comparable: dict[tuple[ModeVariant | EnsembleOf, str], CellSummary | Ensemble] = {}
    comparable.update(cells.items())
    comparable.update(_ensembles_by_members(summary, encoder).items())
    contrasts = Contrasts(comparable, columns, split, comparer)
    chosen = _chosen_pairs(sides, pairs, {key for key, _ in contrasts.cells})
    differences = [contrasts.row(pair) for pair in chosen]
    deltas: list[Delta] = [delta for _, behind in differences for delta in behind]
    shown = tuple(row for pair, (row, _) in zip(chosen, differences, strict=True) if _is_shown(pair, chosen, pairs))
    return EncoderBlock(encoder, columns, tuple(rows), shown, deltas=tuple(deltas))


def _is_shown(pair: RowPair, chosen: Sequence[RowPair], pairs: Sequence[RowPair]) -> bool:
    """True if a difference has a row: of many modes, only those from full fine-tuning; the rest is in the findings."""
    sides = {side.mode for one in chosen for side in (one.upper, one.lower) if isinstance(side, ModeVariant)}
    if len(sides) <= MOST_COMPARED or TUNED not in sides or pair in pairs:
        return True
    return TUNED in {side.mode for side in (pair.upper, pair.lower) if isinstance(side, ModeVariant)}


def _in_order(sides: Iterable[ModeVariant]) -> list[ModeVariant]:
    """The rows of a table: variants in the specification's order, the modes of each in the papers' order, ❄ first."""
    distinct = list(dict.fromkeys(sides))
    variants = [side.variant for side in distinct]
    return sorted(distinct, key=lambda side: (variants.index(side.variant), place_of(side.mode)))


def _mode_row(
    side: ModeVariant, cells: Mapping[tuple[ModeVariant, str], CellSummary], columns: Sequence[tuple[str, str]],
    summary: SweepSummary, split: Split,
) -> TableRow:  # fmt: skip
    row_cells = [cells.get((side, task)) for task, _ in columns]
    head = " or ".join(dict.fromkeys(cell.header.head for cell in row_cells if cell))
    shown = [_show(cell, metric, summary, split) for cell, (_, metric) in zip(row_cells, columns, strict=True)]
    name = title(side.mode) + (f" · {side.variant}" if side.variant else "")
    return TableRow(name, head, tuple(shown), side)


def _chosen_pairs(
    sides: Sequence[ModeVariant], pairs: Sequence[RowPair], keys: Collection[ModeVariant | EnsembleOf]
) -> list[RowPair]:  # fmt: skip
    """All pairs of modes within each variant, the later minus the earlier; then the further pairs whose rows exist."""
    usual = [
        RowPair(upper, lower) for lower, upper in combinations(sides, 2)
        if upper.variant == lower.variant and upper.mode != lower.mode
    ]  # fmt: skip
    return [pair for pair in dict.fromkeys([*usual, *pairs]) if {pair.upper, pair.lower} <= set(keys)]


def _columns(cells: Sequence[CellSummary]) -> tuple[tuple[str, str], ...]:
    """(task, metric) per column: each task's own metric, then the others that its table shows."""
    heads = [cell.header for cell in cells]
    own = dict.fromkeys((head.task, head.metric) for head in heads)
    beside = [(head.task, name) for head in heads for name in (*head.beside, *head.also_test) if name != head.metric]
    each = (((task, metric), *(other for other in beside if other[0] == task)) for task, metric in own)
    return tuple(dict.fromkeys(column for columns in each for column in columns))


def _ensembles_by_members(summary: SweepSummary, encoder: str) -> Mapping[tuple[EnsembleOf, str], Ensemble]:
    """(members, task) → the ensemble of these cells of an encoder in this sweep, if their finalists are unchanged."""
    return {
        (EnsembleOf(frozenset(ModeVariant(member.mode, member.variant) for member in made.members)), made.task): made
        for made in summary.ensembles
        if made.encoders == (encoder,) and is_current(made, summary)
        and all(member.sweep == summary.name for member in made.members)
    }  # fmt: skip


def _show(cell: CellSummary | None, metric: str, summary: SweepSummary, wanted: Split) -> TableEntry:
    """A cell's score; the reasons are given in the column of its own metric."""
    is_own = cell is None or cell.header.metric == metric
    if cell is None or cell.dev is None:
        reason = "not part of the sweep" if cell is None else missing(cell)
        return TableEntry(reasons=(reason,) if is_own else ())
    split: Split = "test" if cell.test and wanted == "test" else "dev"
    over = over_seeds(cell, split, metric)
    reasons = tuple(_reservations(cell, summary, wanted)) if is_own else ()
    return TableEntry(spread_text(over, metric), split, over.mean, reasons) if over else TableEntry(reasons=reasons)


def missing(cell: CellSummary) -> str:
    """The reason why a cell has no score."""
    if cell.best is not None:
        return "no final has finished"
    failed, planned = cell.counts["failed"], cell.counts["planned"]
    return "every trial failed" if failed and failed >= planned else "no trial has finished"


def _reservations(cell: CellSummary, summary: SweepSummary, wanted: Split) -> list[str]:
    """The reasons why a cell's score is not a test score over all seeds of a complete search."""
    reasons, finals = [], cell.finals
    if wanted == "dev":
        pass
    elif cell.test is None:
        unscored = any(final.test is None for final in finals)
        hidden = any("test labels hidden" in note for note in cell.header.notes)
        reasons.append(
            CLOSED if summary.spec.split == "dev" else HIDDEN if hidden else UNSCORED if unscored else NO_TEST
        )
    elif cell.test.count < len(finals):
        reasons.append(f"{cell.test.count} of {some(len(finals), 'seed')} scored on test")
    if len(finals) < summary.seeds_of(cell):
        reasons.append(f"{len(finals)} of {some(summary.seeds_of(cell), 'seed')} finished")
    if cell.closed_early:
        reasons.append(searched_less(cell.closed_early))
    if cell.early_end is not None and cell.early_end.behind is not None:
        reasons.append(str(cell.early_end))
    if cell.test_round > 1:
        reasons.append(searched_again(cell.test_round))
    if len(summary.code_versions) > 1:
        reasons.append(codes_of(cell))
    if any(map(ends_at_best, finals)):
        reasons.append(AT_CAP)
    mode = cell.header.mode
    if mode in modes.names() and not modes.get(mode).is_random:
        reasons.append(f"nothing in {mode} is random, so its one run has no ±")
    return reasons


def ends_at_best(record: TrialRecord) -> bool:
    """True if the best epoch at a constant rate is the last that `epochs` allows.

    A schedule that ends with the last epoch is expected to be best there, so it proves nothing.
    """
    is_constant = "epochs" in record.setting and record.setting.get(SCHEDULE, CONSTANT) == CONSTANT
    return is_constant and bool(record.epochs) and record.best_epoch == record.epochs[-1].epoch


def codes_of(cell: CellSummary) -> str:
    """The versions of Meltpoint's code that ran a cell's trials, in a sweep that mixes versions."""
    if cell.mixes_code:
        return mixture_in_words(cell.code_uses, cell.best)
    return f"all its trials used Meltpoint's code {cell.code_uses[0].version}; other cells used other versions"


def _with_ensembles(block: EncoderBlock, summary: SweepSummary, wanted: Split) -> EncoderBlock:
    """The block with its baselines, and a row for the first ensemble of each task, one for the second, and so on."""
    ensembles = [made for made in summary.ensembles if heading(made) == block.encoder]
    columns = [
        [_show_ensemble(made, metric, summary, wanted) for made in ensembles if made.task == task]
        for task, metric in block.tasks
    ]
    rows = [
        TableRow("ensemble" if place == 0 else f"ensemble {place + 1}", "", shown, None)
        for place, shown in enumerate(zip_longest(*columns, fillvalue=TableEntry()))
    ]
    entries = tuple(_entry(task, metric, summary) for task, metric in block.tasks)
    has_baselines = bool(block.modes) and any(entry.mean is not None for entry in entries)
    baselines = [TableRow("baseline", "", entries, None)] if has_baselines else []
    return replace(block, ensembles=(*baselines, *rows))


def _show_ensemble(made: Ensemble, metric: str, summary: SweepSummary, wanted: Split) -> TableEntry:
    split: Split = "test" if made.test and wanted == "test" else "dev"
    over = made.spread(split, metric)
    stale = [] if is_current(made, summary) else [STALE]
    reasons = (members_text(made, summary.name), *made.notes, *stale) if metric == made.metric else ()
    return TableEntry(spread_text(over, metric), split, over.mean, reasons) if over else TableEntry(reasons=reasons)
