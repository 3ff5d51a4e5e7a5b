"""MLflow on a real PostgreSQL, with users, under eight sweeps: nothing is lost and nothing is there twice."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from meltpoint.tests.cluster import mlflow_postgres


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(mlflow_postgres.missing()), reason=mlflow_postgres.missing() or "nothing is missing")
def test_eight_sweeps_have_each_trial_once_though_the_server_and_its_database_are_killed() -> None:
    with tempfile.TemporaryDirectory() as made:  # not pytest's, which another pytest closes to PostgreSQL's user
        folder = Path(made)
        folder.chmod(0o755)
        said = mlflow_postgres.run(folder)
    assert max(writer["longest_ms"] for writer in said["writers"]) < 500
