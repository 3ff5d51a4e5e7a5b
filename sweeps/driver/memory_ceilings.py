"""The memory of GPUs as a sweep learns it: which trials fit, cell by cell and kind by kind, over restarts too."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.worker.gpu_memory import halved
from meltpoint.sweeps.worker.outcome import OutOfMemory, is_full_disk
from meltpoint.sweeps.worker.work_order import Order

FILE = "memory.json"


class CellMemory(BaseModel):
    """The limits that are known of one cell.

    Attributes:
        ceilings: kind of GPU → the largest rows × length that is tried there (`Order.ceilings`).
        alone_from: the smallest batch_size × max_pieces that did not fit a shared GPU; such trials get a whole one.
            None where sharing never failed.
    """

    model_config = ConfigDict(extra="forbid")

    ceilings: dict[str, int] = Field(default_factory=dict)
    alone_from: int | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    cells: dict[str, CellMemory]


class MemoryCeilings:
    """The memory of a sweep's cells, kept in its folder.

    Args:
        say: is told if the file was damaged.
    """

    def __init__(self, ledger: Ledger, say: Callable[[str], None]) -> None:
        self.ledger, self.path = ledger, ledger.folder / FILE
        self.cells: dict[str, CellMemory] = {}
        try:
            self.cells = _File.model_validate_json(self.path.read_text(encoding="utf-8")).cells
        except FileNotFoundError:
            pass
        except (OSError, ValidationError, UnicodeDecodeError):
            say(f"{self.path} cannot be read and is not used: what fits the GPUs is learned again.")

    def applied(self, order: Order) -> Order:
        """An order with what is known of its cell's memory: a whole GPU where its share is too small, the ceilings."""
        known = self.cells.get(cell_name(*order.cell))
        if known is None:
            return order
        is_shared = 0 < order.gpus < 1
        alone = is_shared and known.alone_from is not None and _size(order) >= known.alone_from
        return order.model_copy(update={"ceilings": dict(known.ceilings), "gpus": 1.0 if alone else order.gpus})

    def learn(self, order: Order, lack: OutOfMemory) -> str:
        """Take in that an order did not fit; returns how it is tried next, in a few words."""
        if lack.together > 1:
            return "it is tried again by itself"
        known = self.cells.setdefault(cell_name(*order.cell), CellMemory())
        if lack.is_shared:
            known.alone_from = min(_size(order), known.alone_from or _size(order))
            self._write()
            return "it is tried again on a GPU of its own"
        rows = halved(lack.rows)
        known.ceilings[lack.gpu] = min(rows * lack.length, known.ceilings.get(lack.gpu, rows * lack.length))
        self._write()
        return f"it is tried again with {rows} of {order.setting['batch_size']} rows at a time and the whole gradient"

    def _write(self) -> None:
        try:
            self.ledger.place(self.path, _File(cells=self.cells).model_dump_json(indent=1) + "\n")
        except OSError as error:  # it is known until the command ends
            if not is_full_disk(error):
                raise


def _size(order: Order) -> int:
    """The product that a trial's need of memory grows with, as its setting has it."""
    return int(order.setting["batch_size"]) * int(order.setting["max_pieces"])
