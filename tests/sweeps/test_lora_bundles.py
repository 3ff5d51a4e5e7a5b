"""Trials of LoRA that a worker on a GPU takes up together; a CPU stands in for the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from meltpoint.adapters.families.huggingface.encoder import HuggingFaceEncoder
from meltpoint.adapters.hardware import claim_device
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import open_cells
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.worker import worker
from meltpoint.sweeps.worker.work_order import Order
from meltpoint.tests.sweeps.one_process import drive, driver_of, order_of
from meltpoint.tests.sweeps.test_worker import events_of


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders for a GPU run here."""
    monkeypatch.setattr(worker, "claim_device", lambda cpus, gpus: claim_device(cpus))


@pytest.fixture
def lora(spec) -> SweepSpec:
    """A cell of LoRA: three trials, two seeds."""
    return spec.model_copy(update={"modes": ("lora",), "default_finals": False, "trials": 3, "seeds": 2})


@pytest.fixture
def three_orders(lora, tmp_path) -> Callable[..., list[Order]]:
    """Changes of their settings → the orders of a bundle."""

    def make(gpus: float = 1.0, **changes: Callable[[int], object]) -> list[Order]:
        (cell,) = open_cells(lora)
        planner = Planner(lora, [cell], [])
        planner.gpus = 1
        return [
            order_of(cell, trial, tmp_path, gpus=gpus, setting={
                **trial.setting, **{name.replace("__", "."): value(place) for name, value in changes.items()},
            })
            for place, trial in enumerate(planner.next_together(slots=1))
        ]  # fmt: skip

    return make


CASES = {
    "ranks may differ": (3, {"lora__rank": lambda place: 4 + place}),
    "one ratio inside the encoder": (1, {"encoder_dropout": lambda place: place / 10}),
    "no rates per layer": (
        1,
        {"gradual_unfreezing": lambda _: True, "gradual_unfreezing__epochs_per_group": lambda _: 0.1},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_trials_train_side_by_side_on_a_gpu_if_they_can(three_orders, case: str):
    together, changes = CASES[case]
    orders = three_orders(**changes)
    begun = [event.attempt for event in events_of(*orders) if event.epoch is None]
    assert [attempt.trained_together for attempt in begun] == [together] * 3
    for order, attempt in zip(orders, begun, strict=True):
        alone = events_of(order)[0].attempt
        assert attempt.trained_parameters == alone.trained_parameters
        assert attempt.task_parameters == alone.task_parameters


def test_on_a_cpu_and_where_a_batch_was_too_large_each_trains_alone(three_orders):
    known = [order.model_copy(update={"ceilings": {"a GPU": 1000}}) for order in three_orders()]
    for orders in (three_orders(gpus=0.0), known):
        begun = [event.attempt for event in events_of(*orders) if event.epoch is None]
        assert [attempt.trained_together for attempt in begun] == [1] * 3


def test_trials_that_fail_side_by_side_train_alone_and_say_why(three_orders, monkeypatch):
    def refuse(self: object, others: object) -> None:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(HuggingFaceEncoder, "join_lora", refuse)
    ended = [event for event in events_of(*three_orders()) if event.outcome is not None]
    assert [event.outcome.status for event in ended] == ["finished"] * 3
    for event in ended:
        (note,) = [note for note in event.attempt.storage_notes if "side by side" in note]
        assert "3 trials did not train side by side: RuntimeError: no kernel" in note


def test_trials_that_are_out_of_time_end_at_once(three_orders):
    late = [order.model_copy(update={"ends_at": time.time() - 1}) for order in three_orders()]
    ends = [event.outcome and event.outcome.status for event in events_of(*late)]
    assert ends == [None] * 3 + ["stopped"] * 3


def test_a_cell_is_searched_side_by_side_and_its_finals_train_alone(lora, tmp_path: Path):
    driver, _ = driver_of(lora, open_cells(lora), tmp_path, gpus=1.0)
    driver.planner.gpus = 1
    drive(driver, 5)
    found = [(one.role, one.trained_together, one.answered_by) for one in driver.ledger.records()]
    assert sorted(found) == [("final", 1, None)] * 2 + [("search", 3, None)] * 3
