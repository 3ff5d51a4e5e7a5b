"""Counted operations of a cell: every head's weights, and the order and the estimate that follow from them."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from meltpoint.adapters import heads
from meltpoint.adapters.settings import complete
from meltpoint.sweeps.driver.opening import header
from meltpoint.sweeps.driver.progress import RemainingTime, left
from meltpoint.sweeps.search import cell_progress
from meltpoint.sweeps.search.cell_progress import head_weights, operations_of, planned_trials, work_of
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell, open_cells
from meltpoint.sweeps.specification.sweep_spec import SweepSpec

TASKS = {
    "sentence_classification": "demo_sentiment",
    "pair_classification": "demo_entailment",
    "sequence_labelling": "demo_entities",
}


@pytest.fixture(autouse=True)
def forget_counted_heads():
    cell_progress._head_weights.cache_clear()


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


def test_building_a_head_to_count_its_weights_computes_nothing(minilm, monkeypatch):
    devices: list[str] = []
    decompose = torch.linalg.qr

    def noted(tensor: torch.Tensor) -> object:
        devices.append(tensor.device.type)
        return decompose(tensor)

    cell = cell_of("bilstm", "feature_extraction", "demo_entities")
    monkeypatch.setattr(torch.linalg, "qr", noted)
    assert head_weights(cell, complete(cell.space.first(), cell.mode, cell.head)) > 100_000
    assert not devices, "a decomposition of first weights was computed"


def test_a_head_is_built_once_to_count_its_weights_however_often_they_are_asked_for(minilm, monkeypatch):
    cell = cell_of("native", "fine_tuning", "demo_sentiment")
    setting = complete(cell.space.first(), cell.mode, cell.head)
    counted = head_weights(cell, setting)
    monkeypatch.setattr(heads, "get", lambda name: pytest.fail("built again"))
    assert head_weights(cell, dict(reversed(setting.items()))) == counted


def test_what_a_frozen_encoder_computes_once_is_shared_among_a_cells_runs(minilm):
    cell = cell_of("linear", "feature_extraction", "demo_sentiment")
    operations, runs = operations_of(cell), planned_trials(cell) + cell.seeds
    assert work_of(cell) * runs == pytest.approx(operations.once + runs * operations.trial)


def test_a_frozen_cell_is_as_long_as_its_head_is_dear(minilm):
    cheap, dear = (cell_of(head, "feature_extraction", "demo_entailment") for head in ("linear", "esim"))
    assert work_of(dear) > 10 * work_of(cheap)


def test_the_time_left_counts_the_head_of_a_frozen_cell_before_one_of_its_trials_has_ended(minilm):
    spec = SweepSpec(
        name="x", encoders=("minilm",), modes=("fine_tuning",), tasks=("demo_entailment",), trials=4, seeds=2
    )
    frozen, tuned = (
        cell_of("esim", "feature_extraction", spec.tasks[0]),
        cell_of("native", "fine_tuning", spec.tasks[0]),
    )
    planner = Planner(spec, [frozen, tuned], [])
    cells = list(planner.cells.values())
    remaining = RemainingTime(measured={tuned.key: (1, 60.0)})
    found = remaining.estimate(cells)
    assert found is not None
    assert found.seconds == pytest.approx(60.0 * sum(left(one) * one.work / work_of(tuned) for one in cells))
    assert found.seconds > 1.1 * 60.0 * left(planner.cells[tuned.key]), "the frozen cell is no trifle"


def test_the_sweeps_file_names_the_work_of_a_cell_as_the_driver_counts_it(minilm):
    spec = SweepSpec(
        name="x", encoders=("minilm",), modes=("feature_extraction",), tasks=("demo_entailment",), trials=4, seeds=2
    )
    [cell] = open_cells(spec)
    [progress] = Planner(spec, [cell], []).cells.values()
    assert header(spec, cell).work == progress.work > 0
