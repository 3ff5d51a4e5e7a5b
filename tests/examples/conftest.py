"""Finished sweeps for the examples' scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.reports.conftest import train_sweep  # noqa: F401 - a fixture

SETTING = {"learning_rate": 1e-3, "dropout": 0.1, "epochs": 2, "batch_size": 8, "precision": "fp32"}


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, tiny_encoder: str, tiny_task: Path, train_sweep: Any  # noqa: F811
) -> Path:  # fmt: skip
    """The folder of a sweep of one cell and two seeds, trained without Ray."""
    spec = SweepSpec(
        name="small", encoders=(tiny_encoder,), modes=("fine_tuning",), tasks=(str(tiny_task),),
        head="native", trials=1, seeds=2,
    )  # fmt: skip
    place: Path = train_sweep(tmp_path_factory.mktemp("trained"), spec, SETTING)
    return place / "small"
