"""A sweep's search as a journal of Optuna, one study a cell, which optuna-dashboard opens."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from meltpoint.reports.statistics.importance import space_of
from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.tasks.core.metrics import is_lower_better

if TYPE_CHECKING:  # slow to import
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

FACTS = ("id", "suggested_by", "seed", "best_epoch", "seconds", "mlflow_run_id", "error")
"""Fields of a record that become a trial's user attributes, where they are known."""


def write_journal(summary: SweepSummary, path: Path) -> int:
    """Write the search trials of every cell to a new journal; the file is there whole, or not at all.

    A finished trial is complete with its dev score, one that was stopped early is pruned with a value an epoch, and one
    that failed by its setting has failed. Lost trials are left out, since they say nothing about their setting.

    Returns:
        the number of trials.

    Raises:
        ValueError: the file exists, or a cell's space or setting is of another version.
    """
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    if path.exists():
        raise ValueError(f"{path} exists; name a new file, or remove it.")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        beside = Path(folder) / path.name
        storage = JournalStorage(JournalFileBackend(str(beside)))
        count = sum(_add_study(cell, summary, storage) for cell in summary.cells)
        beside.rename(path)
    return count


def _add_study(cell: CellSummary, summary: SweepSummary, storage: BaseStorage) -> int:
    import optuna

    head, space = cell.header, space_of(cell.header)
    direction: Literal["minimize", "maximize"] = "minimize" if is_lower_better(head.metric) else "maximize"
    study = optuna.create_study(storage=storage, study_name=cell_name(*head.key), direction=direction)
    facts = {"sweep": summary.name, "metric": f"dev {head.metric}", "head": head.head, "data": head.data_fingerprint}
    for name, value in facts.items():
        study.set_user_attr(name, value)
    trials = [_trial(record, space) for record in cell.search if not record.is_lost]
    study.add_trials(trials)
    return len(trials)


def _trial(record: TrialRecord, space: Space) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    states = {"finished": TrialState.COMPLETE, "stopped": TrialState.PRUNED, "failed": TrialState.FAIL}
    params, distributions = space.from_params(record.setting)
    return create_trial(
        state=states[record.status], value=record.dev if record.status == "finished" else None, params=params,
        distributions=distributions, user_attrs=_facts(record),
        intermediate_values={epoch.epoch: epoch.dev[record.metric] for epoch in record.epochs},
    )  # fmt: skip


def _facts(record: TrialRecord) -> dict[str, Any]:
    known = {name: getattr(record, name) for name in FACTS}
    return {name: value for name, value in known.items() if value is not None}
