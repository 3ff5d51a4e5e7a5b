"""unwritten: whatever fails, MLflow ends with the last state of each trial and all its epochs."""

from __future__ import annotations

import threading
import time
from unittest.mock import Mock

from hypothesis import given, settings
from hypothesis import strategies as st

from meltpoint.sweeps.ledger.records import Trial
from meltpoint.sweeps.tracking.unwritten import Unwritten

BEGAN = 1.7e9
"""When the records of `make_record` began."""
TRIALS = tuple(
    Trial(id=word * 16, number=0, encoder="e", mode="m", task="t", role="search", seed=0, setting={}) for word in "abc"
)


class Store:
    """Keeps of each trial what the writes of `Unwritten` say; the same write may come any number of times."""

    def __init__(self) -> None:
        self.state: dict[str, str] = {}
        self.epochs: dict[str, set[int]] = {trial.id: set() for trial in TRIALS}

    def begin(self, proposal: Trial, code: str, started_at: float) -> None:
        """A run is created or reopened."""
        self.state[proposal.id] = "running"

    def write(self, trial: str, epochs: list, record: object) -> None:
        """A trial's epochs, and perhaps its end."""
        assert trial in self.state, "it has no run yet"
        self.epochs[trial] |= {epoch.step for epoch in epochs}
        if record is not None:
            self.state[trial] = "ended"

    def abandon(self, trial: str, at: float) -> None:
        """A trial is interrupted."""
        self.state[trial] = "interrupted"


CALLS = st.tuples(st.sampled_from(["begin", "epoch", "epoch", "end", "abandon"]), st.sampled_from(TRIALS))


@settings(max_examples=300, deadline=None)
@given(st.lists(CALLS | st.sampled_from(["succeeds", "fails", "succeeds without an answer"]), max_size=40))
def test_any_mixture_of_failures_and_lost_answers_ends_with_the_last_state_of_each_trial_and_all_its_epochs(steps):
    unwritten, store = Unwritten(), Store()
    unwritten._waiting = 1  # as if somebody waited, so that nothing is collected for half a second
    state: dict[str, str] = {}
    epochs: dict[str, dict[int, object]] = {trial.id: {} for trial in TRIALS}

    def write(how: str) -> None:
        if unwritten.trials() and (job := unwritten.take()) is not None:
            if how != "fails":
                job.write(store)
            if how == "succeeds":
                unwritten.done()

    def tell(word: str, trial: Trial) -> None:
        if word != "begin" and state.get(trial.id) != "running":
            tell("begin", trial)
        match word:
            case "begin":
                if state.get(trial.id) == "ended":  # the epochs of the next attempt count
                    epochs[trial.id].clear()
                unwritten.begin(trial, "code", BEGAN)
                state[trial.id] = "running"
            case "epoch":
                epoch = Mock(step=len(epochs[trial.id]) + 1)
                epochs[trial.id][epoch.step] = epoch
                unwritten.epoch(trial.id, epoch)
            case "end":
                record = Mock(id=trial.id, epochs=list(epochs[trial.id].values()))
                unwritten.end(record)
                state[trial.id] = "ended"
            case "abandon":
                unwritten.abandon(trial.id, BEGAN)
                state[trial.id] = "interrupted"

    for step in steps:
        if isinstance(step, str):
            write(step)
        else:
            tell(*step)
    while unwritten.trials():
        write("succeeds")
    assert store.state == state
    assert all(set(told) <= store.epochs[trial] for trial, told in epochs.items())
    assert unwritten.wait_until_empty(lambda: 0.0)


def test_a_run_is_begun_before_updates_of_other_trials(proposal, make_record):
    unwritten = Unwritten()
    unwritten.epoch("a", make_record(proposal).epochs[0])
    unwritten.begin(proposal, "code", BEGAN)
    assert unwritten.take().trial == proposal.id


def test_a_pause_holds_jobs_back_until_somebody_waits_for_them():
    unwritten, taken = Unwritten(), []
    unwritten.put(lambda runs: None)
    unwritten.pause(600.0)
    writer = threading.Thread(target=lambda: taken.append(unwritten.take()), daemon=True)
    writer.start()
    writer.join(0.1)
    assert not taken
    began = time.monotonic()
    deadlines = iter([began + 0.05, began + 0.15, began + 0.15])
    assert not unwritten.wait_until_empty(lambda: next(deadlines, 0.0)), "its deadline may move"
    assert 0.05 <= time.monotonic() - began < 5.0
    writer.join(20)
    assert taken
