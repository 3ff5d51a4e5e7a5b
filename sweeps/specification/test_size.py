"""The size of a cell's test split as it is declared; the split is not opened."""

from __future__ import annotations

from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.tasks.core.carving import Slice, parse_cut


def declared_test_examples(cell: OpenCell) -> int | None:
    """The number of labelled test examples of a cell, by `--test-from` or by the task.

    Returns:
        None where neither says it, as of a part that is drawn, or where the labels are hidden or test stays closed.
    """
    if cell.data.is_test_closed:
        return None
    test_from = cell.data.test_from or cell.task.test_from
    if test_from is not None:
        cut = parse_cut(test_from)
        return _length(cut) if isinstance(cut, Slice) else None
    return None if cell.task.test_labels == "hidden" else cell.task.test_examples


def _length(cut: Slice) -> int | None:
    """The length of a slice whose ends are counted from the same side, of a split that is long enough."""
    if "%" in cut.start + cut.stop:
        return None
    start, stop = (int(end) if end else None for end in (cut.start, cut.stop))
    if start is not None and start < 0 and (stop is None or stop < 0):
        return (stop or 0) - start
    if stop is not None and stop >= 0 and (start is None or start >= 0):
        return stop - (start or 0)
    return None
