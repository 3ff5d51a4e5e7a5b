"""Writing of records to the ledger, deferred while the disk is full; removal of damaged ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from meltpoint.adapters.features.reading import free_bytes
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.search.closing import opened_trials, read_rounds
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.tracking.tracker import Tracker
from meltpoint.sweeps.worker.outcome import is_full_disk

LOOK_SECONDS = 2.0
AGAIN_SECONDS = 60.0
"""The longest wait of a trial that found no disk space: the disk's free space does not show a quota, and a trial that
finds none again ends before it trains."""
GROWTH_BYTES = 2**24
"""Growth that counts as freed space, more than a deleted temporary file."""


class DiskRoom:
    """The driver's view of free disk space, learned from failed writes.

    Attributes:
        is_short: whether no new trial may begin.

    Args:
        folder: the sweep's folder.
        say: receives one line when the disk is full, and one when it has space again.
    """

    def __init__(self, folder: Path, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self.say, self.clock = folder, say, clock
        self.is_short = self._has_said = self._by_trial = False
        self._since = self._looked = 0.0
        self._free = 0

    def note_none(self, why: str, by_trial: bool = False) -> None:
        """Note that a write found no space, or a trial, which needs more."""
        self.is_short, self._since, self._free = True, self.clock(), free_bytes(self.folder)
        self._by_trial = self._by_trial or by_trial
        self._looked = self._since
        if not self._has_said:
            self._has_said = True
            self.say(f"{why} ({self.folder}): no new trial begins until space is free; nothing is lost.")

    def note_some(self, by_trial: bool = False) -> None:
        """Note that a write or a trial found space."""
        if self._has_said and (by_trial or not self._by_trial):
            self.is_short = self._has_said = self._by_trial = False
            self.say("The disk has space again: the sweep continues.")

    def is_due(self) -> bool:
        """True if failed writes are due for a retry, every two seconds."""
        if self.clock() - self._looked < LOOK_SECONDS:
            return False
        self._looked = self.clock()
        return True

    def try_again(self) -> bool:
        """True if a trial may be retried: free space has grown, or may have."""
        grown = free_bytes(self.folder) >= self._free + GROWTH_BYTES
        self.is_short = not grown and self.clock() - self._since < AGAIN_SECONDS
        return not self.is_short


def whole_records(
    ledger: Ledger, spec: SweepSpec, codes: Sequence[str], cells: list[OpenCell], say: Callable[[str], None]
) -> list[TrialRecord]:  # fmt: skip
    """The ledger's records, after damaged ones that decided no scored setting are set aside.

    Args:
        codes: the code versions whose records count.
        say: receives a line for each record that is set aside.

    Raises:
        ValueError: a damaged record may have decided a setting whose test split was opened; the message names the
            record.
    """
    try:
        return ledger.records()
    except ValueError:
        readable, damaged = ledger.readable_records()
        for line in ledger.set_aside(_chose_nothing(ledger, spec, codes, cells, readable, damaged)):
            say(line)
        return ledger.records()


def _chose_nothing(
    ledger: Ledger, spec: SweepSpec, codes: Sequence[str], cells: list[OpenCell], readable: list[TrialRecord],
    damaged: Sequence[str],
) -> set[str]:  # fmt: skip
    """The ids of damaged records that decided no setting whose test split was opened.

    All of them, if no test split was opened or if every cell with an opened split has all its search trials.
    Otherwise finals only: scored ones and due ones.
    """
    opened = opened_trials(ledger)
    planner = Planner(spec, cells, readable, codes=codes, opened=opened, rounds=read_rounds(ledger))
    closed = [progress for progress in planner.cells.values() if progress.cut]
    if not opened or all(len(progress.search) >= progress.target for progress in closed):
        return set(damaged)
    finals = [
        trial.id for progress in planner.cells.values()
        for trial in (*planner.missing_finals(progress), *planner.missing_defaults(progress))
    ]  # fmt: skip
    return set(damaged) & {*opened, *finals}


class RecordWriter:
    """Writes a trial's record at once, again when its MLflow run is known, and later if the disk is full.

    Attributes:
        without_run: the records written before MLflow reported their trial's run, by trial.
        unwritten: the records that the disk had no space for, by trial; the driver keeps them in memory.
    """

    def __init__(self, ledger: Ledger, tracker: Tracker, room: DiskRoom) -> None:
        self.ledger, self.tracker, self.room = ledger, tracker, room
        self.without_run: dict[str, TrialRecord] = {}
        self.unwritten: dict[str, TrialRecord] = {}

    def write(self, record: TrialRecord) -> TrialRecord:
        """Write a record with its MLflow run's id, or without one until MLflow reports it.

        Returns:
            The record with that id.
        """
        run = self.tracker.run_of(record.id) or record.mlflow_run_id
        record = record.model_copy(update={"mlflow_run_id": run})
        if run is None:
            self.without_run[record.id] = record
        else:
            self.without_run.pop(record.id, None)
        self._write(record)
        return record

    def _write(self, record: TrialRecord) -> bool:
        """Write a record; False if the disk is full."""
        try:
            self.ledger.write(record)
        except OSError as error:
            if not is_full_disk(error):
                raise
            self.unwritten[record.id] = record
            self.room.note_none(f"No disk space for a trial's record: {error.strerror}")
            return False
        self.unwritten.pop(record.id, None)
        if not self.unwritten:
            self.room.note_some()
        return True

    def start(self, order: dict[str, object]) -> bool:
        """Note that a trial has begun; False if the disk is full."""
        try:
            self.ledger.start(order)
        except OSError as error:
            if not is_full_disk(error):
                raise
            self.room.note_none(f"No disk space for the note of a trial's start: {error.strerror}")
            return False
        self.room.note_some()
        return True

    def write_waiting(self) -> bool:
        """Write the records that found no space, if a retry is due; True if none is left."""
        if self.unwritten and self.room.is_due():
            all(self._write(record) for record in list(self.unwritten.values()))
        return not self.unwritten

    def has_room(self) -> bool:
        """True if a new trial may begin, as far as is known."""
        if not self.room.is_short:
            return True
        return self.write_waiting() and (not self.room.is_short or self.room.try_again())

    def add_runs(self) -> None:
        """Rewrite the records whose MLflow runs are known now; `run.note_runs` writes the rest at the sweep's end.

        Trials begin in MLflow in order, so while the oldest of these has no run, the others have none either.
        """
        while (record := next(iter(self.without_run.values()), None)) and self.tracker.run_of(record.id):
            self.write(record)
