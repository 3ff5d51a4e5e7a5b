"""The kinds of range that a parameter of a space can have: what is in it, where it starts, and how it is drawn."""

# ruff: noqa: D102 (what the overriding methods do is said once, on `Range`)

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from meltpoint.adapters.hyperparameters import Value

if TYPE_CHECKING:  # a mistake in a space is told before anything slow is imported
    import numpy as np
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

Conditions = Mapping[str, tuple[Value, ...]]
"""Other parameter → the values at which this one is active; all must hold."""


@dataclass(frozen=True)
class Range(ABC):
    """The values that one parameter may take.

    Attributes:
        source: where the range comes from (a paper and its section, or "ours" and why).
        when: the parameter is part of a setting only where these hold; empty for always.
    """

    source: str = field(default="", kw_only=True)
    when: Conditions = field(default_factory=dict, kw_only=True)

    @property
    @abstractmethod
    def start(self) -> Value:
        """The value of the first trial: the published one where the space names it."""

    @property
    @abstractmethod
    def count(self) -> int | None:
        """How many values there are; None for a continuous range."""

    @abstractmethod
    def points(self) -> Sequence[Value] | None:
        """The values of a grid search, `start` before all others; None for a continuous range without a grid."""

    @abstractmethod
    def match(self, value: object) -> Value | None:
        """The value in the range's own type, or None where it lies outside."""

    @abstractmethod
    def distribution(self) -> BaseDistribution | None:
        """What Optuna calls this range; None for a fixed value, which no study needs to hear of."""

    @abstractmethod
    def suggest(self, name: str, trial: optuna.trial.BaseTrial) -> Value:
        """Ask a trial of Optuna for a value."""

    @abstractmethod
    def sample(self, rng: np.random.Generator) -> Value:
        """Draw a value: evenly, or evenly in the logarithm."""


@dataclass(frozen=True)
class Fixed(Range):
    """One value, not searched."""

    value: Value

    @property
    def start(self) -> Value:
        return self.value

    @property
    def count(self) -> int:
        return 1

    def points(self) -> tuple[Value, ...]:
        return (self.value,)

    def match(self, value: object) -> Value | None:
        return self.value if same(self.value, value) else None

    def distribution(self) -> None:
        return None

    def suggest(self, name: str, trial: optuna.trial.BaseTrial) -> Value:
        return self.value

    def sample(self, rng: np.random.Generator) -> Value:
        return self.value


@dataclass(frozen=True)
class Choice(Range):
    """One of a few values, without an order. Optuna refuses other choices later in the same study."""

    values: tuple[Value, ...]
    first: Value | None = None

    @property
    def start(self) -> Value:
        return self.values[0] if self.first is None else self.first

    @property
    def count(self) -> int:
        return len(self.values)

    def points(self) -> tuple[Value, ...]:
        return (self.start, *(value for value in self.values if value != self.start))

    def match(self, value: object) -> Value | None:
        return next((own for own in self.values if same(own, value)), None)

    def distribution(self) -> CategoricalDistribution:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.values)

    def suggest(self, name: str, trial: optuna.trial.BaseTrial) -> Value:
        return self.values[self.values.index(trial.suggest_categorical(name, self.values))]

    def sample(self, rng: np.random.Generator) -> Value:
        return self.values[int(rng.integers(len(self.values)))]


@dataclass(frozen=True)
class Integer(Range):
    """A whole number from `low` to `high`, both included."""

    low: int
    high: int
    first: int | None = None

    @property
    def start(self) -> int:
        return (self.low + self.high) // 2 if self.first is None else self.first

    @property
    def count(self) -> int:
        return self.high - self.low + 1

    def points(self) -> tuple[int, ...]:
        return (self.start, *(value for value in range(self.low, self.high + 1) if value != self.start))

    def match(self, value: object) -> int | None:
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
            return None
        return int(value) if self.low <= value <= self.high else None

    def distribution(self) -> IntDistribution:
        from optuna.distributions import IntDistribution

        return IntDistribution(self.low, self.high)

    def suggest(self, name: str, trial: optuna.trial.BaseTrial) -> int:
        return trial.suggest_int(name, self.low, self.high)

    def sample(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.low, self.high, endpoint=True))


@dataclass(frozen=True)
class Real(Range):
    """A number from `low` to `high`; with `log` it is the logarithm that is searched evenly.

    Attributes:
        grid: the points that a grid search tries; empty where the space names none.
    """

    low: float
    high: float
    log: bool = False
    first: float | None = None
    grid: tuple[float, ...] = ()

    @property
    def start(self) -> float:
        if self.first is not None:
            return self.first
        if self.grid:
            return self.grid[0]
        middle = math.sqrt(self.low) * math.sqrt(self.high) if self.log else self.low / 2 + self.high / 2
        return min(max(middle, self.low), self.high)  # rounding may step over a bound of a narrow range

    @property
    def count(self) -> None:
        return None

    def points(self) -> tuple[float, ...] | None:
        return (self.start, *(value for value in self.grid if value != self.start)) if self.grid else None

    def match(self, value: object) -> float | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if self.low <= value <= self.high else None

    def distribution(self) -> FloatDistribution:
        from optuna.distributions import FloatDistribution

        return FloatDistribution(self.low, self.high, log=self.log)

    def suggest(self, name: str, trial: optuna.trial.BaseTrial) -> float:
        return trial.suggest_float(name, self.low, self.high, log=self.log)

    def sample(self, rng: np.random.Generator) -> float:
        if self.log:
            drawn = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            drawn = float(rng.uniform(self.low, self.high))
        return min(max(drawn, self.low), self.high)


def same(own: Value, value: object) -> bool:
    """Whether two values are equal and neither is a boolean that passes for a number."""
    return own == value and isinstance(own, bool) == isinstance(value, bool)


def active(conditions: Conditions, setting: Mapping[str, Value]) -> bool:
    """Whether every condition holds in a setting; a parameter that is itself inactive meets none."""
    return all(
        name in setting and any(same(value, setting[name]) for value in values) for name, values in conditions.items()
    )
