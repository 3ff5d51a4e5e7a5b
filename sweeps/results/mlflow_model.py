"""A cell's best finalist as an MLflow model: `mlflow.pyfunc.load_model(…).predict(frame)`, with Meltpoint installed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from meltpoint.adapters.process import quiet_logger
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import CellKey
from meltpoint.sweeps.results.export import CARD, export_finalist
from meltpoint.sweeps.results.predicting import frame_columns
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.task import Kind

if TYPE_CHECKING:
    from mlflow.models import ModelSignature

CODE = Path(__file__).with_name("mlflow_model_code.py")
ARTIFACT = "finalist"
"""The exported model's folder, among the MLflow model's artifacts."""
LONGEST_DESCRIPTION = 5000
"""The length in characters of a version's description that MLflow 3.17 stores (`SqlModelVersion.description`)."""


@contextmanager
def finalist_models(
    ledger: Ledger, summary: SweepSummary, cells: Sequence[CellSummary],
    card: Callable[[SweepSummary, CellSummary], str | None],
) -> Iterator[tuple[dict[CellKey, Path], list[str]]]:  # fmt: skip
    """MLflow models of the cells' best finalists, in temporary folders that are removed after the block.

    Args:
        card: writes a finalist's model card, which becomes `README.md` next to its weights.

    Yields:
        cell → folder; and a line for each cell whose model could not be created.
    """
    models: dict[CellKey, Path] = {}
    troubles: list[str] = []
    if not cells:
        yield models, troubles
        return
    beside = ledger.folder if isinstance(ledger.folder, Path) else None  # /tmp may be small
    with tempfile.TemporaryDirectory(prefix=".models-", dir=beside) as scratch:
        for cell in cells:
            name = cell_name(*cell.header.key)
            if cell.kept is None:
                continue
            try:
                exported = export_finalist(ledger, summary, name, Path(scratch) / "exported", card=card(summary, cell))
                save_model(Path(scratch) / name, Path(str(exported)), cell.header.kind)
            except (ValueError, OSError) as error:
                troubles.append(f"{'.'.join(cell.header.key)}: no MLflow model ({error})")
            else:
                models[cell.header.key] = Path(scratch) / name
        yield models, troubles


def described(model: Path) -> str:
    """A model version's description: the model card of an MLflow model without its front matter; "" without a card.

    Args:
        model: a folder of `save_model`.
    """
    place = f"artifacts/{ARTIFACT}/{CARD}"
    file = model / place
    if not file.is_file():
        return ""
    text = file.read_text(encoding="utf-8")
    body = text.removeprefix("---\n").partition("\n---\n")[2].strip() if text.startswith("---\n") else text.strip()
    if len(body) <= LONGEST_DESCRIPTION:
        return body
    end = f"\n\n… The whole card is `{place}`."
    return body[: LONGEST_DESCRIPTION - len(end)].rpartition("\n")[0] + end


def save_model(folder: Path, exported: Path, kind: Kind | str) -> None:
    """Write an MLflow model that contains an exported model and no pickle.

    Args:
        folder: the folder to write, which does not exist.
        exported: a folder of `adapters.exported_model`.
        kind: the task's kind.
    """
    import mlflow.pyfunc

    version = metadata.version("mlflow")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    with quiet_logger("mlflow"):
        mlflow.pyfunc.save_model(
            str(folder), python_model=str(CODE), artifacts={ARTIFACT: str(exported)}, signature=_signature(kind),
            pip_requirements=["meltpoint", f"mlflow=={version}"],
        )  # fmt: skip


def _signature(kind: Kind | str) -> ModelSignature:
    """The columns that the model reads."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from mlflow.types.schema import Array, TensorSpec

    is_words = kinds.get(kind).labels_words
    read: list[ColSpec | TensorSpec] = [
        ColSpec(Array(DataType.string) if is_words else DataType.string, name) for name in frame_columns(kind)
    ]  # fmt: skip
    return ModelSignature(inputs=Schema(read))
