"""The one wording of how much a sweep has to do, for `plan` and for a sweep's own first line."""

from __future__ import annotations

from meltpoint.tasks.core.counts import some


def planned_work(cells: int, search: int, finals: int) -> str:
    """`1 cell: 8 search trials + 4 finals, 1 answered by its search trial`.

    The final with the search's own seed is the search trial of that setting: it is not trained again.

    Args:
        cells: how many there are.
        search: search trials of all cells.
        finals: finals of all cells, the answered ones counted.
    """
    its = "its search trial" if cells == 1 else "their search trials"
    return f"{some(cells, 'cell')}: {some(search, 'search trial')} + {some(finals, 'final')}, {cells} answered by {its}"
