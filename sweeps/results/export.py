"""Export: each cell's best setting as a search space with one point, and a finalist's model as a folder."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Literal

from meltpoint.adapters import settings
from meltpoint.adapters.hyperparameters import Value
from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.specification.cells import cell_name, data_spec, word_of
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.storage.files import StoragePath, write
from meltpoint.sweeps.storage.layout import cache_folder
from meltpoint.sweeps.worker.recorded import versions
from meltpoint.sweeps.worker.work_order import Order


def export_cells(
    ledger: Ledger,
    summary: SweepSummary,
    out: StoragePath,
    only: str | None = None,
    form: Literal["yaml", "json"] = "yaml",
) -> list[StoragePath]:
    """Write the best setting of every cell that has one to `E.M.T.yaml` (or `.json`).

    Args:
        ledger: the sweep's ledger.
        summary: the sweep's results.
        out: the folder to write to.
        only: one cell's name (E.M.T), or None for all.
        form: the files' format.

    Raises:
        ValueError: there is no cell with that name, or it has no best setting yet.
    """
    chosen = [cell for cell in summary.cells if only in (None, cell_name(*cell.header.key))]
    if only is not None and not chosen:
        names = ", ".join(cell_name(*cell.header.key) for cell in summary.cells)
        raise ValueError(f"No cell '{only}' in sweep '{summary.name}'. There is: {names}.")
    if only is not None and chosen[0].best is None:
        raise ValueError(f"Cell '{only}' of sweep '{summary.name}' has no finished trial yet; see `meltpoint status`.")
    written = []
    for cell in chosen:
        if cell.best is not None:
            path = out / f"{cell_name(*cell.header.key)}.{form}"
            space = best_space(summary, cell, cell.best)
            write(path, space.dump() if form == "yaml" else as_json(space))
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
    names = {
        "encoder": summary.spec.named_encoder(head.encoder),
        "mode": head.mode,
        "task": head.task,
        "head": head.head,
    }
    return replace(space, cell=names, provenance=provenance(summary.spec, cell, best))


def provenance(spec: SweepSpec, cell: CellSummary, best: TrialRecord) -> dict[str, Any]:
    """The provenance of a best setting: scores, seeds, data, versions, hardware, MLflow runs."""
    data = data_spec(spec, word_of(spec, cell.header.task))
    variant = {"variant": cell.header.variant} if cell.header.variant else {}
    mixed = {"code_versions": [use.as_json() for use in cell.code_uses]} if cell.mixes_code else {}
    return {
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
        "dev_mean": cell.dev.mean if cell.dev else None, "dev_std": cell.dev.std if cell.dev else None,
        "test_mean": cell.test.mean if cell.test else None, "test_std": cell.test.std if cell.test else None,
        **_of_the_default(cell, best),
        "data": {
            "task": data.task, "data_dir": data.data_dir, "max_train_examples": data.max_train_examples,
            "max_dev_examples": data.max_dev_examples, "test_from": data.test_from,
            "fingerprint": best.data_fingerprint, "documents": best.documents_fingerprint,
            "notes": list(cell.header.notes),
        },
        "encoder_fingerprint": best.encoder_fingerprint,
        **({} if best.micro_batch_size is None else {"micro_batch_size": best.micro_batch_size}),
        "hardware": best.hardware.model_dump() if best.hardware else None,
        "code": best.code_version, **mixed, "versions": versions(),
    }  # fmt: skip


def _of_the_default(cell: CellSummary, best: TrialRecord) -> dict[str, Any]:
    """The scores of the published setting's finals; nothing where there are none."""
    dev, test = cell.default_dev, cell.default_test
    if not cell.default_finals:
        return {}
    return {
        "default": {
            "is_best": best.setting == cell.header.published, "seeds": [final.seed for final in cell.default_finals],
            "dev_mean": dev.mean if dev else None, "dev_std": dev.std if dev else None,
            "test_mean": test.mean if test else None, "test_std": test.std if test else None,
        }
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
        data=data_spec(spec, word_of(spec, record.task)), metric=record.metric,
        data_fingerprint=record.data_fingerprint, documents_fingerprint=record.documents_fingerprint,
        encoder_fingerprint=record.encoder_fingerprint, checkpoint=str(ledger.checkpoint(record.id)),
        cpus=hardware.threads, gpus=hardware.gpu_share, cache=cache_folder(ledger.folder.parent),
        micro_batch_size=record.micro_batch_size,
    )  # fmt: skip
