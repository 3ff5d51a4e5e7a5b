"""Holm's step-down adjustment of p-values (Holm 1979); SciPy has none."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """The adjusted p-values, in the same order: with them below α, the chance of any false claim is at most α.

    The k-th smallest of m, from 0, is multiplied by m − k; none is adjusted below a smaller one, or above 1.
    """
    count, highest = len(p_values), 0.0
    found = [0.0] * count
    for step, place in enumerate(sorted(range(count), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (count - step) * p_values[place]))
        found[place] = highest
    return found
