"""A cell's best finalist as a folder: one of Meltpoint, one of plain transformers, or one with an ONNX file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.export import order_of
from meltpoint.sweeps.results.summary import SweepSummary
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.storage.files import StoragePath, storing_folder, write
from meltpoint.sweeps.worker.work_order import Order

if TYPE_CHECKING:
    from meltpoint.adapters.training.trainer import Trainer

Form = Literal["model", "transformers", "onnx"]
WORDS: Mapping[Form, str] = {
    "model": "a folder of Meltpoint", "transformers": "a folder of transformers", "onnx": "an ONNX file",
}  # fmt: skip
CARD = "README.md"
"""The model card, by the hub's name for it."""
KEPT = "model"
"""The folder of a sweep's recommended model, in the sweep's folder."""


def model_folder(word: str, storage: str) -> Path:
    """The folder of the model that a word names: a sweep whose model was kept, or the folder itself.

    Raises:
        ValueError: it is neither; the message has the models that there are.
    """
    sweep = Path(storage, word)
    found = [path for path in (Path(word), sweep / KEPT) if (path / "meltpoint.json").is_file()]
    if found:
        return found[0]
    if (sweep / "sweep.json").is_file():
        exported = [str(path) for path in sorted(sweep.glob("exports/*.model"))]
        others = f" or name one of {', '.join(exported)};" if exported else ""
        raise ValueError(f"The sweep {word} has kept no model;{others} `meltpoint export {word} --model` writes each.")
    kept = sorted(path.parent.parent.name for path in Path(storage).glob(f"*/{KEPT}/meltpoint.json"))
    there = f"There is: {', '.join(kept)}." if kept else f"`meltpoint tune` keeps one in {storage}/NAME/{KEPT}."
    raise ValueError(f"{word} is no folder of a model, and no sweep in {storage} that has kept one. {there}")


def export_finalist(
    ledger: Ledger, summary: SweepSummary, cell: str, out: StoragePath, form: Form = "model", card: str | None = None,
    name: str = "",
) -> StoragePath:  # fmt: skip
    """Write a cell's best finalist as a folder, `OUT/E.M.T.FORM`.

    Args:
        name: another name for the folder.
        cell: its name (E.M.T).
        form: `adapters.exported_model`, `adapters.exported_transformers` or `adapters.exported_onnx`.
        card: the text of its model card; None for none.

    Raises:
        ValueError: there is no such cell, no finalist, or its weights were deleted; or the finalist has no such form:
            transformers has no class for its head, the extra `onnx` is not installed, or the scores differ.
    """
    final, order, trainer = _finalist(ledger, summary, cell)
    folder = out / (name or f"{cell}.{form}")
    with storing_folder(folder) as local:
        try:
            _save(local, form, order, trainer, _facts(summary, final))
        except ValueError as error:
            raise ValueError(f"Cell '{cell}' cannot be {WORDS[form]}: {error}") from None
        if card is not None:
            write(local / CARD, card)
    return folder


def _save(folder: Path, form: Form, order: Order, trainer: Trainer, facts: Mapping[str, Any]) -> None:
    # Imported here because they take seconds, and every sweep imports this module.
    from meltpoint.adapters.exported_model import save_folder
    from meltpoint.adapters.exported_onnx import save_onnx_folder
    from meltpoint.adapters.exported_transformers import save_transformers_folder

    described = (folder, trainer.model, trainer.data.task, order.mode, order.head, order.setting)
    if form == "model":
        save_folder(*described, trainer.precision, facts)
    elif form == "transformers":
        save_transformers_folder(*described, facts)
    else:
        save_onnx_folder(*described, facts, trainer.data.dev)


def _finalist(ledger: Ledger, summary: SweepSummary, cell: str) -> tuple[TrialRecord, Order, Trainer]:
    """The record, the order and the restored model of a cell's best finalist.

    Raises:
        ValueError: there is no such cell, no finalist, or its weights were deleted or are damaged.
    """
    from meltpoint.sweeps.worker.finalist_scoring import damage_of, restore
    from meltpoint.sweeps.worker.worker import WEIGHTS

    results = next((one for one in summary.cells if cell_name(*one.header.key) == cell), None)
    if results is None:
        names = ", ".join(cell_name(*one.header.key) for one in summary.cells)
        raise ValueError(f"No cell '{cell}' in sweep '{summary.name}'. There is: {names}.")
    final = results.kept
    if final is None or not (ledger.checkpoint(final.id) / WEIGHTS).exists():
        raise ValueError(
            f"Cell '{cell}' has no finalist with weights; finish the sweep, or train its exported setting again."
        )
    order = order_of(summary.spec, final, ledger)
    if (damage := damage_of(order)) is not None:
        raise ValueError(f"Cell '{cell}': {damage}; restore the file, or train its exported setting again.")
    return final, order, restore([order])


def _facts(summary: SweepSummary, final: TrialRecord) -> dict[str, Any]:
    """The sweep, the trial and the scores that an exported finalist's folder names."""
    return {
        "sweep": summary.name, "trial": final.id, "seed": final.seed, "dev": final.dev, "test": final.test,
        "code": final.code_version,
    }  # fmt: skip
