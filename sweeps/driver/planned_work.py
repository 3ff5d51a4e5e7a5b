"""The one wording of how much a sweep has to do, for `plan` and for a sweep's own first line."""

from __future__ import annotations

from meltpoint.tasks.core.wording import some


def planned_work(cells: int, search: int, finals: int, defaults: int = 0) -> str:
    """`1 cell: 8 search trials + 4 finals, 1 answered by its search trial`.

    The final with the search's own seed is the search trial of that setting: it is not trained again. With finals of
    the published setting: `… + 4 finals + up to 4 default finals, 1 of each answered by its search trial`.

    Args:
        cells: how many there are.
        search: search trials of all cells.
        finals: finals of all cells, the answered ones counted.
        defaults: finals of the published setting likewise; not run in a cell where that turns out to be the best one.
    """
    its = "its search trial" if cells == 1 else "their search trials"
    parts = [some(search, "search trial"), some(finals, "final")]
    parts += [f"up to {some(defaults, 'default final')}"] if defaults else []
    answered = f"{cells} of each" if defaults else f"{cells}"
    return f"{some(cells, 'cell')}: {' + '.join(parts)}, {answered} answered by {its}"
