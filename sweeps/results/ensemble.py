"""Ensembles: averaged probabilities of finalists from several cells of one task (arXiv 1907.05338, experiment B).

No model is trained and no test split is opened: an ensemble uses the predictions that were stored when each finalist
was scored. Its members are named by the user, or are all finished cells of the task; a test score never chooses them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
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
from meltpoint.sweeps.storage.files import StoragePath, sweep_folder
from meltpoint.tasks import get
from meltpoint.tasks.core import kinds

Scored = Literal["dev", "test"]


def ensemble(storage: StoragePath, name: str, task: str, cells: Sequence[str] = ()) -> Ensemble:
    """Average the probabilities of finished cells' finalists, seed by seed, and store the result with the sweep.

    Finalists with the same seed are combined, for each seed that all cells share.

    Args:
        storage: the folder of all sweeps.
        name: the sweep.
        task: the task's name, or a task file.
        cells: the members, `E.M.T`; empty for all finished cells of the task.

    Raises:
        ValueError: an unknown sweep, task or cell; fewer than two members; members that are not finished, or not of
            that task; another kind of task than classification; predictions that are missing or differ from the
            records.
    """
    ledger = Ledger(sweep_folder(storage, name))
    summary = summarise(ledger)
    task = _task_name(summary, task)
    chosen, notes = _chosen(summary, task, cells)
    header = chosen[0].header
    common = set.intersection(*({final.seed for final in cell.finals} for cell in chosen))
    finals = [[final for final in cell.finals if final.seed in common] for cell in chosen]
    more = [cell.name for cell in chosen if len(cell.finals) > len(common)]
    notes += [f"seeds that not every member has are left out: {', '.join(more)}"] if more else []
    codes = tuple(dict.fromkeys(final.code_version for of_seed in zip(*finals, strict=True) for final in of_seed))
    notes += [f"its members' finalists mix versions of Meltpoint's code: {', '.join(codes)}"] if len(codes) > 1 else []
    members = tuple(
        EnsembleMember(
            sweep=name, encoder=cell.header.encoder, mode=cell.header.mode, head=cell.header.head,
            variant=cell.header.variant, cell=cell.name, trials=tuple(final.id for final in own),
            seeds=tuple(final.seed for final in own),
        )
        for cell, own in zip(chosen, finals, strict=True)
    )  # fmt: skip
    dev, missing = _scored(ledger, chosen, finals, "dev")
    test, hidden = _scored(ledger, chosen, finals, "test")
    if not dev and not test:
        raise ValueError(f"An ensemble cannot be scored: {'; '.join([*missing, *hidden]) or 'no seed in common'}.")
    made = Ensemble(
        id=ensemble_id(task, members), task=task, kind=header.kind, metric=header.metric, members=members, dev=dev,
        test=test, data_fingerprint=header.data_fingerprint, notes=(*notes, *missing, *hidden), made_at=time.time(),
        code_versions=codes,
    )  # fmt: skip
    write_ensemble(ledger, made)
    return made


def _chosen(summary: SweepSummary, task: str, cells: Sequence[str]) -> tuple[list[CellSummary], list[str]]:
    """The named cells, or all finished ones of the task, and a note that names the unfinished ones."""
    named = [summary.named(word) for word in dict.fromkeys(cells)]
    of_task = [cell for cell in named or summary.cells if cell.header.task == task]
    chosen, left = [cell for cell in of_task if cell.is_done], [cell.name for cell in of_task if not cell.is_done]
    wrong = [cell.name for cell in named if cell not in chosen]
    if wrong:
        raise ValueError(f"Cell '{wrong[0]}' is not a finished cell of {task}; see `meltpoint status {summary.name}`.")
    if len(chosen) < 2:
        raise ValueError(f"An ensemble needs two finished cells of {task}; see `meltpoint status {summary.name}`.")
    kind = chosen[0].header.kind
    if kinds.get(kind).target != "label":
        raise ValueError(f"Ensembles support only classification; {task} is {kind.replace('_', ' ')}.")
    return chosen, [f"left out, not finished: {', '.join(left)}"] if left else []


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


def _scored(
    ledger: Ledger, chosen: Sequence[CellSummary], finals: Sequence[Sequence[TrialRecord]], split: Scored
) -> tuple[tuple[dict[str, float], ...], list[str]]:
    """The ensemble's scores on a split, one per seed; empty, with a note, if a member has no stored predictions."""

    def path(cell: CellSummary, final: TrialRecord) -> StoragePath:
        return predictions_path(ledger.folder, cell.name, final, split)

    lacking = [
        cell.name for cell, own in zip(chosen, finals, strict=True) for final in own
        # Finalists have no test score if the test labels are hidden or there is no test split.
        if (not path(cell, final).exists() if split == "dev" else not final.test)
    ]  # fmt: skip
    if lacking:
        return (), [f"no {split} score: nothing stored to score for {', '.join(dict.fromkeys(lacking))}"]
    header, scored = chosen[0].header, []
    for of_seed in zip(*finals, strict=True):
        read = [_read(path(cell, final), cell, final, split) for cell, final in zip(chosen, of_seed, strict=True)]
        check_aligned(read)
        scored.append(scores(header.kind, header.metric, read, averaged(read), header.beside))
    return tuple(scored), []


def _read(path: StoragePath, cell: CellSummary, final: TrialRecord, split: Scored) -> Predictions:
    """Read a finalist's stored predictions, and check that their score equals the recorded one.

    Raises:
        ValueError: they are missing or damaged, or have another score.
    """
    read, metric = read_predictions(path), cell.header.metric
    score = scores(cell.header.kind, metric, [read], read.predicted)[metric]
    recorded = final.dev if split == "dev" else (final.test or {}).get(metric)
    if score != recorded:
        raise ValueError(
            f"{path} gives {split} {score!r}, but the record of trial {final.id} has {recorded!r}; restore one of them."
        )
    return read
