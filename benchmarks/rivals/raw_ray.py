"""Ray Tune with the plain loop: a function trainable, a grid, reused workers."""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from ray import tune

from meltpoint.benchmarks.job import Job
from meltpoint.benchmarks.rivals.answer import Answer, answer


def trainable(config: dict[str, Any]) -> None:
    """Run one trial."""
    from meltpoint.benchmarks.rivals.plain_loop import train_once

    began = time.time()
    dev = train_once(Job.model_validate_json(config["job"]), config["learning_rate"], threads=1)
    tune.report({"dev": dev, "began": began, "ended": time.time()})


def search(job: Job) -> Answer:
    """Run the whole search."""
    ray.init("local", num_cpus=job.slots, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory(prefix="raw-ray-") as folder:
        results = tune.Tuner(
            tune.with_resources(trainable, {"cpu": 1}),
            param_space={"job": job.model_dump_json(), "learning_rate": tune.grid_search(list(job.learning_rates))},
            tune_config=tune.TuneConfig(metric="dev", mode="max", reuse_actors=True),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        ).fit()
    trials = [(result.config, result.metrics) for result in (results[index] for index in range(len(results)))]
    dev = {config["learning_rate"]: metrics["dev"] for config, metrics in trials if config and metrics}
    return Answer(
        dev={rate: dev[rate] for rate in job.learning_rates},
        first_began=min(metrics["began"] for _, metrics in trials if metrics),
        last_ended=max(metrics["ended"] for _, metrics in trials if metrics),
    )


if __name__ == "__main__":
    answer(search)
