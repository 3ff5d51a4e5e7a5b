"""The best finalists of a sweep's cells as folders, each with its model card."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from meltpoint.reports.cards.cell_card import cell_card
from meltpoint.reports.cards.usage import Form
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.export import export_model, export_onnx, export_transformers
from meltpoint.sweeps.results.summary import SweepSummary
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.storage.files import StoragePath

WRITERS: Mapping[Form, Callable[[Ledger, SweepSummary, str, StoragePath, str | None], StoragePath]] = {
    "model": export_model, "transformers": export_transformers, "onnx": export_onnx,
}  # fmt: skip


def asked_forms(model: bool, transformers: bool, onnx: bool) -> list[Form]:
    """The forms that the options of `export` ask for."""
    asked: dict[Form, bool] = {"model": model, "transformers": transformers, "onnx": onnx}
    return [form for form, is_asked in asked.items() if is_asked]


def export_finalists(
    ledger: Ledger, summary: SweepSummary, out: StoragePath, only: str | None, forms: Sequence[Form],
    tell: Callable[[StoragePath], None],
) -> None:  # fmt: skip
    """Write the best finalist of each cell, or of one, in some forms.

    Args:
        only: one cell's name (E.M.T), or None for all.
        tell: gets each folder once it is written.

    Raises:
        ValueError: a finalist cannot be written; a cell that has no plain form keeps no other cell from being written.
    """
    cells = {cell_name(*cell.header.key): cell for cell in summary.cells}
    refused = []
    for form in forms:
        for name, cell in cells.items():
            if only not in (None, name):
                continue
            try:
                tell(WRITERS[form](ledger, summary, name, out, cell_card(summary, cell, form)))
            except ValueError as error:
                if form == "model":
                    raise
                refused.append(str(error))
    if refused:
        raise ValueError(" ".join(refused))
