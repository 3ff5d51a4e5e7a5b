"""Hand-made parameters of a small cell: one of every type, a trick with a switch, a schedule by choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.search_spaces.space import Space

ALLOWED: Mapping[str, Parameter] = {
    parameter.name: parameter
    for parameter in (
        Parameter("learning_rate", 1e-3, "", 0.0, 1.0),
        Parameter("dropout", 0.1, "", 0.0, 0.95),
        Parameter("epochs", 3, "", 1, 1000),
        Parameter("batch_size", 32, "", 1, 4096),
        Parameter("schedule", "constant", "", choices=("constant", "slanted_triangular", "linear_warmup_decay")),
        Parameter("slanted_triangular.ratio", 32.0, "", 1.0, 1e6),
        Parameter("gradual_unfreezing", False, ""),
        Parameter("gradual_unfreezing.epochs_per_group", 1.0, "", 0.01, 100.0),
    )
}


@pytest.fixture(scope="session")
def allowed() -> Mapping[str, Parameter]:
    return ALLOWED


@pytest.fixture(scope="session")
def make() -> Callable[..., Space]:
    """A factory of spaces from a mapping of entries."""
    return lambda declared, **more: Space.of(declared, ALLOWED, **more)


@pytest.fixture
def space_file(tmp_path: Path) -> Callable[[str], Path]:
    """A factory of files from their texts."""

    def write(text: str | bytes) -> Path:
        path = tmp_path / "my_space.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write
