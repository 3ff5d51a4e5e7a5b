"""write_queue: whatever fails, each write is done once, and those of a run in their order."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import EpochRecord, TrialRecord
from meltpoint.sweeps.search.cell_progress import Proposal
from meltpoint.sweeps.specification.tracking_uri import default_uri
from meltpoint.sweeps.tracking import tracker as tracking
from meltpoint.sweeps.tracking.write_queue import Job, WriteQueue

TRIALS = ("a", "b", "c")


def epoch(number: int) -> EpochRecord:
    return EpochRecord(
        epoch=number, phase="train", step=number, train_loss=1.0, dev={"accuracy": 0.5}, train_seconds=1.0,
        dev_seconds=0.5, learning_rate=1e-3, finished_at=float(number),
    )  # fmt: skip


@dataclass
class Model:
    """A queue, what was put into it, and what its writer did."""

    queue: WriteQueue = field(default_factory=WriteQueue)
    told: dict[str, list[object]] = field(default_factory=lambda: {trial: [] for trial in TRIALS})
    written: dict[str, list[object]] = field(default_factory=lambda: {trial: [] for trial in TRIALS})
    done: list[Job] = field(default_factory=list)
    count: int = 0

    def next(self) -> int:
        self.count += 1
        return self.count

    def tell(self, word: str, trial: str) -> None:
        """One call of the driver, for which a trial that ended has no epochs and no end before it begins again."""
        told = self.told[trial]
        if word in ("epoch", "end") and told[-1:] == ["end"]:
            self.tell("begin", trial)
        number = self.next()
        match word:
            case "epoch":
                self.queue.note(trial, epoch(number))
                told.append(number)
            case "end":
                self.queue.note_end(ended(trial, [one for one in told if isinstance(one, int)]))
                told.append("end")
            case _:
                self.queue.put(Job(trial, action=lambda runs: runs.marks.append(f"{word} {number}")), word == "begin")
                told.append(f"{word} {number}")

    def write(self, succeeds: bool) -> None:
        """One try of the writer."""
        if not self.queue.trials():
            return
        job = self.queue.take()
        assert job is not None
        if succeeds:
            runs = Runs()
            job.write(runs)  # type: ignore[arg-type]
            self.written[job.trial] += runs.marks
            self.done.append(job)
            self.queue.done(job)


def ended(trial: str, epochs: list[int]) -> TrialRecord:
    """The record of a trial with these epochs."""
    return TrialRecord(
        id=trial, number=0, encoder="tiny", mode="fine_tuning", task="reviews", role="search", seed=0, head="linear",
        setting={}, metric="accuracy", status="finished", dev=0.5, epochs=[epoch(number) for number in epochs],
        data_fingerprint="d", code_version="c", started_at=1.7e9, seconds=1.0,
    )  # fmt: skip


class Runs:
    """Takes what a job writes."""

    def __init__(self) -> None:
        self.marks: list[object] = []

    def write(self, trial: str, epochs: list[EpochRecord], record: TrialRecord | None) -> None:
        """A trial's updates."""
        self.marks += [one.epoch for one in epochs] + ["end"] * (record is not None)


CALLS = st.tuples(st.sampled_from(["begin", "epoch", "epoch", "end", "abandon"]), st.sampled_from(TRIALS))


@settings(max_examples=300, deadline=None)
@given(st.lists(CALLS | st.booleans(), max_size=40))
def test_any_mixture_of_failures_and_successes_writes_each_thing_once_and_each_trials_in_order(steps):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meltpoint.sweeps.tracking.write_queue.GATHER_SECONDS", 0.0)
        model = Model()
        for step in steps:
            if isinstance(step, bool):
                model.write(succeeds=step)
            else:
                model.tell(*step)
        while model.queue.trials():
            model.write(succeeds=True)
    assert model.written == model.told
    assert len({id(job) for job in model.done}) == len(model.done)
    assert model.queue.wait_until_empty(lambda: 0.0)


def test_a_trial_that_begins_is_written_before_others_that_were_queued_earlier():
    queue = WriteQueue()
    queue.note("a", epoch(1))
    queue.put(Job("b", action=lambda runs: None), early=True)
    assert queue.take().trial == "b"


def test_what_comes_while_a_job_fails_goes_out_together_behind_it():
    queue = WriteQueue()
    queue.note("a", epoch(1))
    queue._waiting = 1  # as if somebody waited, so that nothing is collected for half a second
    first = queue.take()
    for number in (2, 3, 4):
        queue.note("a", epoch(number))
    assert queue.take() is first
    assert [one.epoch for one in first.epochs] == [1]
    queue.done(first)
    assert [one.epoch for one in queue.take().epochs] == [2, 3, 4]


def test_a_pause_holds_jobs_back_until_somebody_waits_for_them():
    queue = WriteQueue()
    queue.put(Job(action=lambda runs: None))
    queue.pause(600.0)
    taken: list[Job | None] = []
    writer = threading.Thread(target=lambda: taken.append(queue.take()), daemon=True)
    writer.start()
    writer.join(0.1)
    assert not taken
    deadline = time.monotonic() + 0.1
    assert not queue.wait_until_empty(lambda: deadline)
    writer.join(20)
    assert taken


def test_waiting_ends_at_its_deadline_which_may_move():
    queue = WriteQueue()
    queue.note("a", epoch(1))
    began = time.monotonic()
    deadlines = iter([began + 0.05, began + 0.15, began + 0.15])
    assert not queue.wait_until_empty(lambda: next(deadlines, 0.0))
    assert 0.05 <= time.monotonic() - began < 5.0


def test_the_epochs_of_a_trial_that_ended_wait_on_the_disk_and_not_in_memory(tmp_path):
    ledger, queue = Ledger(tmp_path), WriteQueue()
    ledger.create()
    record = ended("a", [1, 2, 3])
    ledger.write(record)
    light = ledger.light(record)
    for one in record.epochs:
        queue.note("a", one)
    queue.note_end(light)
    queue._waiting = 1
    job, runs = queue.take(), Runs()
    assert job.epochs == []
    job.write(runs)
    assert runs.marks == [1, 2, 3, "end"]
    (ledger.trials / "a.json").unlink()
    with pytest.raises(FileNotFoundError):
        _ = light.epochs  # it was not filled: the planner keeps it


def test_a_record_that_mlflow_lacks_is_written_with_all_its_epochs():
    queue, runs = WriteQueue(), Runs()
    queue.note_end(ended("a", [1, 2]), epochs=2)
    queue._waiting = 1
    queue.take().write(runs)
    assert runs.marks == [1, 2, "end"]


def test_a_record_whose_file_is_gone_holds_no_other_trial_up_and_is_not_called_an_outage(
    tmp_path, cells, proposal, make_record, monkeypatch
):
    monkeypatch.setattr(tracking, "PAUSES", (0.05, 0.2))
    said: list[str] = []
    ledger = Ledger(tmp_path / "gone")
    ledger.create()
    tracker = tracking.Tracker("gone", default_uri(tmp_path), tmp_path, said.append)
    tracker.open(cells, "{}")
    other = Proposal("b" * 16, 1, "search", cells[0], proposal.setting, 0)
    for trial in (proposal, other):
        record = make_record(trial)
        ledger.write(record)
        tracker.begin(trial, "code", 1.7e9)
        tracker.end(ledger.light(record))
    (ledger.trials / f"{proposal.id}.json").unlink()
    tracker.flush()
    assert list(tracker.refused) == [proposal.id]
    assert "No such file" in tracker.refused[proposal.id]
    assert f"{proposal.id}.json" in tracker.refused[proposal.id]
    assert not [line for line in said if "the sweep goes on" in line], "MLflow was there all the time"
    run = tracker.runs.client.get_run(tracker.run_of(other.id))
    assert run.info.status == "FINISHED"
