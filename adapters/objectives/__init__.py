"""Objectives: the loss, the predictions and the probabilities of scores, for each target of a kind of task.

One file a target (`tasks.core.kinds.Target`), which exports `OBJECTIVE`. An objective has no weights: heads give the
scores, and may replace its loss by their own (a CRF's).
"""

from __future__ import annotations

import sys
from functools import cache
from typing import cast

from meltpoint.adapters.objectives._objective import Objective, Options
from meltpoint.tasks.core import registry

__all__ = ["Objective", "Options", "of"]


@cache
def of(target: str) -> Objective:
    """The objective of a target.

    Raises:
        ValueError: there is none.
    """
    return cast(Objective, registry.load(sys.modules[__name__], target, "target of a kind of task").OBJECTIVE)
