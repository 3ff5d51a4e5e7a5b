"""Where and with what a sweep runs leaves a trial's numbers as they are; on a GPU, up to the rounding of company."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from meltpoint.reports.commands import search
from meltpoint.reports.statistics.finals_scores import Problem, check_score
from meltpoint.sweeps.driver.start import asked_sweep, differences
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import GPU_TOLERANCE, TrialRecord
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.provenance import BESIDE_OTHERS, reasons, recorded_dev
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.worker import finalist_scoring, worker
from meltpoint.sweeps.worker.finalist_scoring import score_finalists
from meltpoint.sweeps.worker.outcome import outcome_of_error
from meltpoint.sweeps.worker.work_order import Order
from meltpoint.tasks.core.locked import TestData
from meltpoint.tasks.core.task import DataSpec
from meltpoint.tests.sweeps.one_process import drive, driver_of, only, quiet_driver

RESOURCES: Mapping[str, tuple[object, set[str]]] = {
    "storage": ("elsewhere", {"checkpoint", "cache"}),
    "tracking_uri": ("http://localhost:1", set()),
    "address": ("localhost:1", {"code_version"}),
    "cpus_per_trial": (2.0, {"cpus"}),
    "gpus_per_trial": (0.5, {"gpus"}),
    "time_budget": (60.0, set()),
    "max_gpu_hours": (1.0, set()),
    "log_to": (["tensorboard"], set()),
    "notify": ("http://localhost:1", set()),
    "budget_began": (1.0, set()),
    "retry_failed": (True, set()),
    "cache_budget": (1, {"cache_bytes"}),
    "cache_overflow": ("bf16", {"cache_overflow"}),
    "cache_dir": ("/nodes/own", {"cache"}),
    "cache_keep": (1, set()),
    "mix_code_versions": (True, set()),
    "grow": (True, set()),
    "new_test_round": (True, set()),
    "no_epoch_checkpoints": (True, {"saving_share"}),
    "max_workers": (1, set()),
}
"""Field → another value, and the fields of an order that it changes."""

IDENTITY = "in the trial's identity"
ORDER = {
    "id": "the identity itself", "number": "for people", "suggested_by": "for the record",
    **dict.fromkeys(("role", "encoder", "mode", "task", "head", "variant", "seed", "setting", "metric"), IDENTITY),
    **dict.fromkeys(("data_fingerprint", "documents_fingerprint", "encoder_fingerprint"), IDENTITY),
    "encoder_word": "the worker refuses an encoder of another fingerprint",
    "data": "the worker refuses data of another fingerprint",
    "ends_at": "a trial that stops there has no result of its last epochs; a record says so",
    "attempt": "for the ledger",
    **dict.fromkeys(("handed_out", "driver_attempt"), "for the name of the trial's saved epochs"),
    "saving_share": "a trial that goes on from a saved epoch has the same bits (test_epoch_checkpoints)",
    "test_fingerprint": "for scoring; it may refuse, and changes nothing",
    "checkpoint": "equal numbers, below", "cache": "equal numbers, below",
    "cache_bytes": "equal numbers where the states fit, below; the trial's notes say where they do not",
    "caches_all_layers": "equal numbers (test_worker)",
    "cache_overflow": "refused under the same name, below",
    "code_version": "in the trial's record; a worker with other code refuses",
    # The sums of a product are taken in another order: last bits differ. A sweep goes on with more cores, and the
    # ledger's `hardware` has the threads and the GPU of every trial, so that the same bits can be asked for.
    # A batch in parts has the same gradient within rounding, and other masks of dropout.
    **dict.fromkeys(("micro_batch_size", "ceilings"), "on record with each trial"),
    **dict.fromkeys(("gradient_checkpointing", "plain_ceilings"), "equal numbers (test_checkpointing), and on record"),
    "cpus": "on record with each trial", "gpus": "on record with each trial",
}  # fmt: skip
SPECIFICATION = {
    "name": "name", "encoder": "encoders", "mode": "modes", "task": "tasks", "spec": "blocks", "replacing": "replaced",
    "head": "head", "trials": "trials", "seeds": "seeds", "searcher": "searcher", "space": "space",
    "overrides": "overrides", "data_dir": "data_dir", "max_train_examples": "max_train_examples",
    "train_sizes": "blocks",
    "max_dev_examples": "max_dev_examples", "test_from": "test_from", "seed": "seed",
    "default_finals": "default_finals", "margin": "margin", "price_per_hour": "price_per_hour", "race": "race",
}  # fmt: skip


def test_the_tables_have_every_option_every_resource_and_every_field_of_an_order():
    assert SPECIFICATION.keys() | RESOURCES.keys() == set(inspect.signature(search.sweep).parameters) | {"budget_began"}
    assert set(SPECIFICATION.values()) <= set(SweepSpec.model_fields), (
        "each is in the table of test_identity_of_searches"
    )
    assert set(RESOURCES) == {field.name for field in fields(Resources)}
    assert set(ORDER) == set(Order.model_fields)


def order_under(resources: Resources, spec: SweepSpec, cells: list, folder: Path) -> Order:
    """What a worker is told of the first trial of a cell."""
    planner, ledger = Planner(spec, cells, []), Ledger(folder / resources.storage / spec.name)
    driver = quiet_driver(planner, ledger, **vars(resources))
    assert not isinstance(resources.gpus_per_trial, str), "a number here; auto measures one"
    return driver.order(planner.next(), resources.gpus_per_trial)  # type: ignore[arg-type]


def test_a_resource_changes_only_those_fields_of_an_order_that_the_table_says(spec, cells, tmp_path):
    base = Resources(storage="here", gpus_per_trial=0.0)
    before = order_under(base, spec, cells, tmp_path).as_json()
    for name, (value, says) in RESOURCES.items():
        after = order_under(replace(base, **{name: value}), spec, cells, tmp_path).as_json()
        assert {field for field in after if after[field] != before[field]} == says, name


def epochs_of(order: Order) -> list[dict[str, object]]:
    """A trial's epochs, but for the time they took."""
    events = [event for events in worker.run((order,)) for event in events]
    last = events[-1]
    assert last.outcome.status == "finished", last
    timed = {"train_seconds", "dev_seconds", "finished_at"}
    return [event.epoch.model_dump(exclude=timed) for event in events if event.epoch is not None]


@pytest.mark.parametrize("mode", ["feature_extraction", "fine_tuning"])
def test_another_storage_and_another_room_for_states_that_fit_give_the_same_bits(spec, cells, tmp_path, mode):
    cells = [cell for cell in cells if cell.mode == mode]
    places = ({"storage": "here"}, {"storage": "elsewhere"}, {"storage": "third", "cache_budget": 10**7})
    others = [Resources(gpus_per_trial=0.0, **changes) for changes in places]  # type: ignore[arg-type]
    found = [epochs_of(order_under(resources, spec, cells, tmp_path)) for resources in others]
    assert found[0] == found[1] == found[2]


def test_rounding_the_states_that_do_not_fit_is_refused_under_the_same_name(spec, cells):
    then, now = (asked_sweep(spec, cells, overflow) for overflow in ("on_the_fly", "bf16"))
    assert differences(then, now) == ["--cache-overflow on_the_fly → bf16"]


def test_a_final_on_a_dev_sample_is_compared_with_the_sample_s_score():
    facts = {"seed": 0, "dev": 0.5, "finals": [{"seed": 1, "dev": 0.7, "dev_of_sample": 0.6}, {"seed": 2, "dev": 0.8}]}
    assert [recorded_dev(facts, seed) for seed in (0, 1, 2, 3)] == [0.5, 0.6, 0.8, None]


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
    wanted = (BESIDE_OTHERS,) if device != "cpu" and is_frozen else ()
    assert reasons({"code": "1+a"}, "1+a", {}, {"device": device}, is_frozen) == wanted
    other = reasons({"code": "1+b"}, "1+a", {}, {"device": device}, is_frozen)
    assert other == ("Meltpoint's code: 1+b → 1+a",), "another reason is enough"


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
