"""Export of a best setting and its model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from meltpoint.adapters import settings
from meltpoint.adapters.hyperparameters import Value
from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary, spreads_json
from meltpoint.sweeps.specification.cells import data_spec, word_of
from meltpoint.sweeps.specification.provenance import versions
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.storage.files import StoragePath, cache_folder, remove, storing_folder, write
from meltpoint.sweeps.worker.work_order import Order
from meltpoint.tasks.core.files import expanded, schema_line

if TYPE_CHECKING:
    from meltpoint.adapters.hardware import Precision
    from meltpoint.adapters.training.trainer import Trainer


def export_cells(
    summary: SweepSummary, out: StoragePath, only: str | None = None, form: Literal["yaml", "json"] = "yaml"
) -> list[StoragePath]:
    """Write the best setting of every cell that has one to `E.M.T.yaml` (or `.json`).

    Args:
        summary: the sweep's results.
        out: the folder to write to.
        only: one cell's name (E.M.T), or None for all.
        form: the files' format.

    Raises:
        ValueError: no cell has that name, or it has no best setting yet.
    """
    chosen = summary.cells if only is None else [summary.named(only)]
    if only is not None and chosen[0].best is None:
        raise ValueError(f"Cell '{only}' of sweep '{summary.name}' has no finished trial yet; see `meltpoint status`.")
    written = []
    for cell in chosen:
        if cell.best is not None:
            path = out / f"{cell.name}.{form}"
            space = best_space(summary, cell, cell.best)
            write(path, f"{schema_line('space')}\n{space.dump()}" if form == "yaml" else as_json(space))
            written.append(path)
    return written


def best_space(summary: SweepSummary, cell: CellSummary, best: TrialRecord) -> Space:
    """A cell's best setting as a space with one point, with its provenance."""
    setting: dict[str, Value] = dict(best.setting)
    if best.hardware is not None:
        setting["precision"] = best.hardware.precision  # `auto` may resolve differently on another machine
    head = cell.header
    allowed = {parameter.name: parameter for parameter in settings.parameters(head.mode, head.head)}
    space = Space.of(setting, allowed, where="the best setting")
    encoder = summary.spec.named_encoder(head.encoder)
    names = {"encoder": encoder, "mode": head.mode, "task": head.task, "head": head.head}
    return replace(space, cell=names, provenance=provenance(summary.spec, cell, best))


def provenance(spec: SweepSpec, cell: CellSummary, best: TrialRecord) -> dict[str, Any]:
    """The provenance of a best setting: scores, seeds, data, versions, hardware, MLflow runs."""
    data = data_spec(spec, word_of(spec, cell.header.task), cell.header.variant)
    variant = {"variant": cell.header.variant} if cell.header.variant else {}
    default = {
        "default": {
            "is_best": best.setting == cell.header.published, "seeds": [final.seed for final in cell.default_finals],
            **spreads_json(cell.default_dev, cell.default_test),
        }
    } if cell.default_finals else {}  # fmt: skip
    run = next((final for final in cell.finals if final.seed == best.seed), best)  # the one that `train` repeats
    mixed = {"code_versions": [use.as_json() for use in cell.code_uses]} if cell.mixes_code else {}
    return {
        **({"test_round": cell.test_round} if cell.test_round > 1 else {}),
        "sweep": spec.name, **variant, "metric": best.metric, "trial": best.id, "mlflow_run_id": best.mlflow_run_id,
        "seed": best.seed, "dev": best.dev, "best_epoch": best.best_epoch,
        "finals": [
            {
                "seed": f.seed, "dev": f.dev, "test": f.test, "trial": f.id, "mlflow_run_id": f.mlflow_run_id,
                **({"dev_of_sample": f.dev_of_epoch} if f.dev_examples is not None else {}),
                **({"code": f.code_version} if f.code_version != best.code_version else {}),
            }
            for f in cell.finals
        ],
        **spreads_json(cell.dev, cell.test), **default,
        "data": {
            "task": data.task, "data_dir": data.data_dir, "max_train_examples": data.max_train_examples,
            **({"nested": True} if data.nested else {}), "max_dev_examples": data.max_dev_examples,
            "test_from": data.test_from,
            "fingerprint": best.data_fingerprint, "documents": best.documents_fingerprint,
            "notes": list(cell.header.notes),
        },
        "encoder_fingerprint": best.encoder_fingerprint,
        **({} if run.micro_batch_size is None else {"micro_batch_size": run.micro_batch_size}),
        **({"gradient_checkpointing": True} if run.gradient_checkpointing else {}),
        "hardware": best.hardware.model_dump() if best.hardware else None,
        "code": best.code_version, **mixed, "versions": best.versions or versions(),
    }  # fmt: skip


def as_json(space: Space) -> str:
    """A one-point space as JSON, with the same keys as its YAML."""
    points = {name: parameter.start for name, parameter in space.parameters.items()}
    return json.dumps({**space.cell, "parameters": points, "provenance": dict(space.provenance)}, indent=1) + "\n"


def order_of(spec: SweepSpec, record: TrialRecord, ledger: Ledger) -> Order:
    """Reconstruct the order of a finished trial from its record, with the same number of threads."""
    hardware = record.hardware
    assert hardware is not None, "a finished trial's record has its hardware"
    return Order(
        id=record.id, number=record.number, role=record.role, encoder=record.encoder,
        encoder_word=spec.encoder_words().get(record.encoder, ""), mode=record.mode, task=record.task,
        head=record.head, variant=record.variant, seed=record.seed, setting=record.setting,
        data=data_spec(spec, word_of(spec, record.task), record.variant), metric=record.metric,
        data_fingerprint=record.data_fingerprint, documents_fingerprint=record.documents_fingerprint,
        encoder_fingerprint=record.encoder_fingerprint, checkpoint=str(ledger.checkpoint(record.id)),
        cpus=hardware.threads, gpus=hardware.gpu_share, cache=cache_folder(ledger.folder.parent),
        micro_batch_size=record.micro_batch_size, gradient_checkpointing=record.gradient_checkpointing,
    )  # fmt: skip


Form = Literal["model", "transformers", "onnx"]
CARD = "README.md"
"""The model card, by the hub's name for it."""
KEPT = "model"
"""The folder of a sweep's recommended model, inside the sweep's folder."""


def model_folder(word: str, storage: str) -> Path:
    """The folder of a model, given by that folder or by a sweep whose model was kept.

    Raises:
        ValueError: it is neither; the message lists the existing models.
    """
    place = expanded(storage)
    sweep = place / word
    found = [path for path in (Path(word), sweep / KEPT) if (path / "meltpoint.json").is_file()]
    if found:
        return found[0]
    if (sweep / "sweep.json").is_file():
        exported = [str(path) for path in sorted(sweep.glob("exports/*.model"))]
        others = f" name one of {', '.join(exported)}, or" if exported else ""
        raise ValueError(f"Sweep {word} kept no model;{others} run `meltpoint export {word} --model` to write them.")
    kept = sorted(path.parent.parent.name for path in place.glob(f"*/{KEPT}/meltpoint.json"))
    there = f"Such sweeps: {', '.join(kept)}." if kept else f"`meltpoint tune` keeps one in {storage}/NAME/{KEPT}."
    raise ValueError(f"{word} is neither a model folder nor a sweep in {storage} that kept a model. {there}")


def is_kept(sweep: Path, final: TrialRecord | None) -> bool:
    """True if a sweep's folder has the model of this finalist."""
    facts = sweep / KEPT / "meltpoint.json"
    return final is not None and facts.is_file() and json.loads(facts.read_text("utf-8")).get("trial") == final.id


def export_finalist(
    ledger: Ledger, summary: SweepSummary, cell: str, out: StoragePath, form: Form = "model", card: str | None = None,
    name: str = "",
) -> StoragePath:  # fmt: skip
    """Write a cell's best finalist as a folder, `OUT/E.M.T.FORM`.

    Args:
        name: another name for the folder.
        cell: its name (E.M.T).
        form: `model`, or `transformers` or `onnx` of `adapters.exported_transformers`.
        card: the text of its model card; None to write no card.

    Raises:
        ValueError: the cell does not exist or has no finalist, its weights were deleted, or the finalist cannot have
            that form: transformers has no class for its head, the extra `onnx` is not installed, or the scores differ.
    """
    # Imported here because these imports take seconds, and every sweep imports this module.
    from meltpoint.adapters.exported_model import ADAPTER, ENCODER, save_folder
    from meltpoint.adapters.exported_transformers import save_onnx_folder, save_transformers_folder

    final, order, trainer = _finalist(ledger, summary, cell)
    facts = {
        "sweep": summary.name, "trial": final.id, "seed": final.seed, "dev": final.dev, "test": final.test,
        "code": final.code_version,
    }  # fmt: skip
    folder = out / (name or f"{cell}.{form}")
    with storing_folder(folder) as local:
        described = (local, trainer.model, trainer.data.task, order.mode, order.head, order.setting)
        try:
            if form == "model":
                for stale in (ENCODER, ADAPTER):  # another encoder's files would change what this one reads
                    remove(folder / stale)
                assert final.hardware is not None, "a finalist's record has its hardware"
                save_folder(*described, cast("Precision", final.hardware.precision), facts)
            elif form == "transformers":
                save_transformers_folder(*described, facts)
            else:
                save_onnx_folder(*described, facts, trainer.data.dev)
        except ValueError as error:
            raise ValueError(f"Cell '{cell}' cannot be exported with --{form}: {error}") from None
        if card is not None:
            write(local / CARD, card)
    return folder


def _finalist(ledger: Ledger, summary: SweepSummary, cell: str) -> tuple[TrialRecord, Order, Trainer]:
    """The record, the order and the restored model of a cell's best finalist.

    Raises:
        ValueError: the cell does not exist or has no finalist, or its weights were deleted or are damaged.
    """
    from meltpoint.sweeps.worker.finalist_scoring import damage_of, restore
    from meltpoint.sweeps.worker.worker import WEIGHTS

    final = summary.named(cell).kept
    if final is None or not (ledger.checkpoint(final.id) / WEIGHTS).exists():
        raise ValueError(
            f"Cell '{cell}' has no finalist with weights; finish the sweep, or train its exported setting again."
        )
    # Weights are only read and written, which needs no GPU.
    order = order_of(summary.spec, final, ledger).model_copy(update={"gpus": 0.0})
    if (damage := damage_of(order)) is not None:
        raise ValueError(f"Cell '{cell}': {damage}; restore the file, or train its exported setting again.")
    return final, order, restore([order])
