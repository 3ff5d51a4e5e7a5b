"""Parts of a comparison: equal settings on both sides, alternating order, wall time."""

from __future__ import annotations

import sys

import pytest

from meltpoint import tasks
from meltpoint.adapters import encoders, settings
from meltpoint.adapters.model import Member, build
from meltpoint.benchmarks.against_trainer import (
    Finished,
    Measurement,
    alternate,
    ledger_answer,
    measurement,
    run_timed,
    sweep_command,
)
from meltpoint.benchmarks.job import RATES, Answer, learning_rates
from meltpoint.search_spaces import files
from meltpoint.sweeps.ledger.ledger import Ledger


@pytest.mark.parametrize("mode", sorted(RATES))
def test_the_space_that_meltpoint_searches_holds_exactly_the_job_s_settings(mode, toy_job, tmp_path):
    job = toy_job.model_copy(update={"mode": mode, "learning_rates": learning_rates(mode, 5)})
    path = tmp_path / "space.yaml"
    path.write_text(job.space())
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
        def run():
            turns.append(name)
            return Measurement(seconds, {})

        return run

    compared = alternate("claim", "them", side("ours", 2.0), side("theirs", 6.0), repeats=3)
    assert turns == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert (compared.ratio.median, compared.ratio.low, compared.ratio.high) == (3.0, 3.0, 3.0)
    runs = [iter(Measurement(seconds, {}) for seconds in side) for side in ((1.0, 2.0, 4.0), (8.0, 4.0, 4.0))]
    compared = alternate("claim", "them", *(lambda side=side: next(side) for side in runs), repeats=3)
    assert (compared.ratio.low, compared.ratio.median, compared.ratio.high) == (1.0, 2.0, 8.0), "of neighbouring runs"


def test_a_side_that_fails_or_lacks_trials_stops_the_comparison_with_its_last_words(toy_job, tmp_path):
    ledger = Ledger(tmp_path)
    ledger.create()
    with pytest.raises(RuntimeError, match="0 of 2 trials finished: some are missing"):
        ledger_answer(toy_job, ledger.trials)
    with pytest.raises(RuntimeError, match="status 3:\nno such thing"):
        run_timed([sys.executable, "-c", "import sys; print('no such thing', file=sys.stderr); sys.exit(3)"])


def test_the_figures_of_a_run_are_its_phases_and_the_mean_of_its_settings():
    answer = Answer(dev={1e-3: 0.6, 1e-2: 0.8}, first_began=102.0, last_ended=107.0)
    run = measurement(Finished(began=100.0, seconds=10.0), answer)
    phases = [run.details[name] for name in ("start-up, s", "trials, s", "after the last trial, s")]
    assert phases == [2.0, 5.0, 3.0]
    assert sum(phases) == run.seconds
    assert run.details["dev, mean over the settings"] == pytest.approx(0.7)
    assert run.details["dev, standard error"] == pytest.approx(0.1)  # s = 0.1414, n = 2


def test_the_sweep_is_asked_for_the_job_s_data_and_all_its_settings(toy_job, tmp_path):
    words = sweep_command(toy_job, tmp_path / "space.yaml", tmp_path)
    asked = {word: words[words.index(word) + 1] for word in ("--trials", "--max-train-examples", "--searcher")}
    assert asked == {"--trials": "2", "--max-train-examples": "24", "--searcher": "grid"}
    assert "--data-dir" not in words


def test_the_rival_s_model_starts_from_the_same_head_as_meltpoint_s(toy_job):
    from meltpoint.benchmarks.trainer_search import build_model

    task = tasks.get(toy_job.task)
    encoder = encoders.load(encoders.resolve(toy_job.encoder, task.kind))
    setting = settings.complete(toy_job.setting(1e-3), toy_job.mode, "linear")
    ours = build(encoder, task, toy_job.mode, "linear", [Member(setting, 0)], "cpu").head
    theirs = build_model(toy_job, task.outputs)
    shapes = sorted(tuple(parameter.shape[1:]) for parameter in ours.parameters())  # of the stack's only member
    assert sorted(tuple(p.shape) for p in (theirs.linear.weight, theirs.linear.bias)) == shapes
    assert theirs.dropout.p == toy_job.dropout
    theirs.train()
    assert not theirs.encoder.training
    assert [name for name, p in theirs.named_parameters() if p.requires_grad] == ["linear.weight", "linear.bias"]


def test_under_lora_the_rival_trains_as_many_weights_as_meltpoint(toy_job):
    from meltpoint.benchmarks.trainer_search import build_model

    job = toy_job.model_copy(update={"mode": "lora"})
    task = tasks.get(job.task)
    setting = settings.complete(job.setting(1e-3), job.mode, "linear")
    encoder = encoders.load(encoders.resolve(job.encoder, task.kind))
    ours = build(encoder, task, job.mode, "linear", [Member(setting, 0)], "cpu")
    sizes = [
        sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        for model in (ours, build_model(job, task.outputs))
    ]
    assert sizes[0] == sizes[1] > 0
