"""Worker utilisation of hand-made ledgers; and the driver's overhead from a few idle trials."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.benchmarks.driver_overhead import slope
from meltpoint.benchmarks.worker_utilisation import longest_gap, most_together, utilisation
from meltpoint.sweeps.ledger.records import EpochRecord, TrialRecord

SOON = 2.0**-60  # trials of one work order start at the same time; these belong to separate workers


def record(started: float, seconds: float, computed: float = 0.0, **changes: object) -> TrialRecord:
    epoch = EpochRecord(
        epoch=1, phase="train", step=1, train_loss=1.0, dev={"accuracy": 0.5}, train_seconds=computed,
        dev_seconds=0.0, learning_rate=1e-3, finished_at=started + seconds,
    )  # fmt: skip
    facts = {
        "id": str(started), "number": 0, "encoder": "e", "mode": "m", "task": "t", "head": "h", "role": "search",
        "seed": 0, "setting": {}, "status": "finished", "metric": "accuracy", "epochs": [epoch], "dev": 0.5,
        "data_fingerprint": "", "code_version": "", "started_at": started, "seconds": seconds,
    }  # fmt: skip
    return TrialRecord.model_validate(facts | changes)


def test_workers_that_always_have_a_trial_are_fully_busy():
    result = utilisation([record(0, 4), record(SOON, 6), record(4, 6), record(6, 4)])
    assert (result.slots, result.wall_seconds, result.busy_share) == (2, 10, 1.0)
    assert result.tail_seconds == 0


def test_trials_that_one_worker_took_up_together_fill_one_slot():
    together = [record(0, 4), record(0, 6, trained_together=2), record(0, 5, trained_together=2)]
    result = utilisation([*together, record(SOON, 6)])
    assert (result.trials, result.slots) == (4, 2)
    assert result.busy_share == pytest.approx(1.0)


def test_a_gap_and_a_dry_slot_cost_their_share():
    result = utilisation([record(0, 4, computed=2), record(SOON, 2), record(5, 5)], slots=2)
    assert result.busy_share == (4 + 2 + 5) / 20
    assert result.computing_share == 2 / 20
    assert result.longest_idle_seconds == 1
    assert result.tail_seconds == 6


def test_a_final_that_the_search_answered_ran_no_second_time():
    answered = record(0, 4, role="final", answered_by="0")
    assert utilisation([record(0, 4), answered]).trials == 1


def test_an_empty_ledger_is_an_error_with_a_remedy():
    with pytest.raises(ValueError, match="run it first"):
        utilisation([])


def test_fewer_slots_than_ran_together_are_refused():
    with pytest.raises(ValueError, match="2 trials ran together"):
        utilisation([record(0, 4), record(1, 4)], slots=1)


SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=12)


@given(SPANS)
def test_spans_are_counted_as_brute_force_counts_them(starts_and_lengths):
    spans = sorted((float(start), float(start + length)) for start, length in starts_and_lengths)
    seconds = range(int(spans[0][0]), int(max(end for _, end in spans)))
    together = [sum(start <= second < end for start, end in spans) for second in seconds]
    assert most_together(spans) == max(together)
    idle = "".join("." if count == 0 else "x" for count in together)
    assert longest_gap(spans) == max(len(stretch) for stretch in idle.split("x"))


@given(st.integers(-100, 100), st.integers(-100, 100))
def test_the_slope_of_a_straight_line_is_its_own(rise, offset):
    assert slope([(float(x), float(rise * x + offset)) for x in range(5)]) == pytest.approx(rise)


@pytest.mark.slow
def test_idle_trials_have_their_cost_and_their_records(toy_encoder):
    words = ["-m", "meltpoint.benchmarks.driver_overhead", "--trials", "20", "--encoder", toy_encoder, "--json"]
    done = subprocess.run([sys.executable, *words], capture_output=True, encoding="utf-8", timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["trials"] == 21  # and one final
    assert 0 < result["own_ms"] < result["wall_ms"]
    assert result["driver_ms"] > 0
