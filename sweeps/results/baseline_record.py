"""The records of baselines in a sweep's folder: `baselines/TASK.json`, one file a task."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.storage.files import contents
from meltpoint.tasks.core.metrics import gain


class Baseline(BaseModel):
    """The baselines of a task, on dev.

    Attributes:
        task, metric: of the scores.
        data_fingerprint: of train and dev.
        scores: name of a baseline → its score on dev.
        train_examples: how many examples the linear model was fitted to.
        chosen: the regularisation that was best on dev; None where there is no linear model.
        seconds: what it took.
    """

    model_config = ConfigDict(frozen=True)

    task: str
    metric: str
    data_fingerprint: str
    scores: dict[str, FiniteFloat] = Field(min_length=1)
    train_examples: int
    chosen: float | None = None
    seconds: float = 0.0

    @property
    def best(self) -> tuple[str, float]:
        """The best baseline and its score."""
        return max(self.scores.items(), key=lambda item: gain(self.metric, item[1]))

    @property
    def worst(self) -> tuple[str, float]:
        """The worst baseline and its score: the same answer for every example, as a rule."""
        return min(self.scores.items(), key=lambda item: gain(self.metric, item[1]))


def read_baselines(ledger: Ledger) -> dict[str, Baseline]:
    """Task → its baseline, of those that are kept with a sweep; a damaged file is left out, since it is made again."""
    found = {}
    for path in (ledger.folder / "baselines").glob("*.json"):
        try:
            one = Baseline.model_validate_json(contents(path))
        except ValueError:
            continue
        found[one.task] = one
    return found
