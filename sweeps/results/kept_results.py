"""A sweep's other records: ensembles and baselines."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialId, check_scores, reason
from meltpoint.sweeps.search.selection import Spread, spread
from meltpoint.sweeps.storage.files import contents
from meltpoint.tasks.core.metrics import gain


class EnsembleMember(BaseModel):
    """One cell's finalists in an ensemble.

    Attributes:
        sweep: the cell's sweep.
        encoder, mode, head, variant: of the cell.
        cell: its name in files, E.M.T, or E.M.T.VARIANT.
        trials, seeds: its combined finalists, sorted by seed.
    """

    model_config = ConfigDict(frozen=True)

    sweep: str
    encoder: str
    mode: str
    head: str
    variant: str = ""
    cell: str
    trials: tuple[str, ...]
    seeds: tuple[int, ...]


class Ensemble(BaseModel):
    """Cells of one task whose finalists' probabilities were averaged, seed by seed.

    Attributes:
        id: 16 hex digits over the task and the members' sweeps and cells, so that the same members have one file, in
            any order.
        task, kind, metric: the task's name, kind and main metric.
        members: in the order in which the user named them.
        dev, test: metric → score, once per seed; empty if there are no predictions to score.
        data_fingerprint: of the train and dev split, the same for all members.
        notes: notes for tables.
        made_at: seconds since 1970.
        code_versions: of the finalists that were combined; empty in files of older versions.
    """

    model_config = ConfigDict(frozen=True)

    id: TrialId
    task: str
    kind: str
    metric: str
    members: tuple[EnsembleMember, ...] = Field(min_length=1)
    dev: tuple[dict[str, FiniteFloat], ...]
    test: tuple[dict[str, FiniteFloat], ...]
    data_fingerprint: str
    notes: tuple[str, ...] = ()
    made_at: float
    code_versions: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _has_its_metric(self) -> Self:
        check_scores(self.metric, (*self.dev, *self.test))
        return self

    @property
    def encoders(self) -> tuple[str, ...]:
        """The distinct encoders of the members."""
        return tuple(dict.fromkeys(member.encoder for member in self.members))

    def spread(self, split: Literal["dev", "test"], metric: str = "") -> Spread | None:
        """Mean and deviation over seeds; None if there are no scores.

        Args:
            metric: a metric other than the main one.
        """
        name = metric or self.metric
        return spread([scores[name] for scores in (self.dev if split == "dev" else self.test) if name in scores])


def read_ensembles(ledger: Ledger) -> list[Ensemble]:
    """All ensembles of a sweep, the oldest first.

    Raises:
        ValueError: a file is not an ensemble's record; the message names it.
    """
    ensembles = []
    for path in ledger.ensembles.glob("*.json"):
        try:
            ensembles.append(Ensemble.model_validate_json(contents(path)))
        except ValueError as error:
            raise ValueError(
                f"{path} is not an ensemble ({reason(error)}); delete it, and run that ensemble again."
            ) from None
    return sorted(ensembles, key=lambda made: (made.made_at, made.id))


class Baseline(BaseModel):
    """The baselines of a task, on dev.

    Attributes:
        task, metric: of the scores.
        data_fingerprint: of train and dev.
        scores: name of a baseline → its score on dev.
        train_examples: the number of examples to which the linear model was fitted.
        chosen: the regularisation that was best on dev; None without a linear model.
        seconds: the time that they took.
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
        """The worst baseline and its score: usually the same answer for every example."""
        return min(self.scores.items(), key=lambda item: gain(self.metric, item[1]))


def read_baselines(ledger: Ledger) -> dict[str, Baseline]:
    """Task → its baseline stored with a sweep. A damaged file is left out, because it is computed again."""
    found = {}
    for path in (ledger.folder / "baselines").glob("*.json"):
        try:
            one = Baseline.model_validate_json(contents(path))
        except ValueError:
            continue
        found[one.task] = one
    return found
