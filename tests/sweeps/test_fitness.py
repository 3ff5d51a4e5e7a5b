"""fitness: a worker with other code, or without the sweep's storage, refuses before it trains, and says why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.on_ray import trainable
from meltpoint.sweeps.search.cell_progress import Proposal
from meltpoint.sweeps.specification.code_version import code_version
from meltpoint.sweeps.worker import fitness
from meltpoint.sweeps.worker.finalist_scoring import score_finalists
from meltpoint.sweeps.worker.fitness import unfit
from meltpoint.sweeps.worker.work_order import Order, WorkOrder


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "runs" / "tiny")
    ledger.create()
    return ledger


@pytest.fixture
def order(proposal: Proposal, ledger: Ledger) -> Order:
    """An order of a sweep on a cluster, as the driver notes it before it hands it out."""
    cell = proposal.cell
    made = Order(
        id=proposal.id, number=0, role="search", encoder=cell.encoder, mode=cell.mode, task=cell.task_name,
        head=cell.head, seed=0, setting=proposal.setting, data=cell.data, data_fingerprint=cell.data_fingerprint,
        encoder_fingerprint="", checkpoint=str(ledger.checkpoint(proposal.id)), cpus=1, gpus=0,
        code_version=code_version(),
    )  # fmt: skip
    ledger.start(made.as_json())
    return made


def test_a_machine_with_the_drivers_code_and_storage_is_fit(order: Order, ledger: Ledger) -> None:
    assert unfit(order) is None
    assert [path.name for path in ledger.started.iterdir()] == [f"{order.id}.json"], "nothing is left behind"


def test_an_order_of_a_local_cluster_takes_any_machine(order: Order) -> None:
    anywhere = {"code_version": "", "checkpoint": "/nowhere/runs/tiny/checkpoints/x"}
    assert unfit(order.model_copy(update=anywhere)) is None


def test_other_code_is_refused_with_both_versions(order: Order) -> None:
    fault = unfit(order.model_copy(update={"code_version": "0.0.1+0123abcd"}))
    assert fault is not None
    assert f"has Meltpoint's code {code_version()}, and the driver has 0.0.1+0123abcd" in fault


def test_a_storage_that_is_not_there_or_another_ones_is_refused(order: Order, ledger: Ledger) -> None:
    elsewhere = order.model_copy(update={"checkpoint": "/nowhere/runs/tiny/checkpoints/x"})
    assert "does not see /nowhere/runs/tiny; mount" in str(unfit(elsewhere, patience_seconds=0.0))
    (ledger.started / f"{order.id}.json").unlink()
    assert f"has another {ledger.folder}; mount" in str(unfit(order, patience_seconds=0.0))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_storage_that_cannot_be_written_is_refused(order: Order, ledger: Ledger) -> None:
    ledger.started.chmod(0o500)
    assert f"cannot write {ledger.started} (" in str(unfit(order))


def test_a_trial_that_has_ended_is_scored_where_its_record_is_seen(order: Order, ledger: Ledger) -> None:
    (ledger.started / f"{order.id}.json").rename(ledger.trials / f"{order.id}.json")
    assert unfit(order) is None


def test_a_refusal_loses_the_trials_and_names_the_node(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainable, "node_id", lambda: "0123")
    result = trainable.refusal(WorkOrder(orders=(order,)), "its machine has other code")
    (event,) = result[trainable.EVENTS]
    assert (event.trial, event.outcome.cause, event.outcome.error) == (order.id, "worker", "its machine has other code")
    assert result[trainable.UNFIT_NODE] == "0123"


def test_finalists_are_not_scored_by_other_code_and_need_no_new_training(order, make_record, proposal) -> None:
    other = order.model_copy(update={"code_version": "0.0.1+0123abcd"})
    (answer,) = score_finalists(
        [other.as_json()], [make_record(proposal).model_dump_json()], str(Path(order.checkpoint))
    )
    assert answer["test"] is None
    assert answer["again"] is False
    assert "0.0.1+0123abcd" in answer["error"]


def test_a_note_that_comes_late_is_waited_for(order: Order, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    note = ledger.started / f"{order.id}.json"
    note.rename(ledger.folder / "late")
    monkeypatch.setattr(fitness.time, "sleep", lambda seconds: (ledger.folder / "late").rename(note))
    assert unfit(order) is None
