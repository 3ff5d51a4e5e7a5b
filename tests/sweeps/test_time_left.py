"""The estimate of a sweep's remaining time, against made-up courses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.sweeps.ledger.records import HardwareRecord, TrialRecord
from meltpoint.sweeps.results.cost import CellWork, time_left, trials_at_a_time


def record(number: int, started_at: float, seconds: float, answered_by: str | None = None) -> TrialRecord:
    return TrialRecord(
        id=f"{number:016x}", number=number, encoder="e", mode="fine_tuning", task="t", head="linear", role="search",
        seed=0, setting={}, metric="accuracy", status="finished", dev=0.5, started_at=started_at, seconds=seconds,
        answered_by=answered_by, data_fingerprint="d", code_version="c",
        hardware=HardwareRecord(device="cpu", name="", threads=1, gpu_share=0.0, precision="fp32", host="here"),
    )  # fmt: skip


@given(st.integers(1, 50), st.floats(0.1, 1e4), st.integers(1, 50), st.integers(1, 8))
def test_equal_trials_take_their_number_times_their_length_over_the_places(
    ended: int, seconds: float, left: int, places: int
) -> None:
    found = time_left([CellWork(ended, ended * seconds, left)], places)
    assert found is not None
    assert found.seconds == pytest.approx(left * seconds / places)
    assert found.trials == ended


def test_a_cell_of_which_none_has_ended_is_taken_for_one_like_the_others() -> None:
    found = time_left([CellWork(2, 20.0, 1), CellWork(1, 40.0, 0), CellWork(0, 0.0, 3)], 1)
    assert found is not None
    assert found.seconds == pytest.approx(10 + 3 * 20)


def test_there_is_no_estimate_before_a_trial_has_ended_and_where_none_is_left() -> None:
    assert time_left([CellWork(0, 0.0, 3)], 1) is None
    assert time_left([CellWork(3, 9.0, 0)], 1) is None


def test_trials_at_a_time_are_counted_while_any_ran() -> None:
    side_by_side = [record(0, 100.0, 10.0), record(1, 100.5, 9.5)]
    after_a_night = [record(2, 9000.0, 10.0), record(3, 9000.5, 9.5), record(4, 9000.0, 10.0, answered_by="x")]
    assert trials_at_a_time([*side_by_side, *after_a_night]) == pytest.approx(1.95)
    assert trials_at_a_time([]) == 1.0
