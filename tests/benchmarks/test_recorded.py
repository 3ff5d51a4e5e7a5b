"""Replayed searches: what a run is charged, what it may know, and recordings that are read back."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import optuna
import pytest

from meltpoint import tasks
from meltpoint.benchmarks.recorded import (
    RECORDINGS,
    SEARCHES,
    by_grid,
    figures,
    side_by_side,
    stopped,
    winners,
)
from meltpoint.benchmarks.recorded_cells import (
    RecordedCell,
    best_together,
    of_opda,
    read_cell,
    siblings_of,
    write_cells,
    write_tasks,
)
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec
from meltpoint.tests.sweeps.planning import epoch_of


@pytest.fixture(autouse=True)
def quiet_optuna() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def cell_of(encoder: str = "a", task: str = "one", count: int = 200, epochs: int = 4) -> RecordedCell:
    """Scores that fall with the distance of the rate from 1e-3; a quarter of the schedule tells them apart."""
    random = np.random.default_rng(5)
    settings = [{"rate": float(10 ** random.uniform(-5, -1)), "decay": bool(random.integers(2))} for _ in range(count)]
    dev = np.array([1 - 0.1 * abs(np.log10(setting["rate"]) + 3) for setting in settings])
    early, ones = dev - 0.1, np.ones(count)
    return RecordedCell(encoder, "fine_tuning", task, settings, dev, dev - 0.01, early, epochs * ones, ones)


def figures_of(name: str, cell: RecordedCell, others: list[RecordedCell], runs: int) -> dict[str, float]:
    found = figures(cell, others, SEARCHES[name], runs, cell)
    assert found is not None
    return found


def test_sixteen_random_trials_reach_their_own_median_in_half_of_the_runs_for_sixteen_trials():
    found = figures_of("random, 16", cell_of(), [], 400)
    assert found["reached"] == pytest.approx(0.5, abs=0.08)
    assert found["trials"] == pytest.approx(16)


@pytest.mark.parametrize(
    ("name", "least", "trials"),
    [
        ("3 winners, then TPE, 8 in all", 0.4, 8),
        ("3 shipped, then TPE, 8 in all", 0.4, 8),
    ],
)
def test_winners_of_a_sibling_that_ranks_alike_reach_it_with_fewer(name: str, least: float, trials: int):
    found = figures_of(name, cell_of(), [cell_of("b"), cell_of("b", "two")], 40)
    assert found["reached"] > least
    assert found["trials"] == pytest.approx(trials)


def test_a_setting_is_never_taken_twice_and_one_of_another_cell_becomes_the_nearest():
    cell, sibling = cell_of(), cell_of("b", count=50)
    found = winners(cell, [sibling], np.random.default_rng(0), count=10)
    assert len(set(found)) == 10
    best = sibling.settings[int(sibling.dev.argmax())]
    (one,) = winners(cell, [cell_of("b", count=16)], np.random.default_rng(0), count=1)
    assert cell.settings[one]["decay"] in (True, False)
    assert cell.nearest(best, []) == int(((cell.places - cell.place(best)) ** 2).sum(1).argmin())


def test_siblings_side_by_side_tell_each_other_their_best_settings():
    cell, sibling = cell_of(), cell_of("b", count=10)
    sibling.dev[3] = 2.0  # most of its searches find it early
    search = partial(side_by_side, count=8, make=lambda seed: optuna.samplers.RandomSampler(seed))
    assert search(cell, [], np.random.default_rng(0)) is None
    runs = [search(cell, [sibling], np.random.default_rng(run)) for run in range(30)]
    assert {len(set(run.finished)) for run in runs if run} == {8}
    assert np.mean([3 in run.finished for run in runs if run]) > 0.3, "by chance in 0.04 of the runs"


def test_a_stopped_trial_costs_a_quarter_and_the_best_early_ones_go_on():
    cell = cell_of()
    end = stopped(cell, range(8), 2)
    assert end.work == pytest.approx(2 + 6 * 0.25)
    assert sorted(end.finished) == sorted(int(one) for one in np.argsort(-cell.early[:8])[:2])


def test_siblings_are_first_of_the_same_task_then_of_the_same_encoder():
    one, other, elsewhere = cell_of(), cell_of("b"), cell_of(task="two")
    assert siblings_of(one, [elsewhere, other, cell_of("b", "two")]) == [other, elsewhere]


def test_a_shipped_setting_never_comes_from_the_task_itself():
    replay = SEARCHES["3 shipped, then TPE, 8 in all"]
    assert replay(cell_of(), [cell_of("b")], np.random.default_rng(0)) is None
    assert replay(cell_of(), [cell_of("b", "two")], np.random.default_rng(0)) is not None


def test_shipped_settings_complement_each_other():
    """Of two cells with opposite best rates, the second setting is the best of the cell that the first leaves out."""
    low, high = cell_of("b", "two"), cell_of("b", "three")
    rates = np.log10([float(setting["rate"]) for setting in low.settings])
    for cell, best in ((low, -4.5), (high, -1.5)):
        cell.dev[:] = 1 - 0.1 * abs(rates - best)
    chosen = sorted(float(setting["rate"]) for setting in best_together([low, high], 2))
    assert np.log10(chosen) == pytest.approx([-4.5, -1.5], abs=0.2)


def test_a_cell_without_a_schedule_is_not_stopped_early():
    cell = cell_of(epochs=1)
    assert figures(cell, [], SEARCHES["16 begun, 4 kept at a quarter"], 2, cell) is None


def test_a_fixed_value_leaves_its_settings_and_the_goal_of_the_whole_space():
    whole = cell_of()
    kept = whole.only("decay", True)
    assert set(kept.ranges) == {"rate"}
    assert 0 < len(kept.dev) == len(kept.settings) < len(whole.dev)
    assert all(setting["decay"] for setting in kept.settings)
    assert kept.only("other", 1) is kept
    poor = whole.only("decay", False)
    poor.dev[:] = 0
    assert figures(poor, [], SEARCHES["random, 8"], 5, whole)["reached"] == 0


def test_a_grid_has_eight_points_over_the_whole_range():
    cell = cell_of()
    end = by_grid(cell, [], np.random.default_rng(0))
    assert end is not None
    rates = sorted(float(cell.settings[one]["rate"]) for one in end.finished)
    assert len(set(end.finished)) == 8
    assert rates[0] < 1e-4
    assert rates[-1] > 1e-2


def test_a_row_of_opda_gives_the_best_checkpoint_its_mismatched_score_and_the_early_best(tmp_path: Path):
    row = {
        "num_train_epochs": 2, "train_batch_size": 32, "total_model_steps": 8000, "learning_rate": 1e-5,
        "warmup_steps": 2000, "cls_drop_out": 0.1,
        "learning_curves": {"matched": [[1000, 0.5], [2000, 0.6], [5000, 0.9], [8000, 0.8]],
                            "mismatched": [[1000, 0.4], [2000, 0.5], [5000, 0.7], [8000, 0.85]]},
    }  # fmt: skip
    path = tmp_path / "deberta-base.results.jsonl"
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    cell = of_opda(path)
    assert (cell.encoder, cell.dev[0], cell.test[0], cell.work[0]) == ("deberta-base", 0.9, 0.7, 2)
    assert cell.early[0] == 0.6
    assert cell.settings[0]["warmup"] == 0.5


def test_a_recording_trains_on_the_same_examples_and_has_test_in_the_place_of_dev(tmp_path: Path):
    data = DataSpec("demo_sentiment", None, 40)
    first, second = (load_training_data(DataSpec(str(path))) for path in write_tasks(data, tmp_path))
    assert [one.texts for one in first.train] == [one.texts for one in second.train]
    assert [one.label for one in first.train] == [one.label for one in load_training_data(data).train]
    assert first.task.name == second.task.name not in tasks.names()
    assert {one.texts for one in first.dev}.isdisjoint({one.texts for one in second.dev})


def ledger_of(folder: Path, *curves: list[float], planned: int | None = None) -> Path:
    """Search trials with these dev curves; their settings differ in the rate."""
    ledger = Ledger(folder)
    ledger.create()
    for number, curve in enumerate(curves):
        epochs = [epoch_of(at, score) for at, score in enumerate(curve, 1)]
        ledger.write(TrialRecord.model_validate({
            "id": f"t{number}", "number": number, "encoder": "/models/mpnet", "mode": "fine_tuning",
            "task": "sst2_recorded", "role": "search", "seed": 0, "head": "linear", "metric": "accuracy",
            "setting": {"learning_rate": 10.0**-number, "epochs": planned or len(curve), "batch_size": 32},
            "status": "finished", "dev": max(curve), "epochs": epochs, "best_epoch": 1,
            "data_fingerprint": "d", "code_version": "c", "started_at": 1.0, "seconds": 60.0,
        }))  # fmt: skip
    return folder


def test_a_recording_has_the_test_score_of_the_best_epoch_on_dev_and_is_read_back(tmp_path: Path):
    on_dev = ledger_of(tmp_path / "on_dev", [0.5, 0.7, 0.6, 0.4], [0.2, 0.3])
    on_test = ledger_of(tmp_path / "on_test", [0.9, 0.8, 0.95, 0.9], [0.1, 0.2])
    (path,) = write_cells(on_dev, on_test, tmp_path / "recordings")
    cell = read_cell(path)
    assert cell.name == "mpnet fine_tuning sst2"
    assert sorted(zip(cell.dev, cell.test, cell.early, cell.epochs, strict=True)) == [
        (0.3, 0.2, 0.2, 2), (0.7, 0.8, 0.5, 4)
    ]  # fmt: skip
    assert all("batch_size" not in setting for setting in cell.settings)


def test_a_recording_whose_two_runs_of_a_setting_differ_in_length_is_refused(tmp_path: Path):
    on_dev, on_test = ledger_of(tmp_path / "a", [0.5, 0.7]), ledger_of(tmp_path / "b", [0.5], planned=2)
    with pytest.raises(ValueError, match="record without patience"):
        write_cells(on_dev, on_test, tmp_path / "recordings")


def test_every_recording_can_be_replayed_and_has_256_settings():
    cells = [read_cell(path) for path in RECORDINGS.glob("*.jsonl.gz")]
    assert {cell.mode for cell in cells} >= {"probe", "feature_extraction"}
    for cell in cells:
        assert len(cell.settings) >= (64 if cell.mode == "fine_tuning" else 256)
        assert cell.mode != "probe" or "probe.c" in cell.ranges
        found = figures_of("random, 8", cell, [], 5)
        assert found["trials"] == pytest.approx(8, rel=0.25 if cell.mode == "fine_tuning" else 1e-6)
