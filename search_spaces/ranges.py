"""Ranges of the parameters of a space: fixed values, choices, integers and reals, and their sampling."""

# ruff: noqa: D102 (the methods are documented once, in `Range`)

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from meltpoint.adapters.hyperparameters import Value

if TYPE_CHECKING:  # slow imports, which are not needed to report a mistake in a space
    import numpy as np
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

Conditions = Mapping[str, tuple[Value, ...]]
"""Parameter → its values for which the conditioned parameter is active; all conditions must hold."""


@dataclass(frozen=True)
class Range(ABC):
    """The values that one parameter may take.

    Attributes:
        source: the origin of the range (a paper and its section, or "ours" and the reason).
        when: the conditions under which the parameter is part of a setting; empty for always.
    """

    source: str = field(default="", kw_only=True)
    when: Conditions = field(default_factory=dict, kw_only=True)

    @property
    @abstractmethod
    def start(self) -> Value:
        """The value of the first trial: the published one if the space names it."""

    @property
    @abstractmethod
    def count(self) -> int | None:
        """The number of values; None for a continuous range."""

    @abstractmethod
    def points(self) -> Sequence[Value] | None:
        """The values of a grid search, `start` before all others; None for a continuous range without a grid."""

    @abstractmethod
    def match(self, value: object) -> Value | None:
        """The value in the range's type, or None if it is outside the range."""

    @abstractmethod
    def distribution(self) -> BaseDistribution | None:
        """Optuna's distribution of the range; None for a fixed value, which is not part of a study."""

    @abstractmethod
    def suggest(self, name: str, trial: optuna.trial.BaseTrial) -> Value:
        """Suggest a value with a trial of Optuna."""

    @abstractmethod
    def sample(self, rng: np.random.Generator) -> Value:
        """Draw a value uniformly, or uniformly in the logarithm."""


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
    """One of a few unordered values. Optuna does not allow the choices to change within a study."""

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
        return next((choice for choice in self.values if same(choice, value)), None)

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
    """A number from `low` to `high`; with `log`, the logarithm is searched uniformly.

    Attributes:
        grid: the points of a grid search; empty if the space has none.
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
        return min(max(middle, self.low), self.high)  # rounding may exceed a bound of a narrow range

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


def same(left: Value, right: object) -> bool:
    """True if two values are equal and not a boolean and a number, which Python considers equal."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def active(conditions: Conditions, setting: Mapping[str, Value]) -> bool:
    """True if every condition holds in a setting; an inactive parameter fulfils no condition."""
    return all(
        name in setting and any(same(value, setting[name]) for value in values) for name, values in conditions.items()
    )
