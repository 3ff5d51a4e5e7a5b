from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec, TrainingData


@pytest.fixture(scope="session")
def shared_data(shared: Path) -> Path:
    return shared / "data"


@pytest.fixture(scope="session")
def real(shared_data: Path) -> Callable[[str], TrainingData]:
    """The training data of a real task, loaded once."""

    @cache
    def load(name: str) -> TrainingData:
        return load_training_data(DataSpec(name, str(shared_data)))

    return load
