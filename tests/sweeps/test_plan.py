"""What `plan` says that a cell costs: counted operations, a frozen encoder's once, whatever it trains each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from meltpoint.adapters import encoders
from meltpoint.adapters.multiplier_table import Phase
from meltpoint.adapters.settings import complete
from meltpoint.reports.screen import data_lines
from meltpoint.sweeps.driver import plan
from meltpoint.sweeps.driver.plan import SHARE_OF_PEAK, plan_sweep, price_of
from meltpoint.sweeps.search.cell_progress import expected_epochs, head_weights
from meltpoint.sweeps.specification.cells import OpenCell, open_cells
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tasks.core import sources

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


def test_a_plan_with_a_test_split_says_nothing_of_it(frozen_spec: SweepSpec, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(plan, "multiply_rate", lambda threads, gpus: RATE)
    assert not any("only on dev" in note for note in plan_sweep(frozen_spec, Resources(str(tmp_path))).notes)


def test_more_trials_of_a_frozen_cell_cost_their_heads_only(minilm, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(plan, "multiply_rate", lambda threads, gpus: RATE)  # it is measured, and machines are busy

    def seconds(trials: int) -> float:
        planned = plan_sweep(spec_of("linear", trials, MODES[:1]), Resources(storage=str(tmp_path)))
        return planned.cells[0].estimated_seconds

    assert seconds(16) < 1.5 * seconds(1)
