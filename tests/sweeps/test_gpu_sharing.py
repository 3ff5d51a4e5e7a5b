"""placement: the share of a GPU that a trial gets. A fake meter stands in for a GPU's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.adapters import settings
from meltpoint.adapters.data.batch import EncodedSplit, Row
from meltpoint.adapters.hardware import claim_device
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.sweeps.ledger.records import Trial
from meltpoint.sweeps.machine.limits import GPU_MARGIN
from meltpoint.sweeps.on_ray import placement
from meltpoint.sweeps.on_ray.experiment import resources_of
from meltpoint.sweeps.on_ray.placement import share_of
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell, open_cells
from meltpoint.sweeps.worker import gpu_probe, worker
from meltpoint.sweeps.worker.gpu_probe import Need, ProbeOrder
from meltpoint.sweeps.worker.work_order import to_config
from meltpoint.tests.sweeps.one_process import order_of

GIB = 2**30
totals = st.integers(GIB, 200 * GIB)
most_trials = st.integers(1, 8)


# --- the share ---


@st.composite
def fitting(draw: st.DrawFn) -> tuple[int, int]:
    """(bytes needed, total bytes) where a whole GPU is large enough."""
    total = draw(totals)
    return draw(st.integers(0, total)), total


@given(fitting(), most_trials)
def test_the_trials_that_share_a_gpu_fit_it_each_with_its_margin(case, most):
    needed, total = case
    share = share_of(needed, total, most)
    trials = int(1 / share)
    assert 1 <= trials <= most
    assert 0 < share <= 1
    assert trials == 1 or trials * needed * (1 + GPU_MARGIN) <= total


@given(fitting(), most_trials)
def test_one_trial_more_would_not_fit(case, most):
    needed, total = case
    trials = int(1 / share_of(needed, total, most))
    room = total * placement.RAY_UNITS // (trials + 1) / placement.RAY_UNITS
    assert trials == most or needed * (1 + GPU_MARGIN) > room * (1 - 2e-3)  # Ray's units: less than 0.1 % of a share


@given(totals, st.integers(1, 100 * GIB))
def test_what_a_whole_gpu_is_too_small_for_is_refused_with_the_remedy(total, more):
    with pytest.raises(ValueError, match="lower batch_size or max_pieces"):
        share_of(total + more, total)


# --- what is probed ---


def orders_from(cells: Sequence[OpenCell]) -> placement.MakeOrder:
    """What the driver makes of trials of these cells, without a ledger."""
    known = {cell.key: cell for cell in cells}
    return lambda trial, gpus: order_of(known[trial.cell], trial, Path("nowhere"), gpus=gpus)


@pytest.fixture
def probed(spec, cells) -> dict[str, ProbeOrder]:
    """Mode → what is probed of its cell, with one GPU: three trials, two seeds."""
    cells = [*cells, *open_cells(spec.model_copy(update={"modes": ("stack_and_finetune",)}))]
    found = placement.probe_orders(Planner(spec, cells, []), orders_from(cells), gpus=1)
    return {mode: told for (_, mode, _), told in found.items()}


def test_a_frozen_cell_is_probed_with_the_largest_bundles_that_it_may_train(probed):
    seeds = [[order.seed for order in work] for work in probed["feature_extraction"].bundles]
    assert seeds == [[0, 0, 0]], "a final trains by itself"
    for mode in ("fine_tuning", "stack_and_finetune"):
        assert [len(work) for work in probed[mode].bundles] == [1]


def test_shares_leave_the_margin_and_are_no_smaller_than_an_eighth():
    """A limit may change with figures of a GPU in docs/internals/log.md, and this test with it."""
    assert share_of(0, 80 * GIB) == 1 / 8
    assert share_of(27 * GIB, 80 * GIB) == 1.0, "two would need 81 GiB with half as much again"
    assert share_of(8 * GIB, 80 * GIB) == 0.1666, "six, with 12 GiB each"


def test_an_encoder_that_frozen_trials_leave_on_the_gpu_counts_for_every_cell(probed, cells):
    resident = (cells[0].encoder, cells[0].task.kind)
    assert probed["feature_extraction"].residents == (resident,)
    assert probed["fine_tuning"].residents == (resident,)


def test_only_cells_with_something_left_to_do_are_probed(spec, cells, make_record):
    planner = Planner(spec, cells[:1], [])
    while isinstance(proposal := planner.next(), Trial):
        planner.begin(proposal)
        test = {"accuracy": 0.5} if proposal.role == "final" else None
        planner.end(make_record(proposal, test=test))
    assert placement.probe_orders(planner, orders_from(cells), gpus=1) == {}


def with_space(cell: OpenCell, **said: object) -> OpenCell:
    """A cell whose space is this."""
    return replace(cell, space=type(cell.space).of(said, cell.space.allowed))


def test_the_heaviest_setting_has_the_largest_batch_the_full_precision_and_every_layer_thawed(cells):
    cell = with_space(
        cells[1], batch_size={"choice": [8, 32, 16], "first": 16}, precision={"choice": ["bf16", "fp32"]},
        max_pieces={"integer": [16, 48]}, gradual_unfreezing=True,
    )  # fmt: skip
    setting = placement.heaviest(cell)
    assert (setting["batch_size"], setting["precision"], setting["max_pieces"]) == (32, "fp32", 48)
    assert setting["gradual_unfreezing"] is False


def test_of_words_the_heaviest_is_the_one_that_takes_most_memory_and_top_k_has_most_layers(cells):
    frozen = with_space(cells[0], **{"feature_extraction.layers": {"choice": ["top", "mix"]}})
    assert placement.heaviest(frozen)["feature_extraction.layers"] == "mix"
    allowed = {one.name: one for one in settings.parameters("top_k", cells[1].head)}
    space = type(cells[1].space).of({"top_k.k": {"choice": [2, 1, 4]}}, allowed)
    assert placement.heaviest(replace(cells[1], mode="top_k", space=space))["top_k.k"] == 4


@given(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=3), min_size=1, max_size=20), st.integers(1, 12))
def test_the_longest_rows_are_taken_with_all_windows_of_their_examples(windows, wanted):
    rows = [
        Row(example, 2 * place, tuple(range(length)), (), (0, 1), (0, 0))
        for example, lengths in enumerate(windows)
        for place, length in enumerate(lengths)
    ]
    split = EncodedSplit(rows, len(windows), word_counts=[2 * len(lengths) for lengths in windows])
    longest, chosen = gpu_probe._longest(split, wanted)
    assert [windows[example] for example in chosen] == [
        [len(row.pieces) for row in longest.rows if row.example == place] for place in range(longest.examples)
    ]
    assert longest.word_counts == [2 * len(windows[example]) for example in chosen]
    assert sorted(len(row.pieces) for row in longest.rows)[-wanted:] == sorted(len(r.pieces) for r in rows)[-wanted:]


# --- the probe, on the CPU ---


class FakeMeter:
    """Says what it was told to say."""

    def __init__(self, need: Need) -> None:
        self.need, self.calls = need, []

    def begin(self) -> None:
        """Note it."""
        self.calls.append("begin")

    def read(self) -> Need:
        """The figures."""
        self.calls.append("read")
        return self.need


@pytest.mark.parametrize("mode", ["feature_extraction", "fine_tuning", "stack_and_finetune"])
def test_a_probe_runs_two_steps_on_the_longest_rows_with_all_layers_open_and_an_evaluation(probed, mode, monkeypatch):
    steps, evaluated = [], []
    open_rows, evaluate = Trainer._set_encoder_rates, Trainer.evaluate

    def begin_step(self, table):
        open_rows(self, table)
        all_open = all(p.requires_grad for p in self.model.encoder.parameters())
        steps.append((self, self.model.members, all_open and not self.model.encoder_is_frozen))

    def score(self, split, examples, read=None):
        if read is None:  # not the score of an epoch
            evaluated.append(len(self.encoder_optimiser.state) if self.trains_encoder else 0)
        return evaluate(self, split, examples, read)

    monkeypatch.setattr(Trainer, "_set_encoder_rates", begin_step)
    monkeypatch.setattr(Trainer, "evaluate", score)
    meter = FakeMeter(Need(3 * GIB, 80 * GIB))
    need = gpu_probe.probe(probed[mode], claim_device(1), meter)
    assert need == Need(3 * GIB, 80 * GIB)
    assert meter.calls == ["begin", "read"]
    bundles = probed[mode].bundles
    assert [members for _, members, *_ in steps] == [len(work) for work in bundles for _ in range(2)]
    assert len(evaluated) == len(bundles)
    if mode != "feature_extraction":
        assert all(is_open for _, _, is_open in steps)
        assert all(state > 0 for state in evaluated), "the optimiser's state was there"
        assert any(name.startswith("encoder.") for name in steps[-1][0].trials[0].best_state)


def test_a_probe_leaves_the_encoder_as_it_was(probed):
    order = probed["fine_tuning"].bundles[0][0]
    encoder = worker.warm_encoder(order.encoder, "sentence_classification")
    before = {name: weight.clone() for name, weight in encoder.state_dict().items()}
    gpu_probe.probe(probed["fine_tuning"], claim_device(1), FakeMeter(Need(1, 2)))
    assert all(torch.equal(before[name], weight) for name, weight in encoder.state_dict().items())


@pytest.mark.parametrize("fits", [1, 2, 4])
def test_a_bundle_that_cannot_train_side_by_side_is_probed_in_halves(spec, monkeypatch, fits: int):
    (cell,) = open_cells(spec.model_copy(update={"modes": ("lora",)}))
    planner = Planner(spec, [replace(cell, trials=4, searcher="random")], [])
    planner.gpus = 1
    (order,) = placement.probe_orders(planner, orders_from([cell]), gpus=1).values()
    ran = []

    def steps(work: Sequence[object], hardware: object) -> None:
        ran.append(len(work))
        if len(work) > fits:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(gpu_probe, "_run_heaviest_steps", steps)
    meter = FakeMeter(Need(GIB, 80 * GIB))
    assert gpu_probe.probe(order, claim_device(1), meter) == Need(GIB, 80 * GIB)
    assert ran == [size for size in (4, 2, 1) if size >= fits]


def test_a_bundle_of_lora_is_probed_side_by_side(spec):
    (cell,) = open_cells(spec.model_copy(update={"modes": ("lora",)}))
    planner = Planner(spec, [replace(cell, trials=2)], [])
    planner.gpus = 1
    (order,) = placement.probe_orders(planner, orders_from([cell]), gpus=1).values()
    assert [len(work) for work in order.bundles] == [2]
    assert gpu_probe.probe(order, claim_device(1), FakeMeter(Need(1, 2))) == Need(1, 2)


def test_what_lies_on_the_gpu_outside_torchs_memory_counts_as_needed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (70 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 9 * GIB)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 12 * GIB)
    assert gpu_probe.GpuMeter().read() == Need(13 * GIB, 80 * GIB)


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory.\nmore"), "a whole GPU is too small"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "is too small"),
        (OSError("gone"), "OSError"),
    ],
)
def test_what_goes_wrong_in_a_probe_is_an_answer(probed, monkeypatch, failure, said):
    def fail(*words: object) -> None:
        raise failure

    monkeypatch.setattr(gpu_probe, "claim_device", fail)
    need = gpu_probe.probe_gpu(probed["fine_tuning"].model_dump(mode="json"))
    assert need.error is not None
    assert said in need.error
    assert "\n" not in need.error


# --- where it goes ---


def test_ray_is_asked_for_each_orders_own_resources(probed):
    order = probed["fine_tuning"].bundles[0][0]
    asked = [
        resources_of(to_config((order.model_copy(update={"cpus": cpus, "gpus": gpus}),)))
        for cpus, gpus in ((1.0, 0.25), (1.0, 0.25), (2.0, 0.5), (1.0, 0.0))
    ]
    assert [factory.bundles for factory in asked] == [
        [{"CPU": 1.0, "GPU": 0.25}], [{"CPU": 1.0, "GPU": 0.25}], [{"CPU": 2.0, "GPU": 0.5}], [{"CPU": 1.0}],
    ]  # fmt: skip
    assert asked[0] == asked[1] != asked[2], "workers are reused where resources are equal"


def test_a_cell_that_cannot_be_measured_gets_a_whole_gpu_and_a_line(monkeypatch):
    monkeypatch.setattr("ray.get", lambda reference: reference)
    said: list[str] = []
    needs = (Need(8 * GIB, 80 * GIB), Need(0, 0, "OSError"), Need(0, 0, "too small."), Need(90 * GIB, 80 * GIB))
    assert [placement._share(("e", "m", "t"), need, said.append) for need in needs] == [0.1666, 1.0, 1.0, 1.0]
    assert len(said) == 3
    assert all(line.startswith("--gpus-per-trial auto: e.m.t: ") for line in said)
