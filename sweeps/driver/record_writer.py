"""Records and notes into the ledger: a record with its MLflow run's id, and once more if the disk had no room."""

from __future__ import annotations

from meltpoint.sweeps.driver.disk_room import DiskRoom
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.tracking.tracker import Tracker
from meltpoint.sweeps.worker.outcome import is_full_disk


class RecordWriter:
    """Writes a trial's record at once, again when its run is known, and later where the disk has no room.

    Attributes:
        without_run: the records written before MLflow had said which run is their trial's, by trial.
        unwritten: the records that the disk had no room for, by trial; the driver goes on with them.
    """

    def __init__(self, ledger: Ledger, tracker: Tracker, room: DiskRoom) -> None:
        self.ledger, self.tracker, self.room = ledger, tracker, room
        self.without_run: dict[str, TrialRecord] = {}
        self.unwritten: dict[str, TrialRecord] = {}

    def write(self, record: TrialRecord) -> TrialRecord:
        """Write a record with its MLflow run's id, or without one while MLflow has not said it.

        Returns:
            It as it is to be kept in memory: light once it is on the disk.
        """
        run = self.tracker.run_of(record.id) or record.mlflow_run_id
        record = record.model_copy(update={"mlflow_run_id": run})
        if run is None:
            self.without_run[record.id] = record
        else:
            self.without_run.pop(record.id, None)
        return self.ledger.light(record) if self._write(record) else record

    def _write(self, record: TrialRecord) -> bool:
        """Write a record; False if the disk has no room."""
        try:
            self.ledger.write(record)
        except OSError as error:
            if not is_full_disk(error):
                raise
            self.unwritten[record.id] = record
            self.room.note_none(f"No room for a trial's record on the disk: {error.strerror}")
            return False
        self.unwritten.pop(record.id, None)
        if not self.unwritten:
            self.room.note_some()
        return True

    def start(self, order: dict[str, object]) -> bool:
        """Note that a trial has begun; False if the disk has no room."""
        try:
            self.ledger.start(order)
        except OSError as error:
            if not is_full_disk(error):
                raise
            self.room.note_none(f"No room for the note of a trial's start on the disk: {error.strerror}")
            return False
        self.room.note_some()
        return True

    def write_waiting(self) -> bool:
        """Write what the disk had no room for, if it is time to try again; True if nothing waits any more."""
        if self.unwritten and self.room.is_due():
            all(self._write(record) for record in list(self.unwritten.values()))
        return not self.unwritten

    def has_room(self) -> bool:
        """True if a new trial may begin, as far as is known."""
        if not self.room.is_short:
            return True
        return self.write_waiting() and (not self.room.is_short or self.room.try_again())

    def add_runs(self) -> None:
        """Write the records again whose runs are known now; what is left at the sweep's end is `run.note_runs`' part.

        Trials begin in MLflow in their order, so while the oldest of these has no run, the others will not have one.
        """
        while (record := next(iter(self.without_run.values()), None)) and self.tracker.run_of(record.id):
            self.write(record)
