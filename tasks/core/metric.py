"""The type of a metric, and what several metrics compute with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from meltpoint.tasks import kinds
from meltpoint.tasks.core.kind import Target
from meltpoint.tasks.core.task import Kind, Label, Task

if TYPE_CHECKING:  # the functions import NumPy: the ledger's readers and the command line do not compute
    import numpy as np
    from numpy.typing import NDArray

Prediction = int | float | list[int]
Floats: TypeAlias = "NDArray[np.float64]"
Compute = Callable[[Task, Sequence[Label], Sequence[Any]], float]
"""(task, gold labels, predictions or probabilities) → value; both have the same length, not 0."""


@dataclass(frozen=True)
class Metric:
    """An evaluation metric.

    Attributes:
        name: its module's name: its key in `METRICS`, in task files, MLflow and tables.
        targets: what has to be predicted for it to apply (`TaskKind.target`).
        compute: (task, gold labels, predictions) → value.
        summary: one line for people, with the averaging.
        two_classes: True if it needs exactly two labels, of which the second is the positive one.
        lower_is_better: True of errors; every choice of a best one then takes the lowest.
        lowest: the least possible value; the highest is 1, of an error infinite.
        of_probabilities: True if `compute` gets each example's probabilities of the labels instead of predictions.
        of_part: a part's name → `compute` of that part alone, for metrics that can be written `NAME.PART` (span F1 of
            one type of span); None for the others.
    """

    name: str
    targets: tuple[Target, ...]
    compute: Compute
    summary: str = ""
    two_classes: bool = False
    lower_is_better: bool = False
    lowest: float = 0.0
    of_probabilities: bool = False
    of_part: Callable[[str], Compute] | None = None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of task that it applies to."""
        return tuple(kind for kind in kinds.names() if kinds.get(kind).target in self.targets)

    def fits(self, task: Task) -> bool:
        """True if the metric applies to the task."""
        return self.serves(task.kind, len(task.labels))

    def serves(self, kind: Kind, labels: int) -> bool:
        """True if the metric applies to tasks of a kind with so many labels."""
        return kinds.get(kind).target in self.targets and (not self.two_classes or labels == 2)


def correlation(left: Floats, right: Floats) -> float:
    """Pearson's correlation; 0 if either side is constant.

    Args:
        left, right: (examples,) float64.
    """
    import numpy as np

    if np.ptp(left) == 0 or np.ptp(right) == 0:
        return 0.0
    # Scaled before squaring, so that tiny values do not underflow and huge ones do not overflow.
    centred = [(side - side.mean()) / np.ptp(side) for side in (left, right)]
    lengths = [math.sqrt(float(side @ side)) for side in centred]
    return float(np.clip(float(centred[0] @ centred[1]) / (lengths[0] * lengths[1]), -1.0, 1.0))


def ranks(values: Floats) -> Floats:
    """Ranks from 1; ties get the mean of their ranks.

    Args:
        values: (examples,) float64.
    """
    import numpy as np

    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_ranks: Floats = np.cumsum(counts) - (counts - 1) / 2
    return mean_ranks[places]


def floats(values: Sequence[object]) -> Floats:
    """Values as an array of float64."""
    import numpy as np

    return np.asarray(values, dtype=np.float64)


def f1_of(gold: Floats, predicted: Floats, label: int) -> float:
    """F1 of one label: 0 where nothing is found."""
    import numpy as np

    hits = int(np.sum((gold == label) & (predicted == label)))
    return 2 * hits / int(np.sum(gold == label) + np.sum(predicted == label)) if hits else 0.0
