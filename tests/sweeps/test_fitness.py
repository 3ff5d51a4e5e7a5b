"""resources: a worker with other code, or without the sweep's storage, refuses before it trains, and says why."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from meltpoint.adapters.data.batch import EncodedSplit, Row
from meltpoint.adapters.training.trial_state import EncodedData
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import Trial
from meltpoint.sweeps.on_ray import trainable
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.provenance import code_version
from meltpoint.sweeps.worker import resources
from meltpoint.sweeps.worker.finalist_scoring import score_finalists
from meltpoint.sweeps.worker.resources import input_notes, unfit
from meltpoint.sweeps.worker.work_order import Order
from meltpoint.tasks import get
from meltpoint.tests.sweeps.one_process import order_of


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "runs" / "tiny")
    ledger.create()
    return ledger


@pytest.fixture
def order(proposal: Trial, cells: list[OpenCell], ledger: Ledger) -> Order:
    """An order of a sweep on a cluster, as the driver notes it before it hands it out."""
    cell = next(cell for cell in cells if cell.key == proposal.cell)
    checkpoint, fingerprint = str(ledger.checkpoint(proposal.id)), {"encoder_fingerprint": ""}
    made = order_of(cell, proposal, ledger.folder, checkpoint=checkpoint, code_version=code_version(), **fingerprint)
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
    assert f"has Meltpoint's code {code_version()}, but the driver has 0.0.1+0123abcd" in fault


def test_a_storage_that_is_not_there_or_another_ones_is_refused(order: Order, ledger: Ledger) -> None:
    elsewhere = order.model_copy(update={"checkpoint": "/nowhere/runs/tiny/checkpoints/x"})
    assert "does not see /nowhere/runs/tiny; mount" in str(unfit(elsewhere, patience_seconds=0.0))
    (ledger.started / f"{order.id}.json").unlink()
    assert f"has a different {ledger.folder}; mount" in str(unfit(order, patience_seconds=0.0))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_storage_that_cannot_be_written_is_refused(order: Order, ledger: Ledger) -> None:
    ledger.started.chmod(0o500)
    assert f"cannot write {ledger.started} (" in str(unfit(order))


def test_a_trial_that_has_ended_is_scored_where_its_record_is_seen(order: Order, ledger: Ledger) -> None:
    (ledger.started / f"{order.id}.json").rename(ledger.trials / f"{order.id}.json")
    assert unfit(order) is None


def test_a_refusal_loses_the_trials_and_names_the_node(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(get_node_id=lambda: "0123")
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    result = trainable.refusal((order,), "its machine has other code")
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
    monkeypatch.setattr(resources.time, "sleep", lambda seconds: (ledger.folder / "late").rename(note))
    assert unfit(order) is None


def data(limit: int, whole: int, task: str = "demo_sentiment", **dev: object) -> EncodedData:
    """60 training examples of `whole` pieces each, cut to `limit`, and a dev split."""
    rows = [Row(number, 0, (1,) * min(limit, whole), (), (), 0) for number in range(60)]
    cut = 60 * max(0, whole - limit)
    train = EncodedSplit(rows, 60, 60 if cut else 0, name="train", whole=[whole] * 60, pieces_cut=cut)
    return EncodedData(get(task), train, EncodedSplit([], **dev), [])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("max_pieces", "longest", "whole", "said"),
    [
        (128, 512, 160, "max_pieces = 128 (100 %; 20 % of all pieces lost); --set max_pieces=160 would keep all"),
        (128, 512, 161, "max_pieces = 128 (100 %; 20.5 % of all pieces lost); --set max_pieces=168 would keep all"),
        (
            300,
            512,
            600,
            "max_pieces = 300 (100 %; 50 % of all pieces lost); --set max_pieces=512 would keep all but 60",
        ),
        (
            512,
            512,
            640,
            "the encoder's longest input, 512 pieces (100 %; 20 % of all pieces lost); the longest has 640",
        ),
    ],
)
def test_a_note_on_cut_inputs_names_the_limit_and_what_would_keep_them(
    max_pieces: int, longest: int, whole: int, said: str
):
    notes = input_notes(data(max_pieces, whole, examples=9, name="dev"), max_pieces, longest)
    assert notes == [f"train: 60 of 60 examples cut to {said}"]


def test_nothing_is_said_of_inputs_that_fit():
    assert input_notes(data(128, 128, examples=9, name="dev"), 128, 512) == []


def test_an_encoder_without_a_longest_input_is_offered_what_a_setting_can_be():
    (note,) = input_notes(data(128, 20_000, examples=9, name="dev"), 128, 100_000)
    assert note.endswith("--set max_pieces=8192 would keep all but 60")


def test_a_length_that_the_encoder_cannot_take_is_said_to_be_read_as_the_encoders_limit():
    first, second = input_notes(data(64, 80, examples=9, name="dev"), 128, 64)
    assert first == "max_pieces = 128 was read as the encoder's longest input, 64 pieces"
    assert second == (
        "train: 60 of 60 examples cut to the encoder's longest input, 64 pieces (100 %; 20 % of all pieces lost); "
        "the longest has 80"
    )


def test_sentences_to_label_are_said_to_lose_a_word_or_to_be_split():
    rows = [Row(0, 0, (1,) * 100, (), (), ()), Row(0, 60, (1,) * 100, (), (), ())]
    dev = {
        "rows": rows, "examples": 1, "name": "dev", "word_counts": [100], "truncated": 1, "windowed": 1, "alone": 1,
        "whole": [250], "pieces_cut": 50,
    }  # fmt: skip
    own = EncodedData(get("demo_entities"), EncodedSplit([], 0, name="train"), EncodedSplit(**dev), [])  # type: ignore[arg-type]
    assert input_notes(own, 128, 512) == [
        "dev: 1 of 1 sentence with a word cut to max_pieces = 128 (100 %; 20 % of all pieces lost); "
        "--set max_pieces=256 would keep all",
        "dev: 1 of 1 sentence split into windows of max_pieces = 128, no word lost; "
        "--set max_pieces=256 would keep all",
        "dev: 1 of 1 sentence without a neighbour in the document",
    ]


def test_sentences_that_see_a_part_of_their_document_are_counted():
    rows = [Row(number, 0, (1,) * 20, (), (), (), before=(1,) * 40, after=(1,) * 40) for number in range(4)]
    train = EncodedSplit(rows, 4, word_counts=[9] * 4, name="train", whole=[300, 300, 100, 100], narrowed=2)
    own = EncodedData(get("demo_entities"), train, EncodedSplit([], 0, name="dev"), [])
    (note,) = input_notes(own, 100, 512)
    assert note == (
        "train: 2 of 4 sentences with only a part of their document in max_pieces = 100 (50 %; the mean input has "
        "100 of their document's 200 pieces); --set max_pieces=304 would keep all"
    )
