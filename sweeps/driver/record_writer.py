"""Records into the ledger, each with its MLflow run's id as soon as MLflow has said it."""

from __future__ import annotations

from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.tracking.tracker import Tracker


class RecordWriter:
    """Writes a trial's record at once, and again when its run is known.

    Attributes:
        without_run: the records written before MLflow had said which run is their trial's, by trial.
    """

    def __init__(self, ledger: Ledger, tracker: Tracker) -> None:
        self.ledger, self.tracker = ledger, tracker
        self.without_run: dict[str, TrialRecord] = {}

    def write(self, record: TrialRecord) -> None:
        """Write a record with its MLflow run's id, or without one while MLflow has not said it."""
        run = self.tracker.run_of(record.id) or record.mlflow_run_id
        record = record.model_copy(update={"mlflow_run_id": run})
        if run is None:
            self.without_run[record.id] = record
        else:
            self.without_run.pop(record.id, None)
        self.ledger.write(record)

    def add_runs(self) -> None:
        """Write the records again whose runs are known now; what is left at the sweep's end is `run.note_runs`' part.

        Trials begin in MLflow in their order, so while the oldest of these has no run, the others will not have one.
        """
        while (record := next(iter(self.without_run.values()), None)) and self.tracker.run_of(record.id):
            self.write(record)
