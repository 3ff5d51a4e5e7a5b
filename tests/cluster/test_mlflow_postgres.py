"""MLflow on a real PostgreSQL, with users, under eight sweeps: nothing is lost and nothing is there twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from meltpoint.tests.cluster import mlflow_postgres


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(mlflow_postgres.missing()), reason=mlflow_postgres.missing() or "nothing is missing")
def test_eight_sweeps_have_each_trial_once_though_the_server_and_its_database_are_killed(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)  # PostgreSQL's user looks into it
    said = mlflow_postgres.run(tmp_path)
    assert max(writer["longest_ms"] for writer in said["writers"]) < 500
