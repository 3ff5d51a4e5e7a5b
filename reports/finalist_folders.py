"""The best finalists of a sweep's cells as folders, each with its model card."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meltpoint.reports.cards.cell_card import cell_card
from meltpoint.reports.recommendation import Recommendation
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.finalist_export import KEPT, Form, export_finalist
from meltpoint.sweeps.results.summary import SweepSummary
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.storage.files import StoragePath


def asked_forms(model: bool, transformers: bool, onnx: bool) -> list[Form]:
    """The forms that the options of `export` ask for."""
    asked: dict[Form, bool] = {"model": model, "transformers": transformers, "onnx": onnx}
    return [form for form, is_asked in asked.items() if is_asked]


def export_recommended(ledger: Ledger, known: Recommendation, summary: SweepSummary) -> StoragePath:
    """Write the recommended finalist of a task into the sweep's folder, where `predict NAME` finds it.

    Raises:
        ValueError: its weights were deleted or are damaged.
    """
    cell = known.winner.cell
    card = cell_card(summary, cell, "model")
    return export_finalist(ledger, summary, cell_name(*cell.header.key), ledger.folder, card=card, name=KEPT)


def export_finalists(
    ledger: Ledger, summary: SweepSummary, out: StoragePath, only: str | None, forms: Sequence[Form],
    tell: Callable[[StoragePath], None],
) -> None:  # fmt: skip
    """Write the best finalist of each cell, or of one, in some forms.

    Args:
        only: one cell's name (E.M.T), or None for all.
        tell: gets each folder once it is written.

    Raises:
        ValueError: a finalist cannot be written; it keeps no other one from being written.
    """
    cells = {cell_name(*cell.header.key): cell for cell in summary.cells}
    refused = []
    for form in forms:
        for name, cell in cells.items():
            if only not in (None, name):
                continue
            try:
                tell(export_finalist(ledger, summary, name, out, form, cell_card(summary, cell, form)))
            except ValueError as error:
                refused.append(str(error))
    if refused:
        raise ValueError(" ".join(refused))
