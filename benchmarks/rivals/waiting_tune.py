"""Plain Ray Tune with trials that only wait: function trainable, random search, reused workers, nothing of Meltpoint's.

Prints a JSON list: the seconds after its start at which each trial ended, in order, and last those of its own end.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from ray import tune

EPOCHS = 2  # reports of a trial


class Ends(tune.Callback):
    """Notes when trials end."""

    def __init__(self) -> None:
        self.began, self.ends = time.perf_counter(), list[float]()

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial has ended."""
        self.ends.append(time.perf_counter() - self.began)


def waiting(config: dict[str, Any]) -> None:
    """A trial."""
    for _ in range(EPOCHS):
        time.sleep(config["seconds"] / EPOCHS)
        tune.report({"score": config["learning_rate"]})


def search(trials: int, seconds: float, workers: int) -> list[float]:
    """Run the trials; when each ended, and when the search did."""
    ray.init("local", include_dashboard=False, log_to_driver=False)
    share = ray.cluster_resources()["CPU"] / workers  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory(prefix="waiting-tune-") as folder:
        tuner = tune.Tuner(
            tune.with_resources(waiting, {"cpu": share}),
            param_space={"seconds": seconds, "learning_rate": tune.loguniform(1e-5, 1e-3)},
            tune_config=tune.TuneConfig(num_samples=trials, metric="score", mode="max", reuse_actors=True),
            run_config=tune.RunConfig(storage_path=folder, verbose=0, callbacks=[ends := Ends()]),
        )
        tuner.fit()
    return [*ends.ends, time.perf_counter() - ends.began]


def main() -> None:
    """Run the search and print when its trials ended."""
    parser = argparse.ArgumentParser(prog="waiting_tune", description=__doc__)
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--workers", type=int, required=True)
    options = parser.parse_args()
    print(json.dumps(search(options.trials, options.seconds, options.workers)))


if __name__ == "__main__":
    main()
