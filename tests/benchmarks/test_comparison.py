"""Parts of a comparison: equal settings on both sides, alternating order, wall time."""

from __future__ import annotations

import json
import sys

import pytest

from meltpoint import tasks
from meltpoint.adapters import encoders, settings
from meltpoint.adapters.model import Member, build
from meltpoint.benchmarks.against_trainer import (
    RATES,
    Answer,
    Job,
    Measurement,
    alternate,
    learning_rates,
    ledger_answer,
    measurement,
    run_timed,
    sweep_command,
)
from meltpoint.search_spaces import files
from meltpoint.sweeps.ledger.ledger import Ledger


@pytest.fixture
def toy_job(tiny_encoder: str) -> Job:
    """Two trials of two epochs on a few generated sentences."""
    return Job(
        encoder=tiny_encoder, mode="feature_extraction", task="demo_sentiment", data_dir=None, max_train_examples=24,
        learning_rates=(1e-3, 1e-2), batch_size=8,
    )  # fmt: skip


@pytest.mark.parametrize("mode", sorted(RATES))
def test_the_space_that_meltpoint_searches_holds_exactly_the_job_s_settings(mode, toy_job, tmp_path):
    job = toy_job.model_copy(update={"mode": mode, "learning_rates": learning_rates(mode, 5)})
    path = tmp_path / "space.yaml"
    path.write_text(json.dumps({"modes": {mode: job.space()}}))
    allowed = {parameter.name: parameter for parameter in settings.parameters(mode, "linear")}
    space = files.load(
        str(path), allowed, mode=mode, every={parameter.name: parameter for parameter in settings.all_parameters()}
    )
    completed = sorted(
        (settings.complete(point, mode, "linear") for point in space.points()), key=lambda one: one["learning_rate"]
    )
    assert completed == [settings.complete(job.setting(each), mode, "linear") for each in sorted(job.learning_rates)]


def test_the_side_that_begins_changes_with_each_round():
    turns = []

    def side(name, seconds):
        def run(seed):
            turns.append((name, seed))
            return Measurement(seconds, {})

        return run

    compared = alternate("claim", "them", side("ours", 2.0), side("theirs", 6.0), repeats=3)
    rounds = [("ours", "theirs"), ("theirs", "ours"), ("ours", "theirs")]
    assert turns == [(side, seed) for seed, sides in enumerate(rounds) for side in sides]
    assert compared.ratio == {"median": 3.0, "low": 3.0, "high": 3.0}
    runs = [iter(Measurement(seconds, {}) for seconds in side) for side in ((1.0, 2.0, 4.0), (8.0, 4.0, 4.0))]
    compared = alternate("claim", "them", *(lambda _, side=side: next(side) for side in runs), repeats=3)
    assert compared.ratio == {"median": 2.0, "low": 1.0, "high": 8.0}, "of neighbouring runs"


def test_a_side_that_fails_or_lacks_trials_stops_the_comparison_with_its_last_words(toy_job, tmp_path):
    ledger = Ledger(tmp_path)
    ledger.create()
    with pytest.raises(RuntimeError, match="0 of 2 trials finished: some are missing"):
        ledger_answer(toy_job, ledger.trials)
    with pytest.raises(RuntimeError, match="status 3:\nno such thing"):
        run_timed([sys.executable, "-c", "import sys; print('no such thing', file=sys.stderr); sys.exit(3)"])


def test_the_figures_of_a_run_are_its_phases_and_for_each_cell_the_mean_of_its_settings():
    answer = Answer(dev={1e-3: 0.6, 1e-2: 0.8}, first_began=102.0, last_ended=104.0)
    other = Answer(dev={1e-3: 0.9}, first_began=104.0, last_ended=107.0)
    run = measurement(100.0, 10.0, {"lora, sst2": answer, "lora, mrpc": other})
    phases = [run.details[name] for name in ("start-up, s", "trials, s", "after the last trial, s")]
    assert phases == [2.0, 5.0, 3.0]
    assert sum(phases) == run.seconds
    assert run.details["lora, sst2: dev, mean over the settings"] == pytest.approx(0.7)
    assert run.details["lora, sst2: dev, standard error"] == pytest.approx(0.1)  # s = 0.1414, n = 2
    assert run.details["lora, mrpc: dev, best"] == 0.9
    assert run.details["lora, mrpc: trials, s"] == 3.0


def test_one_sweep_searches_every_mode_and_task_once(toy_job, tmp_path):
    cells = [(mode, task) for mode in ("lora", "fine_tuning") for task in ("a/task.yaml", "b/task.yaml")]
    jobs = [toy_job.model_copy(update={"mode": mode, "task": task}) for mode, task in cells]
    words = sweep_command(jobs, tmp_path, tmp_path)
    assert words[words.index("--mode") + 1] == "lora,fine_tuning"
    assert words[words.index("--task") + 1] == "a/task.yaml,b/task.yaml"


@pytest.mark.parametrize("mode", ["feature_extraction", "lora"])
def test_the_rival_s_model_has_the_same_head_and_trains_as_many_weights_as_meltpoint(mode, toy_job):
    from meltpoint.benchmarks.trainer_search import build_model

    job = toy_job.model_copy(update={"mode": mode})
    task = tasks.get(job.task)
    encoder = encoders.load(encoders.resolve(job.encoder, task.kind))
    setting = settings.complete(job.setting(1e-3), mode, "linear")
    ours, theirs = build(encoder, task, mode, "linear", [Member(setting, 0)], "cpu"), build_model(job, task.outputs)
    shapes = sorted(tuple(parameter.shape[1:]) for parameter in ours.head.parameters())  # of the stack's only member
    assert sorted(tuple(p.shape) for p in (theirs.linear.weight, theirs.linear.bias)) == shapes
    sizes = [sum(one.numel() for one in model.parameters() if one.requires_grad) for model in (ours, theirs)]
    head = sum(one.numel() for one in theirs.linear.parameters())
    assert sizes[1] == (sizes[0] if mode == "lora" else head) > 0
    assert theirs.dropout.p == job.dropout
    theirs.train()
    assert theirs.encoder.training == (mode == "lora")
