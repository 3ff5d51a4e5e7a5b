"""A GPU out of memory is no lost trial: alone, with checkpointing, with half the rows; what was learned is kept.

A fake on the CPU raises above a limit of rows × length, as a GPU's allocator does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from meltpoint.adapters.model import AdaptedModel
from meltpoint.sweeps.driver.running_trial import MemoryCeilings
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.tracking.run_contents import ending
from meltpoint.sweeps.worker import worker
from meltpoint.sweeps.worker.outcome import OutOfMemory, memory_error_in_short
from meltpoint.sweeps.worker.resources import checkpoints, longest_input, micro_batch_of
from meltpoint.sweeps.worker.work_order import Order
from meltpoint.tests.sweeps.one_process import drive, driver_of, only, quiet_driver

BATCH = 8


@pytest.fixture
def fine_tuned(cells) -> list:
    """The cell that trains its encoder."""
    return cells[1:]


@pytest.fixture
def limit(monkeypatch) -> Callable[..., None]:
    """Let a pass over more than some rows × length of training data be out of memory, with checkpointing too."""
    most = [10**9, 10**9]
    forward = AdaptedModel.forward

    def limited(self: AdaptedModel, batch: Any) -> torch.Tensor:
        if self.training and batch.pieces.numel() > most[self.encoder.checkpoints]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")
        return forward(self, batch)

    def set_to(rows_times_length: int, checkpointed: int | None = None) -> None:
        most[:] = [rows_times_length, rows_times_length if checkpointed is None else checkpointed]

    monkeypatch.setattr(AdaptedModel, "forward", limited)
    return set_to


def longest(spec, cells) -> int:
    (order,) = _orders(spec, cells)
    return longest_input(worker.encoded_data(order).train)


def _orders(spec, cells) -> list[Order]:
    planner = Planner(spec, cells, [])
    return [quiet_driver(planner, Ledger(Path("nowhere"))).order(planner.next(), 0.0)]


def test_a_trial_is_tried_with_half_the_rows_until_it_fits_and_its_record_says_so(spec, fine_tuned, tmp_path, limit):
    length = longest(spec, fine_tuned)
    limit(2 * length)
    driver, screen = driver_of(spec, fine_tuned, tmp_path)
    orders = drive(driver, 1)
    assert len({order.id for order in orders}) == 1, "one identity"
    record = only(driver)
    assert (record.status, record.micro_batch_size, record.attempts) == ("finished", 2, 4)
    assert record.gradient_checkpointing
    assert record.setting["batch_size"] == BATCH
    said = [f"{rows} of 8 rows at a time and the same gradient" for rows in (4, 2)]
    assert screen.lines == [
        f"out of memory: CUDA out of memory. Tried to allocate 2.00 GiB.; retrying with {less}"
        for less in ("gradient checkpointing", *said)
    ]
    tags = {tag.key: tag.value for tag in ending(record)[1]}
    assert tags["meltpoint.micro_batch_size"] == "2"
    assert tags["meltpoint.gradient_checkpointing"] == "True"


def test_checkpointing_is_tried_on_the_whole_batch_and_gives_the_same_numbers(spec, fine_tuned, tmp_path, limit):
    whole, _ = driver_of(spec, fine_tuned, tmp_path / "whole")
    drive(whole, 1)
    length = longest(spec, fine_tuned)
    limit(BATCH * length - 1, checkpointed=BATCH * length)
    driver, screen = driver_of(spec, fine_tuned, tmp_path / "checkpointed")
    drive(driver, 1)
    assert len(screen.lines) == 1
    plain, record = only(whole), only(driver)
    assert (record.id, record.attempts, record.micro_batch_size) == (plain.id, 2, None)
    assert (plain.gradient_checkpointing, record.gradient_checkpointing) == (False, True)
    assert [(one.dev, one.train_loss) for one in record.epochs] == [(one.dev, one.train_loss) for one in plain.epochs]
    assert "meltpoint.gradient_checkpointing" not in {tag.key for tag in ending(plain)[1]}


def test_a_family_that_cannot_checkpoint_halves_its_batch_straight_away(spec, fine_tuned, tmp_path, limit, monkeypatch):
    (order,) = _orders(spec, fine_tuned)
    monkeypatch.setattr(
        worker.warm_encoder(order.located_encoder, worker.encoded_data(order).task.kind),
        "supports_checkpointing",
        False,
    )
    limit(4 * longest(spec, fine_tuned), checkpointed=10**9)
    driver, _ = driver_of(spec, fine_tuned, tmp_path)
    drive(driver, 1)
    record = only(driver)
    assert (record.gradient_checkpointing, record.micro_batch_size, record.attempts) == (False, 4, 2)


def test_a_frozen_encoder_has_nothing_to_recompute(spec, cells, tmp_path, limit):
    limit(4 * longest(spec, cells[:1]), checkpointed=10**9)
    driver, screen = driver_of(spec, cells[:1], tmp_path)
    drive(driver, spec.trials)
    assert {record.gradient_checkpointing for record in driver.ledger.records()} == {False}
    assert not any("gradient checkpointing" in line for line in screen.lines)


def test_the_cells_later_trials_begin_with_what_fits(spec, fine_tuned, tmp_path, limit):
    limit(2 * longest(spec, fine_tuned))
    driver, screen = driver_of(spec, fine_tuned, tmp_path)
    drive(driver, 1)
    said = len(screen.lines)
    drive(driver, 2)
    assert len(screen.lines) == said
    assert [(record.micro_batch_size, record.gradient_checkpointing) for record in driver.ledger.records()] == [
        (2, True), (2, True),
    ]  # fmt: skip


def test_a_batch_in_parts_takes_as_many_steps_under_the_same_identity(spec, fine_tuned, tmp_path, limit):
    whole, _ = driver_of(spec, fine_tuned, tmp_path / "whole")
    drive(whole, 1)
    limit(longest(spec, fine_tuned))
    parts, _ = driver_of(spec, fine_tuned, tmp_path / "parts")
    drive(parts, 1)
    one, two = only(whole), only(parts)
    assert one.id == two.id
    assert (one.micro_batch_size, two.micro_batch_size) == (None, 1)
    assert [epoch.step for epoch in one.epochs] == [epoch.step for epoch in two.epochs], "as many steps"


def test_a_row_that_does_not_fit_by_itself_fails_the_trial_with_one_line_and_the_remedy(
    spec, fine_tuned, tmp_path, limit
):
    limit(1)
    driver, screen = driver_of(spec, fine_tuned, tmp_path)
    drive(driver, 1)
    record = only(driver)
    assert (record.status, record.cause, record.attempts) == ("failed", "setting", 5)
    assert len(screen.lines) == 4
    assert record.error is not None
    assert record.error.startswith("out of memory: ")
    assert "one row of" in record.error
    assert "a smaller max_pieces, a smaller encoder, or a GPU with more memory" in record.error
    assert "\n" not in record.error


def test_a_trial_that_shared_its_gpu_has_one_to_itself_before_its_batch_is_cut(spec, fine_tuned, tmp_path, limit):
    """Shared, nothing fits; alone, the whole batch does."""
    length = longest(spec, fine_tuned)
    driver, screen = driver_of(spec, fine_tuned, tmp_path, gpus=0.25)
    shares = []

    def run(order: Order) -> Order:
        shares.append(order.gpus)
        limit(1 if order.gpus < 1 else BATCH * length)
        return order

    with pytest.MonkeyPatch.context() as patch:
        claimed = worker.claim_device
        patch.setattr(worker, "claim_device", lambda cpus, gpus: claimed(cpus, 0))
        drive(driver, 2, run)
    assert shares == [0.25, 1.0, 1.0], "and the cell's next trial, which is as large, does not try to share"
    assert [record.micro_batch_size for record in driver.ledger.records()] == [None, None]
    assert len(screen.lines) == 1
    assert "retrying it on a whole GPU" in screen.lines[0]


def test_trials_side_by_side_that_ran_out_late_are_tried_one_by_one_first(spec, cells, tmp_path, limit, monkeypatch):
    driver, screen = driver_of(spec, cells[:1], tmp_path)
    passes = []
    forward = AdaptedModel.forward

    def late(self: AdaptedModel, batch: Any) -> torch.Tensor:
        passes.append(self.members)
        if self.members > 1 and self.training and len(passes) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(self, batch)

    monkeypatch.setattr(AdaptedModel, "forward", late)
    orders = drive(driver, spec.trials)
    assert len(orders) == 2 * spec.trials, "all of them once side by side, then each by itself"
    assert {record.status for record in driver.ledger.records()} == {"finished"}
    assert screen.lines
    assert all("retrying it alone" in line for line in screen.lines)


def test_a_saved_epoch_serves_the_attempt_with_fewer_rows_at_a_time(spec, fine_tuned, tmp_path, limit, monkeypatch):
    monkeypatch.setattr("meltpoint.adapters.training.epochs.FIRST_SECONDS", 0.0)
    length = longest(spec, fine_tuned)
    driver, _ = driver_of(spec, fine_tuned, tmp_path)
    monkeypatch.setattr("meltpoint.sweeps.specification.sweep_options.largest_share", lambda: 1e9)
    for_an_epoch = AdaptedModel.train

    def train(self: AdaptedModel, mode: bool = True) -> AdaptedModel:
        if mode and getattr(self, "has_trained", False):
            limit(4 * length)
        self.has_trained = mode or getattr(self, "has_trained", False)
        return for_an_epoch(self, mode)

    monkeypatch.setattr(AdaptedModel, "train", train)
    drive(driver, 1)
    record = only(driver)
    assert (record.status, record.micro_batch_size, record.resumed_after_epochs) == ("finished", 4, 1)
    assert record.gradient_checkpointing
    assert [epoch.epoch for epoch in record.epochs] == [1, 2]


# --- what is known ---


def lack(**changes: Any) -> OutOfMemory:
    known = {"gpu": "H100", "rows": 8, "length": 100, "is_shared": False, "together": 1, "can_checkpoint": False}
    return OutOfMemory(**{**known, **changes})


@pytest.fixture
def order(spec, fine_tuned, monkeypatch) -> Order:
    (one,) = _orders(spec, fine_tuned)
    return one


def test_ceilings_are_each_kinds_own_and_only_fall(order):
    known = MemoryCeilings()
    known.learn(order, lack())
    known.learn(order, lack(gpu="T4", rows=2))
    known.learn(order, lack(rows=8, length=500))
    known.learn(order, lack(can_checkpoint=True))
    known.learn(order, lack(rows=4, can_checkpoint=True))
    known.learn(order, lack(can_checkpoint=True))
    told = known.applied(order)
    assert told.ceilings == {"H100": 400, "T4": 100}
    assert told.plain_ceilings == {"H100": 399}


def test_other_cells_and_smaller_trials_are_not_touched(order):
    known = MemoryCeilings()
    shared = order.model_copy(update={"gpus": 0.5})
    known.learn(shared, lack(is_shared=True))
    assert known.applied(shared).gpus == 1.0
    smaller = shared.model_copy(update={"setting": {**order.setting, "batch_size": 4}})
    assert known.applied(smaller).gpus == 0.5
    assert known.applied(order.model_copy(update={"gpus": 2.0})).gpus == 2.0, "which no trial shares"
    other = shared.model_copy(update={"task": "another"})
    assert known.applied(other) == other


@pytest.mark.parametrize(("ceiling", "rows"), [(None, 8), (10**9, 8), (0, 1)])
def test_the_rows_at_a_time_are_the_batch_halved_until_the_ceiling_allows_it(order, ceiling, rows):
    hardware = worker.claim_device(1)
    train = worker.encoded_data(order).train
    known = {} if ceiling is None else {hardware.name: ceiling}
    told = order.model_copy(update={"ceilings": known})
    assert micro_batch_of(told, hardware, train) == rows
    length = longest_input(train)
    for most in range(1, 9):
        found = micro_batch_of(order.model_copy(update={"ceilings": {hardware.name: most * length}}), hardware, train)
        assert found == max(rows for rows in (8, 4, 2, 1) if rows <= most)
    assert micro_batch_of(order.model_copy(update={"ceilings": {"another": 1}}), hardware, train) == 8
    assert micro_batch_of(told.model_copy(update={"micro_batch_size": 3}), hardware, train) == 3


@pytest.mark.parametrize(
    ("known", "is_checkpointed"),
    [
        ({}, False),
        ({"gradient_checkpointing": True}, True),
        ({"plain_ceilings": 8}, False),
        ({"plain_ceilings": 7}, True),
        ({"ceilings": 4}, True),
        ({"ceilings": 8, "plain_ceilings": 8}, False),
    ],
)
def test_a_batch_above_either_ceiling_is_checkpointed(order, known, is_checkpointed):
    hardware, data = worker.claim_device(1), worker.encoded_data(order)
    length = longest_input(data.train)
    known = {name: {hardware.name: most * length} if "ceilings" in name else most for name, most in known.items()}
    encoder = worker.warm_encoder(order.located_encoder, data.task.kind)
    told = order.model_copy(update=known)
    assert checkpoints(told, hardware, encoder, data.train) == is_checkpointed
    assert not checkpoints(told.model_copy(update={"mode": "feature_extraction"}), hardware, encoder, data.train)


def test_the_error_names_the_gpu_and_not_every_process_on_it():
    said = (
        "CUDA out of memory. Tried to allocate 16.00 MiB. GPU 0 has a total capacity of 79.18 GiB of which 7.00 MiB is "
        "free. Process 968 has 77.37 GiB memory in use. Including non-PyTorch memory, this process has 802.00 MiB"
    )
    assert memory_error_in_short(torch.OutOfMemoryError(said)) == said.partition(" Process")[0]
    assert memory_error_in_short(RuntimeError("CUBLAS_STATUS_ALLOC_FAILED\nmore")) == "CUBLAS_STATUS_ALLOC_FAILED"
