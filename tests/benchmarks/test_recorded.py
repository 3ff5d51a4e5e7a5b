"""Replayed searches: what a run is charged, what it may know, and recordings that are read back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import optuna
import pytest

from meltpoint import tasks
from meltpoint.benchmarks import recorded
from meltpoint.benchmarks.recorded import RecordedCell, draws, figures, of_opda, siblings_of, stopped, winners
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec


@pytest.fixture(autouse=True)
def quiet_optuna() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def cell_of(encoder: str = "a", task: str = "one", count: int = 200) -> RecordedCell:
    """Scores that fall with the distance of the rate from 1e-3; a quarter of the schedule tells them apart."""
    random = np.random.default_rng(5)
    settings = [{"rate": float(10 ** random.uniform(-5, -1)), "decay": bool(random.integers(2))} for _ in range(count)]
    dev = np.array([1 - 0.1 * abs(np.log10(setting["rate"]) + 3) for setting in settings])
    return RecordedCell(encoder, "fine_tuning", task, settings, dev, dev - 0.01, dev - 0.1, np.ones(count))


def test_sixteen_random_trials_reach_their_own_median_in_half_of_the_runs_for_sixteen_trials():
    found = figures(cell_of(), [], recorded.SEARCHES["random, 16"], 400)
    assert found["reached"] == pytest.approx(0.5, abs=0.08)
    assert found["trials"] == pytest.approx(16)


@pytest.mark.parametrize(
    ("name", "least", "trials"), [("3 winners", 0.4, 3), ("3 winners, then TPE, 8 in all", 0.4, 8)]
)
def test_winners_of_a_sibling_that_ranks_alike_reach_it_with_fewer(name: str, least: float, trials: int):
    found = figures(cell_of(), [cell_of("b")], recorded.SEARCHES[name], 40)
    assert found["reached"] > least
    assert found["trials"] == pytest.approx(trials)


def test_a_setting_is_never_taken_twice_and_one_of_another_cell_becomes_the_nearest():
    cell, sibling = cell_of(), cell_of("b", count=50)
    found = winners(cell, [sibling], 10, np.random.default_rng(0))
    assert len(set(found)) == 10
    best = sibling.settings[int(sibling.dev.argmax())]
    (one,) = winners(cell, [cell_of("b", count=16)], 1, np.random.default_rng(0))
    assert cell.settings[one]["decay"] in (True, False)
    assert cell.nearest(best, []) == int(((cell.places - cell.place(best)) ** 2).sum(1).argmin())
    assert set(draws(cell, 150, np.random.default_rng(0), found)).isdisjoint(found)


def test_a_stopped_trial_costs_a_quarter_and_the_best_early_ones_go_on():
    cell = cell_of()
    end = stopped(cell, range(8), 2)
    assert end.work == pytest.approx(2 + 6 * 0.25)
    assert sorted(end.finished) == sorted(int(one) for one in np.argsort(-cell.early[:8])[:2])


def test_siblings_are_of_the_same_task_and_of_other_tasks_only_without_any():
    one, other, elsewhere = cell_of(), cell_of("b"), cell_of(task="two")
    assert siblings_of(one, [one, other, elsewhere]) == [other]
    assert siblings_of(one, [one, elsewhere, cell_of("b", "two")]) == [elsewhere]


def test_a_row_of_opda_gives_the_best_checkpoint_its_mismatched_score_and_the_early_best(tmp_path: Path):
    row = {
        "num_train_epochs": 2, "train_batch_size": 32, "total_model_steps": 8000, "learning_rate": 1e-5,
        "warmup_steps": 2000, "cls_drop_out": 0.1,
        "learning_curves": {"matched": [[1000, 0.5], [2000, 0.6], [5000, 0.9], [8000, 0.8]],
                            "mismatched": [[1000, 0.4], [2000, 0.5], [5000, 0.7], [8000, 0.85]]},
    }  # fmt: skip
    path = tmp_path / "deberta-base_tuning.results.jsonl"
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    cell = of_opda(path)
    assert (cell.encoder, cell.dev[0], cell.test[0], cell.early[0], cell.work[0]) == ("deberta-base", 0.9, 0.7, 0.6, 2)
    assert cell.settings[0]["warmup"] == 0.5


def test_a_recording_trains_on_the_same_examples_and_has_test_in_the_place_of_dev(tmp_path: Path):
    data = DataSpec("demo_sentiment", None, 40)
    first, second = (load_training_data(DataSpec(str(path))) for path in recorded.write_tasks(data, tmp_path))
    assert [one.texts for one in first.train] == [one.texts for one in second.train]
    assert [one.label for one in first.train] == [one.label for one in load_training_data(data).train]
    assert first.task.name == second.task.name not in tasks.names()
    assert {one.texts for one in first.dev}.isdisjoint({one.texts for one in second.dev})
