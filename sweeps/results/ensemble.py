"""Ensembles: averaged probabilities of finalists from several cells of one task (arXiv 1907.05338, experiment B).

No model is trained and no test split is opened: an ensemble uses the predictions that were stored when each finalist
was scored. Its members are named by the user, or are all finished cells of the task; a test score never chooses them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.predictions import (
    Predictions,
    averaged,
    check_aligned,
    predictions_path,
    read_predictions,
    scores,
)
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.kept_results import Ensemble, EnsembleMember, ensemble_id, write_ensemble
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary, summarise
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.storage.files import StoragePath, sweep_folder
from meltpoint.tasks import get
from meltpoint.tasks.core import kinds

Scored = Literal["dev", "test"]


@dataclass(frozen=True)
class Candidate:
    """A cell of a sweep in the storage that may become a member of an ensemble."""

    ledger: Ledger
    sweep: str
    cell: CellSummary

    @property
    def name(self) -> str:
        """The cell's name, E.M.T."""
        return cell_name(*self.cell.header.key)

    @property
    def label(self) -> str:
        """The cell's name with its sweep, SWEEP/E.M.T."""
        return f"{self.sweep}/{self.name}"

    def predictions(self, final: TrialRecord, split: Scored) -> StoragePath:
        """The file of a finalist's predictions."""
        return predictions_path(self.ledger.folder, self.name, final, split)


def ensemble(storage: StoragePath, name: str, task: str, cells: Sequence[str] = ()) -> Ensemble:
    """Average the probabilities of finished cells' finalists, seed by seed, and store the result with the sweep.

    Finalists with the same seed are combined, for each seed that all cells share. If the cells share no seed (sweeps
    with different `--seed`), the i-th finalists of all cells are combined, up to the smallest number of finalists.

    Args:
        storage: the folder of all sweeps.
        name: the sweep in which the result is stored.
        task: the task's name, or a task file.
        cells: the members, `E.M.T` of this sweep or `SWEEP/E.M.T`; empty for all finished cells of the task in this
            sweep.

    Raises:
        ValueError: an unknown sweep, task or cell; fewer than two members; members that are not finished, or differ in
            their classification task, data or examples; predictions that are missing or differ from the records.
    """
    summary = summarise(Ledger(sweep_folder(storage, name)))
    task = _task_name(summary, task)
    chosen, notes = _named(storage, summary, task, cells) if cells else _every(storage, summary, task)
    _check(chosen, task)
    header = chosen[0].cell.header
    rounds = _rounds([one.cell.finals for one in chosen])
    codes = tuple(dict.fromkeys(final.code_version for finals in rounds for final in finals))
    notes += _uneven(chosen, len(rounds)) + _mixed(codes)
    members = tuple(_member(one, finals) for one, finals in zip(chosen, zip(*rounds, strict=True), strict=True))
    dev, missing = _scored(chosen, rounds, "dev")
    test, hidden = _scored(chosen, rounds, "test")
    if not dev and not test:
        raise ValueError(f"An ensemble cannot be scored: {'; '.join([*missing, *hidden])}.")
    made = Ensemble(
        id=ensemble_id(task, members), task=task, kind=header.kind, metric=header.metric, members=members, dev=dev,
        test=test, data_fingerprint=header.data_fingerprint, notes=(*notes, *missing, *hidden), made_at=time.time(),
        code_versions=codes,
    )  # fmt: skip
    write_ensemble(Ledger(sweep_folder(storage, name)), made)
    return made


def _task_name(summary: SweepSummary, task: str) -> str:
    """The name of a task that the user gave by name or file.

    Raises:
        ValueError: the task is unknown, or the sweep has no cell of it.
    """
    known = dict.fromkeys(cell.header.task for cell in summary.cells)
    name = task if task in known else get(task).name
    if name not in known:
        raise ValueError(f"Sweep '{summary.name}' has no cell of task '{name}'. Tasks: {', '.join(known)}.")
    return name


def _every(storage: StoragePath, summary: SweepSummary, task: str) -> tuple[list[Candidate], list[str]]:
    """All finished cells of a task, and a note that names the unfinished ones."""
    ledger = Ledger(sweep_folder(storage, summary.name))
    of_task = [Candidate(ledger, summary.name, cell) for cell in summary.cells if cell.header.task == task]
    left = [one.name for one in of_task if not one.cell.is_done]
    return [one for one in of_task if one.cell.is_done], [f"left out, not finished: {', '.join(left)}"] if left else []


def _named(
    storage: StoragePath, summary: SweepSummary, task: str, cells: Sequence[str]
) -> tuple[list[Candidate], list[str]]:  # fmt: skip
    """The cells that the user named, without notes."""
    summaries = {summary.name: summary}
    chosen: list[Candidate] = []
    for word in cells:
        sweep, _, name = word.rpartition("/")
        sweep = sweep or summary.name
        if sweep not in summaries:
            summaries[sweep] = summarise(Ledger(sweep_folder(storage, sweep)))
        one = _find(storage, summaries[sweep], name)
        if one.label in [other.label for other in chosen]:
            raise ValueError(f"--cell {word} names a cell twice; name each cell once.")
        if one.cell.header.task != task:
            raise ValueError(f"Cell '{one.label}' is of task {one.cell.header.task}, not {task}; leave it out.")
        if not one.cell.is_done:
            raise ValueError(f"Cell '{one.label}' is not finished; see `meltpoint status {sweep}`.")
        chosen.append(one)
    return chosen, []


def _find(storage: StoragePath, summary: SweepSummary, name: str) -> Candidate:
    for cell in summary.cells:
        if cell_name(*cell.header.key) == name:
            return Candidate(Ledger(sweep_folder(storage, summary.name)), summary.name, cell)
    names = ", ".join(cell_name(*cell.header.key) for cell in summary.cells)
    raise ValueError(f"No cell '{name}' in sweep '{summary.name}'. Cells: {names}.")


def _check(chosen: Sequence[Candidate], task: str) -> None:
    """Check that the probabilities of the cells can be averaged."""
    if len(chosen) < 2:
        finished = f"only {chosen[0].label}" if chosen else "none"
        raise ValueError(
            f"An ensemble needs at least two finished cells of {task}, but found {finished}; name more with --cell."
        )
    first = chosen[0].cell
    if kinds.get(first.header.kind).target != "label":
        raise ValueError(f"Ensembles support only classification; {task} is {first.header.kind.replace('_', ' ')}.")
    for one in chosen[1:]:
        fingerprints = [cell.header.data_fingerprint for cell in (first, one.cell)]
        if fingerprints[0] != fingerprints[1]:
            both = f"{chosen[0].label} ({fingerprints[0]}) and {one.label} ({fingerprints[1]})"
            raise ValueError(f"{both} were trained on different data; combine cells with the same data.")
        if one.cell.header.metric != first.header.metric:
            raise ValueError(f"{chosen[0].label} and {one.label} are scored by different metrics; leave one out.")


def _rounds(finals: Sequence[Sequence[TrialRecord]]) -> list[tuple[TrialRecord, ...]]:
    """The finalists to combine, as tuples of one per cell, by seed."""
    common = set.intersection(*({final.seed for final in of_cell} for of_cell in finals))
    paired = [[final for final in of_cell if final.seed in common] for of_cell in finals] if common else finals
    return list(zip(*paired, strict=False))


def _uneven(chosen: Sequence[Candidate], rounds: int) -> list[str]:
    """A note that names the cells with more finalists than the ensemble combines."""
    more = [f"{one.label} has {len(one.cell.finals)}" for one in chosen if len(one.cell.finals) > rounds]
    return [f"{rounds} of the members' seeds could be paired: {', '.join(more)}"] if more else []


def _mixed(codes: Sequence[str]) -> list[str]:
    return [f"its members' finalists mix versions of Meltpoint's code: {', '.join(codes)}"] if len(codes) > 1 else []


def _member(one: Candidate, finals: Sequence[TrialRecord]) -> EnsembleMember:
    """The record of a cell's finalists in the ensemble."""
    head = one.cell.header
    return EnsembleMember(
        sweep=one.sweep, encoder=head.encoder, mode=head.mode, head=head.head, variant=head.variant, cell=one.name,
        trials=tuple(final.id for final in finals), seeds=tuple(final.seed for final in finals),
    )  # fmt: skip


def _scored(
    chosen: Sequence[Candidate], rounds: Sequence[Sequence[TrialRecord]], split: Scored
) -> tuple[tuple[dict[str, float], ...], list[str]]:
    """The ensemble's scores on a split, one per seed; empty, with a note, if a member has no stored predictions."""
    parts = [(one, final) for finals in rounds for one, final in zip(chosen, finals, strict=True)]
    if split == "dev":
        lacking = [one for one, final in parts if not one.predictions(final, split).exists()]
    else:  # finalists have no test score if the test labels are hidden or there is no test split
        lacking = [one for one, final in parts if not final.test]
    if lacking:
        labels = ", ".join(dict.fromkeys(one.label for one in lacking))
        return (), [f"no {split} score: nothing stored to score for {labels}"]
    header = chosen[0].cell.header
    kind = header.kind
    scored = []
    for finals in rounds:
        members = [_read(one, final, split) for one, final in zip(chosen, finals, strict=True)]
        check_aligned(members)
        scored.append(scores(kind, header.metric, members, averaged(members), header.beside))
    return tuple(scored), []


def _read(one: Candidate, final: TrialRecord, split: Scored) -> Predictions:
    """Read a finalist's stored predictions, and check that their score equals the recorded one.

    Raises:
        ValueError: they are missing or damaged, or have another score.
    """
    path = one.predictions(final, split)
    read = read_predictions(path)
    header = one.cell.header
    score = scores(header.kind, header.metric, [read], read.predicted)[header.metric]
    recorded = final.dev if split == "dev" else (final.test or {}).get(header.metric)
    if score != recorded:
        raise ValueError(
            f"{path} gives {split} {score!r}, but the record of trial {final.id} has {recorded!r}; restore one of them."
        )
    return read
