"""Optuna with the plain loop: one process, one trial after the other, each on all cores of the job."""

from __future__ import annotations

import time

import optuna

from meltpoint.benchmarks.job import Job
from meltpoint.benchmarks.rivals.answer import Answer, answer
from meltpoint.benchmarks.rivals.plain_loop import train_once


def search(job: Job) -> Answer:
    """Run the whole search."""

    def objective(trial: optuna.Trial) -> float:
        rate = trial.suggest_categorical("learning_rate", job.learning_rates)
        return train_once(job, float(rate), threads=job.slots)

    sampler = optuna.samplers.GridSampler({"learning_rate": list(job.learning_rates)}, seed=job.seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    began = time.time()
    study.optimize(objective, n_trials=len(job.learning_rates), n_jobs=1)
    dev = {trial.params["learning_rate"]: trial.value for trial in study.trials if trial.value is not None}
    return Answer(dev={rate: dev[rate] for rate in job.learning_rates}, first_began=began, last_ended=time.time())


if __name__ == "__main__":
    answer(search)
