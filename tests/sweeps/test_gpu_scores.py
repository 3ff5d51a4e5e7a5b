"""Scores on a GPU: the same weights, evaluated beside others, give nearly the recorded score and not its last bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meltpoint.reports.statistics.finals_scores import Problem, check_score
from meltpoint.sweeps.ledger.records import GPU_TOLERANCE, TrialRecord
from meltpoint.sweeps.specification.provenance import BESIDE_OTHERS, Circumstances, reasons
from meltpoint.sweeps.worker import finalist_scoring
from meltpoint.sweeps.worker.finalist_scoring import score_finalists
from meltpoint.sweeps.worker.outcome import outcome_of_error
from meltpoint.tasks.core.locked import TestData
from meltpoint.tasks.core.task import DataSpec
from meltpoint.tests.sweeps.one_process import drive, driver_of, only


@pytest.fixture
def trained(spec, cells, tmp_path) -> tuple[dict[str, Any], TrialRecord, str]:
    """A trial that trained on the CPU: its order, its record, and the folder of its sweep."""
    driver, _ = driver_of(spec, cells[1:], tmp_path)
    (order,) = drive(driver, 1)
    return order.as_json(), only(driver), str(driver.ledger.folder)


def moved(record: TrialRecord, device: str, by: float) -> TrialRecord:
    """The record as if it had been made on a device, with another score on dev."""
    assert record.hardware is not None
    assert record.dev is not None
    hardware = record.hardware.model_copy(update={"device": device})
    return record.model_copy(update={"role": "final", "hardware": hardware, "dev": record.dev + by})


@pytest.mark.parametrize(
    ("device", "by", "is_scored"),
    [("cpu", 0.0, True), ("cpu", 1e-9, False), ("cuda:0", 1e-3, True), ("cuda:0", 2 * GPU_TOLERANCE, False)],
)
def test_a_finalist_is_scored_where_its_weights_give_its_score_on_a_gpu_up_to_rounding(trained, device, by, is_scored):
    order, record, folder = trained
    (answer,) = score_finalists([order], [moved(record, device, by).model_dump_json()], folder)
    assert (answer["test"] is not None, answer["again"]) == (is_scored, not is_scored)
    if not is_scored:
        assert "its weights give dev" in answer["error"]


class Predicted:
    """Predictions with one score."""

    def score(self, metric: str) -> float:
        """The score."""
        return 0.75


@pytest.mark.parametrize(
    ("recorded", "tolerance", "fits"), [(0.76, 0.0, False), (0.76, 0.02, True), (0.8, 0.02, False)]
)
def test_stored_predictions_serve_where_their_score_is_the_recorded_one_up_to_the_tolerance(recorded, tolerance, fits):
    run: Any = Predicted()
    if fits:
        check_score(run, "accuracy", recorded, "seed 0", tolerance)
        return
    with pytest.raises(Problem, match="do not give its recorded score"):
        check_score(run, "accuracy", recorded, "seed 0", tolerance)


@pytest.mark.parametrize(("device", "is_frozen"), [("cuda:0", True), ("cuda:0", False), ("cpu", True)])
def test_a_frozen_trial_on_a_gpu_may_differ_because_it_trained_beside_others(device: str, is_frozen: bool):
    now = Circumstances("1+a", {}, {"device": device})
    wanted = (BESIDE_OTHERS,) if device != "cpu" and is_frozen else ()
    assert reasons({"code": "1+a"}, now, is_frozen) == wanted
    assert reasons({"code": "1+b"}, now, is_frozen) == ("Meltpoint's code: 1+b → 1+a",), "another reason is enough"


def test_an_operation_without_a_deterministic_form_names_the_switch_that_allows_it():
    said = (
        "cumsum_cuda_kernel does not have a deterministic implementation, but you set "
        "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation ..."
    )
    outcome = outcome_of_error(RuntimeError(said))
    assert (outcome.status, outcome.cause) == ("failed", "setting")
    assert outcome.error == (
        "cumsum_cuda_kernel does not have a deterministic implementation; "
        "set MELTPOINT_DETERMINISTIC=0 in the environment to allow it"
    )


def test_further_test_splits_are_scored_with_test_and_named(trained, monkeypatch: pytest.MonkeyPatch):
    order, record, folder = trained
    opened = finalist_scoring.open_test

    def with_another(spec: DataSpec) -> TestData:
        test = opened(spec)
        return replace(test, also={"elsewhere": test.examples, "half": test.examples[: len(test.examples) // 2]})

    monkeypatch.setattr(finalist_scoring, "open_test", with_another)
    final = record.model_copy(update={"role": "final"})
    (answer,) = score_finalists([order], [final.model_dump_json()], folder)
    found = answer["test"]
    assert found[f"elsewhere/{record.metric}"] == found[record.metric]
    assert {name.partition("/")[0] for name in found if "/" in name} == {"elsewhere", "half"}
