"""The cost of a cell, with unknown parts said as unknown, and the estimate of the remaining time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.sweeps.driver.cell_endings import cost_figures
from meltpoint.sweeps.ledger.records import HardwareRecord, ResourceUse, TrialRecord
from meltpoint.sweeps.results.cost import CellCost, CellWork, cell_cost, time_left, trials_at_a_time
from meltpoint.sweeps.tracking.run_contents import ending
from meltpoint.tests.sweeps.planning import epoch_of


def hardware(share: float) -> HardwareRecord:
    device = "cuda:0" if share else "cpu"
    return HardwareRecord(device=device, name="x", threads=1, gpu_share=share, precision="bf16", host="here")


def record(number: int, share: float = 0.0, epochs: int = 2, **fields: object) -> TrialRecord:
    """A trial of one minute, whose epochs take 2 s each."""
    facts: dict[str, object] = {
        "id": f"t{number}", "number": number, "encoder": "e", "mode": "fine_tuning", "task": "t", "role": "search",
        "seed": 0, "head": "linear", "setting": {}, "metric": "accuracy", "status": "finished", "dev": 0.5,
        "epochs": [epoch_of(n, train_seconds=1.5) for n in range(1, epochs + 1)], "best_epoch": 1,
        "data_fingerprint": "d", "code_version": "c", "started_at": 100.0 * number, "seconds": 60.0,
        "hardware": hardware(share),
    }  # fmt: skip
    return TrialRecord.model_validate(facts | fields)


def test_search_and_finals_add_up_and_a_shared_run_is_counted_once() -> None:
    search = [record(0), record(1)]
    shared = record(2, role="final", answered_by="t1", started_at=100.0)
    final = record(3, role="final", seed=1)
    default = record(4, role="default", seed=1)
    cost = cell_cost([*search, shared, final, default], search[1], [shared, final])
    assert (cost.trials, cost.search_seconds, cost.final_seconds, cost.seconds) == (4, 120.0, 120.0, 240.0)
    assert cost.gpu_hours == 0.0
    assert cost.seconds_of_a_final == 4.0


def test_gpu_hours_are_seconds_by_share_and_trials_side_by_side_share_them() -> None:
    together = [
        record(n, share=0.5, started_at=7.0, seconds=s, trained_together=2) for n, s in ((0, 3600.0), (1, 1800.0))
    ]
    alone = record(2, share=1.0, started_at=9000.0, seconds=900.0, seconds_before=900.0)
    unknown = record(3, epochs=0, hardware=None, status="failed", dev=None, best_epoch=None, error="x")
    assert cell_cost([*together, alone, unknown], alone, []).gpu_hours == pytest.approx(0.5 + 0.5)


def test_peak_is_the_largest_and_size_the_best_settings() -> None:
    small = record(0, peak_memory_bytes=10, peak_memory_kind="process", trained_parameters=3)
    large = record(1, peak_memory_bytes=30, peak_memory_kind="process_lifetime", trained_parameters=5)
    cost = cell_cost([small, large, record(2)], small, [])
    assert (cost.peak_memory_bytes, cost.trained_parameters) == (30, 3)
    assert cost.peak_memory_kinds == ("process", "process_lifetime")


def test_one_run_is_the_median_of_the_finals_and_the_search_trials_before_there_are_any() -> None:
    best = record(0, epochs=1)
    assert cell_cost([best], best, []).seconds_of_a_final == 2.0
    finals = [record(n, role="final", seed=n, epochs=n) for n in (2, 3, 9)]
    assert cell_cost([best, *finals], best, finals).seconds_of_a_final == 6.0
    assert set(EpochResult.model_fields) >= {"train_seconds", "dev_seconds"}


def test_a_record_of_an_older_version_reads_and_costs_what_it_tells() -> None:
    old = record(0).model_dump(exclude={"trained_parameters", *ResourceUse.model_fields})
    read = TrialRecord.model_validate(old)
    cost = cell_cost([read], read, [])
    assert (cost.search_seconds, cost.peak_memory_bytes) == (60.0, None)


def test_mlflow_gets_what_is_known_of_a_trial_and_of_a_cell() -> None:
    told = record(0, peak_memory_bytes=2 * 10**9, trained_parameters=7)
    metrics = {metric.key: metric.value for metric in ending(told)[0]}
    assert {"peak_memory_gb": 2.0, "trained_parameters": 7.0}.items() <= metrics.items()
    assert not {"peak_memory_gb", "trained_parameters"} & {m.key for m in ending(record(1))[0]}
    figures = cost_figures(cell_cost([told], told, []))
    assert figures == {
        "gpu_hours": 0.0, "trained_parameters": 7.0, "seconds_of_a_final": 4.0, "peak_memory_gb": 2.0,
    }  # fmt: skip
    assert cost_figures(CellCost()) == {"gpu_hours": 0.0}


def timed_record(number: int, started_at: float, seconds: float, answered_by: str | None = None) -> TrialRecord:
    return record(number, started_at=started_at, seconds=seconds, answered_by=answered_by)


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
    side_by_side = [timed_record(0, 100.0, 10.0), timed_record(1, 100.5, 9.5)]
    after_a_night = [
        timed_record(2, 9000.0, 10.0),
        timed_record(3, 9000.5, 9.5),
        timed_record(4, 9000.0, 10.0, answered_by="x"),
    ]
    assert trials_at_a_time([*side_by_side, *after_a_night]) == pytest.approx(1.95)
    assert trials_at_a_time([]) == 1.0
