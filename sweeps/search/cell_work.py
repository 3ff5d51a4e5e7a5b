"""The amount of work of a cell: how many search trials and finals it has, how long one takes, which train together."""

from __future__ import annotations

import itertools

from meltpoint.adapters import modes
from meltpoint.sweeps.search.cell_operations import operations_of
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.sweep_spec import SweepSpec


def can_bundle(cell: OpenCell) -> bool:
    """True if trials of a cell can train as a bundle: the encoder is frozen, and there is no early stopping."""
    return not modes.get(cell.mode).trains_encoder and cell.space.early_stopping is None


def work_of(cell: OpenCell) -> float:
    """The duration of a cell's trial relative to those of other cells: its floating-point operations.

    What a frozen encoder computes once for all of a cell's runs is shared among them.
    """
    operations = operations_of(cell)
    return operations.trial + operations.once / (planned_trials(cell) + cell.seeds)


def planned_trials(cell: OpenCell) -> int:
    """The number of search trials of a cell: `--trials`, or the number of points of a smaller space.

    Raises:
        ValueError: the grid searcher is used with a range without grid points.
    """
    if cell.searcher == "grid" or cell.space.size() is not None:
        return sum(1 for _ in itertools.islice(cell.space.points(), cell.trials))
    return cell.trials


def default_seeds(cell: OpenCell, spec: SweepSpec) -> int:
    """The number of finals of a cell's published setting, beside those of its best one.

    None where they are not asked for, or where nothing else is tried: then the published setting is the best one.
    """
    return cell.seeds if spec.default_finals and planned_trials(cell) > 1 else 0
