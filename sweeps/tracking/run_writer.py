"""Calls on one run of MLflow that cells and trials share: values, and the end."""

from __future__ import annotations

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from meltpoint.sweeps.tracking.run_contents import STATUS


class RunWriter:
    """Writes to runs.

    Attributes:
        client: MLflow's client.
        begun: run id → when it began, in milliseconds since 1970.
    """

    def __init__(self, client: MlflowClient) -> None:
        self.client = client
        self.begun: dict[str, int] = {}

    def log(self, run_id: str, metrics: list[Metric], params: list[Param], tags: list[RunTag]) -> None:
        """Write to a run; the client splits batches that are too large."""
        self.client.log_batch(run_id, metrics=metrics, params=params, tags=tags, synchronous=True)

    def kill(self, run_id: str, at: int) -> None:
        """End a run whose trial has no end."""
        self.log(run_id, [], [], [RunTag(STATUS, "interrupted")])
        self.end(run_id, "KILLED", at)

    def end(self, run_id: str, status: str, at: int) -> None:
        """End a run, and not before it began: the clock may have been set back since."""
        self.client.set_terminated(run_id, status, max(at, self.begun.get(run_id, 0)))
