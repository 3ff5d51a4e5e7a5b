"""A cell's best finalist as an MLflow model: `mlflow.pyfunc.load_model(…).predict(frame)` where this package is."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import CellKey
from meltpoint.sweeps.results.export import export_model
from meltpoint.sweeps.results.predicting import frame_columns
from meltpoint.sweeps.results.summary import SweepSummary
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.tasks.core.task import Kind

if TYPE_CHECKING:
    from mlflow.models import ModelSignature

CODE = Path(__file__).with_name("mlflow_model_code.py")
ARTIFACT = "finalist"
"""The exported model's folder, among the MLflow model's artifacts."""


@contextmanager
def finalist_models(ledger: Ledger, summary: SweepSummary) -> Iterator[tuple[dict[CellKey, Path], list[str]]]:
    """MLflow models of the best finalists of every cell that has one, in folders that last as long as the block.

    Yields:
        cell → folder; and a line for each cell whose model could not be made.
    """
    models: dict[CellKey, Path] = {}
    troubles: list[str] = []
    beside = ledger.folder if isinstance(ledger.folder, Path) else None  # /tmp may be small
    with tempfile.TemporaryDirectory(prefix=".models-", dir=beside) as scratch:
        for cell in summary.cells:
            name = cell_name(*cell.header.key)
            if cell.kept is None:
                continue
            try:
                exported = export_model(ledger, summary, name, Path(scratch) / "exported")
                save_model(Path(scratch) / name, exported, cell.header.kind)
            except (ValueError, OSError) as error:
                troubles.append(f"{'.'.join(cell.header.key)}: no MLflow model ({error})")
            else:
                models[cell.header.key] = Path(scratch) / name
        yield models, troubles


def save_model(folder: Path, exported: Path, kind: Kind | str) -> None:
    """Write an MLflow model that holds an exported model, and no pickle.

    Args:
        folder: the folder to write, which does not exist.
        exported: a folder of `adapters.exported_model`.
        kind: the task's kind.
    """
    import mlflow.pyfunc

    logging.getLogger("mlflow.models.model").setLevel(logging.ERROR)  # it advises an input example, for a check only
    version = metadata.version("mlflow")
    mlflow.pyfunc.save_model(
        str(folder), python_model=str(CODE), artifacts={ARTIFACT: str(exported)}, signature=_signature(kind),
        pip_requirements=["meltpoint", f"mlflow=={version}"],
    )  # fmt: skip


def _signature(kind: Kind | str) -> ModelSignature:
    """The columns that the model reads, and the one that it writes for any kind of task."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from mlflow.types.schema import Array

    is_words = kind == "sequence_labelling"
    read = [ColSpec(Array(DataType.string) if is_words else DataType.string, name) for name in frame_columns(kind)]
    return ModelSignature(inputs=Schema(read))
