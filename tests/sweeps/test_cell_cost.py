"""A cell's cost: what its trials took, what its operations say, the price in `plan`, and the time that is left."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from meltpoint.adapters import encoders, heads
from meltpoint.adapters.multiplier_table import Phase
from meltpoint.adapters.settings import complete
from meltpoint.reports.screen import data_lines
from meltpoint.sweeps.driver import plan
from meltpoint.sweeps.driver.cell_endings import cost_figures
from meltpoint.sweeps.driver.plan import SHARE_OF_PEAK, plan_sweep, price_of
from meltpoint.sweeps.driver.start import header
from meltpoint.sweeps.ledger.records import HardwareRecord, TrialRecord
from meltpoint.sweeps.results.cost import CellCost, CellWork, cell_cost, time_left, trials_at_a_time
from meltpoint.sweeps.search import cell_progress
from meltpoint.sweeps.search.cell_progress import (
    expected_epochs,
    head_weights,
    operations_of,
    planned_trials,
    searches_layers,
    work_of,
)
from meltpoint.sweeps.search.early_ends import CHECK
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell, open_cells
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.tracking.run_contents import ending
from meltpoint.tasks.core import sources
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
    assert found.seconds == pytest.approx(max(left / places, 1.0) * seconds)
    assert found.trials == ended


def test_a_cell_of_which_none_has_ended_is_taken_for_one_like_the_others() -> None:
    found = time_left([CellWork(2, 20.0, 1), CellWork(1, 40.0, 0), CellWork(0, 0.0, 3)], 1)
    assert found is not None
    assert found.seconds == pytest.approx(10 + 3 * 20)


def test_there_is_no_estimate_before_a_trial_has_ended_and_where_none_is_left() -> None:
    assert time_left([CellWork(0, 0.0, 3)], 1) is None
    assert time_left([CellWork(2, 120.0, 2)], 16).seconds == 60.0, "one trial runs on one worker"
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


TASKS = {
    "sentence_classification": "demo_sentiment",
    "pair_classification": "demo_entailment",
    "sequence_labelling": "demo_entities",
}


def cell_of(head: str, mode: str, task: str) -> OpenCell:
    [cell] = open_cells(SweepSpec(name="x", encoders=("minilm",), modes=(mode,), tasks=(task,), head=head))
    return cell


@pytest.mark.parametrize(
    ("head", "task"),
    [(head, task) for head in heads.names() for kind, task in TASKS.items() if kind in heads.get(head).kinds],
)
def test_a_head_that_is_built_without_memory_has_the_weights_of_a_real_one(head: str, task: str, minilm, monkeypatch):
    cell = cell_of(head, "fine_tuning" if head == "native" else "stack_and_finetune", task)
    setting = complete(cell.space.first(), cell.mode, cell.head)
    counted = head_weights(cell, setting)
    monkeypatch.setattr(nn.init, "orthogonal_", lambda tensor, **options: tensor)  # it takes seconds
    monkeypatch.setattr(cell_progress.torch, "device", lambda name: nullcontext())
    cell_progress._head_weights.cache_clear()
    assert counted == head_weights(cell, setting) > 0


def test_what_a_frozen_encoder_computes_once_is_shared_among_a_cells_runs(minilm):
    cell = cell_of("linear", "feature_extraction", "demo_sentiment")
    operations, runs = operations_of(cell), planned_trials(cell) + cell.seeds
    assert work_of(cell) * runs == pytest.approx(operations.once + runs * operations.trial)


@pytest.mark.parametrize(
    ("mode", "overrides", "several"),
    [
        ("probe", (), True), ("probe", ("probe.layers=depth",), True),
        ("probe", ("probe.layers=depth", "probe.depth=0.5"), False), ("feature_extraction", (), True),
        ("feature_extraction", ("feature_extraction.layers=mix",), False), ("fine_tuning", (), False),
    ],
)  # fmt: skip
def test_one_pass_keeps_all_layers_only_where_trials_read_several(
    mode: str, overrides: tuple[str, ...], several: bool, minilm
) -> None:
    spec = SweepSpec(name="x", encoders=("minilm",), modes=(mode,), tasks=("demo_sentiment",), overrides=overrides)
    [cell] = open_cells(spec)
    assert searches_layers(cell) == several


def test_top_layers_cost_their_share_of_fine_tuning(minilm):
    tuned, top = (operations_of(cell_of("native", mode, "demo_entailment")) for mode in ("fine_tuning", "top_k"))
    assert (tuned.once, top.once > 0) == (0.0, True)
    assert top.trial < 0.4 * tuned.trial, "two of six layers, for as many epochs"


def test_the_sweeps_file_names_the_work_of_a_cell_as_the_driver_counts_it(minilm):
    spec = SweepSpec(
        name="x", encoders=("minilm",), modes=("feature_extraction",), tasks=("demo_entailment",), trials=4, seeds=2
    )
    [cell] = open_cells(spec)
    [progress] = Planner(spec, [cell], []).cells.values()
    assert header(cell).work == progress.work > 0


RATE = 1e9 / SHARE_OF_PEAK
MODES = ("feature_extraction", "fine_tuning", "stack_and_finetune")


def spec_of(head: str, trials: int = 4, modes: tuple[str, ...] = MODES) -> SweepSpec:
    return SweepSpec(
        name="priced", encoders=("minilm",), modes=modes, tasks=("demo_sentiment",), head=head, trials=trials, seeds=2
    )


def opened(head: str) -> dict[str, OpenCell]:
    return {cell.mode: cell for cell in open_cells(spec_of(head))}


@pytest.fixture
def linear(minilm) -> dict[str, OpenCell]:
    return opened("linear")


def encoding_seconds(cell: OpenCell, examples: int) -> float:
    """Of one pass of the encoder over so many examples."""
    return 2.0 * encoders.weights_without_embeddings(cell.reference) * cell.length.mean * examples / 1e9


def test_a_frozen_encoder_is_paid_for_once_and_its_linear_head_next_to_nothing(linear: dict[str, OpenCell]):
    cell = linear["feature_extraction"]
    price = price_of(cell, RATE)
    assert price.once == pytest.approx(encoding_seconds(cell, cell.train_examples + cell.dev_examples))
    assert 0 < price.trial < 0.01 * price.once


def test_an_encoder_that_trains_costs_three_passes_an_epoch_and_one_for_dev(linear: dict[str, OpenCell]):
    cell = linear["fine_tuning"]
    epochs = int(complete(cell.space.first(), cell.mode, cell.head)["epochs"])
    price = price_of(cell, RATE)
    assert price.once == 0.0
    passes = epochs * (3 * cell.train_examples + cell.dev_examples)
    assert price.trial == pytest.approx(encoding_seconds(cell, passes), rel=0.01), "the head's 768 weights are nothing"


@pytest.mark.parametrize(("epochs", "patience", "expected"), [(75, 5, 15), (75, 0, 75), (8, 5, 8)])
def test_a_trial_with_patience_is_expected_to_end_before_its_cap(epochs: int, patience: int, expected: int):
    phase = Phase("train", epochs, 1e-3, encoder_trains=False)
    assert expected_epochs(phase, {"patience": patience}) == expected


def test_stacking_first_pays_for_both(linear: dict[str, OpenCell]):
    both, frozen = price_of(linear["stack_and_finetune"], RATE), price_of(linear["feature_extraction"], RATE)
    assert both.once == pytest.approx(frozen.once)
    assert both.trial > 10 * frozen.trial


def test_a_head_that_reads_every_piece_costs_what_its_weights_do(minilm, linear: dict[str, OpenCell]):
    large = opened("bilstm")["feature_extraction"]
    setting = complete(large.space.first(), large.mode, large.head)
    few, many = head_weights(linear["feature_extraction"], setting), head_weights(large, setting)
    assert few == 384 * large.task.outputs + large.task.outputs
    assert many > 100 * few
    assert price_of(large, RATE).trial > 1000 * price_of(linear["feature_extraction"], RATE).trial


@pytest.mark.parametrize(
    ("state", "said"), [("absent", "there is no test split"), ("hidden", "the test labels are hidden")]
)
def test_a_plan_says_that_nothing_will_be_scored_on_test_and_what_follows(
    frozen_spec: SweepSpec, without_test: Path, tmp_path: Path, monkeypatch, state: str, said: str
):
    monkeypatch.setattr(plan, "multiply_rate", lambda threads, gpus: RATE)
    if state == "hidden":
        monkeypatch.setattr(sources, "check", lambda data: state)
    planned = plan_sweep(frozen_spec.model_copy(update={"tasks": (str(without_test),)}), Resources(str(tmp_path)))
    (line,) = [note for note in planned.notes if said in note]
    assert "scored only on dev" in line
    assert "--test-from" in line
    assert {cell["test_state"] for cell in planned.as_json()["cells"]} == {state}
    sizes = list(data_lines(planned.cells))
    assert [line.endswith("no test split") for line in sizes] == [state == "absent"]


def test_a_plan_has_a_range_where_searches_may_end_early(frozen_spec: SweepSpec, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(plan, "multiply_rate", lambda threads, gpus: RATE)
    spec = frozen_spec.model_copy(update={"trials": 16})
    whole = plan_sweep(spec, Resources(str(tmp_path)))
    assert whole.least_seconds == whole.estimated_seconds
    assert not any("only on dev" in note for note in whole.notes), "there is a test split"
    shortest = plan_sweep(spec.model_copy(update={"trials": CHECK}), Resources(str(tmp_path)))
    planned = plan_sweep(spec.model_copy(update={"auto_trials": True}), Resources(str(tmp_path)))
    assert planned.estimated_seconds == whole.estimated_seconds
    assert planned.least_seconds == pytest.approx(shortest.estimated_seconds)
    planned = plan_sweep(spec.model_copy(update={"race": True}), Resources(str(tmp_path)))
    assert planned.least_seconds == whole.estimated_seconds, "a race never drops its leader"
