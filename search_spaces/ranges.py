"""Ranges of a space's parameters, and the entries of a space file that define them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from meltpoint.adapters.hyperparameters import Parameter, Value
from meltpoint.tasks.core.registry import unknown

if TYPE_CHECKING:
    import numpy as np
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution


# ruff: noqa: D102 (the methods are documented once, in `Range`)


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
    def every(self) -> Sequence[Value]:
        """Every value; of a continuous range, the points of its grid."""

    @property
    @abstractmethod
    def start(self) -> Value:
        """The value of the first trial: the published one if the space names it."""

    @property
    def count(self) -> int | None:
        """The number of values; None for a continuous range."""
        return len(self.every)

    def points(self) -> Sequence[Value] | None:
        """The values of a grid search, `start` first; None for a continuous range without a grid."""
        return (self.start, *(value for value in self.every if value != self.start)) if self.every else None

    def match(self, value: object) -> Value | None:
        """The value in the range's type, or None if it is outside the range."""
        return next((own for own in self.every if same(own, value)), None)

    def sample(self, rng: np.random.Generator) -> Value:
        """Draw a value uniformly, or uniformly in the logarithm."""
        return self.every[int(rng.integers(len(self.every)))]

    @abstractmethod
    def distribution(self) -> BaseDistribution | None:
        """Optuna's distribution of the range; None for a fixed value, which is not part of a study."""

    @abstractmethod
    def suggest(self, name: str, trial: optuna.trial.BaseTrial) -> Value:
        """Suggest a value with a trial of Optuna."""


@dataclass(frozen=True)
class Fixed(Range):
    """One value, not searched."""

    value: Value

    @property
    def every(self) -> tuple[Value, ...]:
        return (self.value,)

    @property
    def start(self) -> Value:
        return self.value

    def distribution(self) -> None:
        return None

    def suggest(self, name: str, trial: optuna.trial.BaseTrial) -> Value:
        return self.value


@dataclass(frozen=True)
class Choice(Range):
    """One of a few unordered values. Optuna does not allow the choices to change within a study."""

    values: tuple[Value, ...]
    first: Value | None = None

    @property
    def every(self) -> tuple[Value, ...]:
        return self.values

    @property
    def start(self) -> Value:
        return self.values[0] if self.first is None else self.first

    def distribution(self) -> CategoricalDistribution:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.values)

    def suggest(self, name: str, trial: optuna.trial.BaseTrial) -> Value:
        return self.values[self.values.index(trial.suggest_categorical(name, self.values))]


@dataclass(frozen=True)
class Integer(Range):
    """A whole number from `low` to `high`, both included."""

    low: int
    high: int
    first: int | None = None

    @property
    def every(self) -> Sequence[int]:
        return range(self.low, self.high + 1)

    @property
    def start(self) -> int:
        return (self.low + self.high) // 2 if self.first is None else self.first

    def distribution(self) -> IntDistribution:
        from optuna.distributions import IntDistribution

        return IntDistribution(self.low, self.high)

    def suggest(self, name: str, trial: optuna.trial.BaseTrial) -> int:
        return trial.suggest_int(name, self.low, self.high)


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
    def every(self) -> tuple[float, ...]:
        return self.grid

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
    """True if two values are equal; unlike in Python, a boolean never equals a number."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def active(conditions: Conditions, setting: Mapping[str, Value]) -> bool:
    """True if every condition holds in a setting; an inactive parameter fulfils no condition."""
    return all(
        name in setting and any(same(value, setting[name]) for value in values) for name, values in conditions.items()
    )


def check_known(names: Iterable[str], known: Collection[str], what: str, where: str) -> None:
    """Refuse unknown names.

    Raises:
        ValueError: the first unknown name, after `where`; close matches are listed.
    """
    for name in names:
        if name not in known:
            raise ValueError(f"{where}: {unknown(name, what, known)}")


RANGE_KINDS = ("fixed", "choice", "integer", "uniform", "log_uniform")
EXTRAS = ("first", "grid", "source", "when")


def parse_entry(parameter: Parameter, entry: object, allowed: Mapping[str, Parameter]) -> Range:
    """Parse an entry into a range.

    Args:
        parameter: the parameter of the entry, with its type and limits.
        entry: a scalar (a fixed value), or a mapping with one of `RANGE_KINDS` and any of `EXTRAS`.
        allowed: every parameter that a condition may refer to.

    Raises:
        ValueError: an invalid entry; the message has the parameter and the remedy, the caller adds the file.
    """
    if not isinstance(entry, Mapping):
        if isinstance(entry, list):
            raise ValueError(f"{parameter.name} is a list; write {{choice: [...]}} for one of several values.")
        return Fixed(parameter.check(entry), when=implied(parameter.name, allowed))
    kind = _kind(parameter, entry)
    source = entry.get("source", "")
    if not isinstance(source, str):
        raise ValueError(f"{parameter.name}: source is {source!r}; write a sentence in quotes.")
    when = _conditions(parameter, entry.get("when"), allowed) | implied(parameter.name, allowed)
    when = dict(sorted(when.items()))
    if kind == "fixed":
        return Fixed(parameter.check(entry["fixed"]), source=source, when=when)
    first = parameter.check(entry["first"]) if "first" in entry else None
    if kind == "choice":
        values = _listed(parameter, "choice", entry["choice"])
        if first is not None and first not in values:
            raise ValueError(f"{parameter.name}: first is {first}, which is not among its choices; add or change it.")
        return Choice(values, first, source=source, when=when)
    if type(parameter.default) is not (int if kind == "integer" else float):
        remedy = {int: "integer or choice", float: "uniform or choice"}.get(type(parameter.default), "choice")
        raise ValueError(f"{parameter.name} takes {parameter.domain()}; write {remedy}, not {kind}.")
    low, high = _bounds(parameter, entry[kind])
    if kind == "log_uniform" and low <= 0:
        raise ValueError(f"{parameter.name}: log_uniform starts at {low:g}; write a lower bound above 0.")
    grid = _listed(parameter, "grid", entry["grid"]) if "grid" in entry else ()
    for key, points in (("first", () if first is None else (first,)), ("grid", grid)):
        outside = next((point for point in points if not low <= float(point) <= high), None)
        if outside is not None:
            raise ValueError(f"{parameter.name}: {key} has {outside:g}, outside {low:g} to {high:g}; widen the range.")
    made: Any = (low, high, first) if kind == "integer" else (low, high, kind == "log_uniform", first, grid)
    return (Integer if kind == "integer" else Real)(*made, source=source, when=when)


def implied(name: str, allowed: Mapping[str, Parameter]) -> dict[str, tuple[Value, ...]]:
    """The condition implied by the name of a trick's parameter: `TRICK.x` is active only if the trick is on.

    A trick is switched on by a boolean parameter of its name (`gradual_unfreezing: true`) or by a choice
    (`schedule: slanted_triangular`).
    """
    trick, dot, _ = name.partition(".")
    if not dot:
        return {}
    if trick in allowed and isinstance(allowed[trick].default, bool):
        return {trick: (True,)}
    return {other: (trick,) for other, parameter in allowed.items() if trick in parameter.choices}


def entry_of(range_: Range) -> object:
    """The YAML value of a range: the inverse of `parse_entry`."""
    entry: dict[str, object] = {}
    match range_:
        case Fixed():
            if not range_.source and not range_.when:
                return range_.value
            entry["fixed"] = range_.value
        case Choice():
            entry["choice"] = list(range_.values)
        case Integer():
            entry["integer"] = [range_.low, range_.high]
        case Real():
            entry["log_uniform" if range_.log else "uniform"] = [range_.low, range_.high]
    if isinstance(range_, Choice | Integer | Real) and range_.first is not None:
        entry["first"] = range_.first
    if isinstance(range_, Real) and range_.grid:
        entry["grid"] = list(range_.grid)
    if range_.when:
        entry["when"] = {name: list(values) for name, values in range_.when.items()}
    if range_.source:
        entry["source"] = range_.source
    return entry


def merged(general: object, specific: object) -> object:
    """The specific entry, with the `when` of the general one unless it has its own."""
    if specific is None or not isinstance(general, Mapping) or "when" not in general:
        return specific
    entry = dict(specific) if isinstance(specific, Mapping) else {"fixed": specific}
    entry.setdefault("when", general["when"])
    return entry


def _kind(parameter: Parameter, entry: Mapping[str, object]) -> str:
    check_known(entry, RANGE_KINDS + EXTRAS, "key of a range", parameter.name)
    kinds = [kind for kind in RANGE_KINDS if kind in entry]
    if len(kinds) != 1:
        given = " and ".join(kinds) or "no kind of range"
        raise ValueError(f"{parameter.name} has {given}; write exactly one of {', '.join(RANGE_KINDS)}.")
    if "grid" in entry and kinds[0] not in ("uniform", "log_uniform"):
        raise ValueError(f"{parameter.name}: grid goes with uniform or log_uniform; {kinds[0]} is a grid already.")
    if "first" in entry and kinds[0] == "fixed":
        raise ValueError(f"{parameter.name}: a fixed value has no first; leave first out.")
    return kinds[0]


def _conditions(parameter: Parameter, when: object, allowed: Mapping[str, Parameter]) -> dict[str, tuple[Value, ...]]:
    if when is None:
        return {}
    if not isinstance(when, Mapping):
        raise ValueError(f"{parameter.name}: when is {when!r}; write {{other_parameter: value or [values]}}.")
    conditions: dict[str, tuple[Value, ...]] = {}
    check_known(when, allowed, "parameter", f"{parameter.name}: when")
    for name, value_or_values in when.items():
        values = value_or_values if isinstance(value_or_values, list) else [value_or_values]
        if not values:
            raise ValueError(f"{parameter.name}: when: {name} has no value; name at least one.")
        try:
            checked = {allowed[name].check(value) for value in values}
        except ValueError as error:
            raise ValueError(f"{parameter.name}: when: {error}") from None
        conditions[name] = tuple(sorted(checked, key=repr))
    return conditions


def _listed(parameter: Parameter, key: str, values: object) -> tuple[Value, ...]:
    """The values of a list without repeats."""
    if not isinstance(values, list) or not values:
        raise ValueError(f"{parameter.name}: {key} is {values!r}; write a list of values.")
    checked = tuple(parameter.check(value) for value in values)
    if len(set(checked)) < len(checked):
        raise ValueError(f"{parameter.name}: {key} names a value twice; name each once.")
    return checked


def _bounds(parameter: Parameter, bounds: object) -> tuple[Any, Any]:
    if not isinstance(bounds, list) or len(bounds) != 2:
        raise ValueError(f"{parameter.name} has the range {bounds!r}; write [lowest, highest].")
    low, high = map(parameter.check, bounds)
    if float(low) >= float(high):
        raise ValueError(f"{parameter.name} goes from {low:g} to {high:g}; write the lower bound first, or one value.")
    return low, high
