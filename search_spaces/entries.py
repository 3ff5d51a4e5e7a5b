"""Entries of a space file: conversion between YAML values and ranges."""

from __future__ import annotations

from collections.abc import Mapping

from meltpoint.adapters.hyperparameters import Parameter, Value
from meltpoint.search_spaces.ranges import Choice, Conditions, Fixed, Integer, Range, Real
from meltpoint.tasks.core.registry import unknown

KINDS = ("fixed", "choice", "integer", "uniform", "log_uniform")
EXTRAS = ("first", "grid", "source", "when")


def parse(parameter: Parameter, entry: object, allowed: Mapping[str, Parameter]) -> Range:
    """Parse an entry into a range.

    Args:
        parameter: the parameter of the entry, with its type and limits.
        entry: a scalar (a fixed value), or a mapping with one of `KINDS` and any of `EXTRAS`.
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
    if kind == "choice":
        return _choice(parameter, entry, source, when)
    if kind == "integer":
        return _integer(parameter, entry, source, when)
    return _real(parameter, entry, kind == "log_uniform", source, when)


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
    """The YAML value of a range: the inverse of `parse`."""
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
    for key in entry:
        if key not in KINDS + EXTRAS:
            raise ValueError(f"{parameter.name}: {unknown(key, 'key of a range', KINDS + EXTRAS)}")
    kinds = [kind for kind in KINDS if kind in entry]
    if len(kinds) != 1:
        given = " and ".join(kinds) or "no kind of range"
        raise ValueError(f"{parameter.name} has {given}; write exactly one of {', '.join(KINDS)}.")
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
    for name, value_or_values in when.items():
        if name not in allowed:
            raise ValueError(f"{parameter.name}: when: {unknown(name, 'parameter', allowed)}")
        values = value_or_values if isinstance(value_or_values, list) else [value_or_values]
        if not values:
            raise ValueError(f"{parameter.name}: when: {name} has no value; name at least one.")
        try:
            checked = {allowed[name].check(value) for value in values}
        except ValueError as error:
            raise ValueError(f"{parameter.name}: when: {error}") from None
        conditions[name] = tuple(sorted(checked, key=repr))
    return conditions


def _choice(parameter: Parameter, entry: Mapping[str, object], source: str, when: Conditions) -> Choice:
    choices = entry["choice"]
    if not isinstance(choices, list) or not choices:
        raise ValueError(f"{parameter.name}: choice is {choices!r}; write a list of values.")
    values = tuple(parameter.check(value) for value in choices)
    if len(set(values)) < len(values):
        raise ValueError(f"{parameter.name}: choice names a value twice; name each once.")
    first = parameter.check(entry["first"]) if "first" in entry else None
    if first is not None and first not in values:
        raise ValueError(f"{parameter.name}: first is {first}, which is not among its choices; add it or change it.")
    return Choice(values, first, source=source, when=when)


def _integer(parameter: Parameter, entry: Mapping[str, object], source: str, when: Conditions) -> Integer:
    if not _is_kind(parameter, int):
        raise ValueError(f"{parameter.name} takes {parameter.domain()}; integer is for whole numbers.")
    low, high = (int(bound) for bound in _bounds(parameter, entry["integer"]))
    first = _first(parameter, entry, low, high)
    return Integer(low, high, None if first is None else int(first), source=source, when=when)


def _real(parameter: Parameter, entry: Mapping[str, object], log: bool, source: str, when: Conditions) -> Real:
    kind = "log_uniform" if log else "uniform"
    if not _is_kind(parameter, float):
        remedy = "integer or choice" if _is_kind(parameter, int) else "choice"
        raise ValueError(f"{parameter.name} takes {parameter.domain()}; write {remedy}, not {kind}.")
    low, high = _bounds(parameter, entry[kind])
    if log and low <= 0:
        raise ValueError(f"{parameter.name}: log_uniform starts at {low:g}; a logarithm needs more than 0.")
    grid = entry.get("grid", [])
    if not isinstance(grid, list) or ("grid" in entry and not grid):
        raise ValueError(f"{parameter.name}: grid is {grid!r}; write a list of points.")
    points = tuple(float(parameter.check(point)) for point in grid)
    if len(set(points)) < len(points):
        raise ValueError(f"{parameter.name}: grid names a point twice; name each once.")
    for point in points:
        if not low <= point <= high:
            raise ValueError(f"{parameter.name}: grid has {point:g}, outside {low:g} to {high:g}; widen the range.")
    return Real(low, high, log, _first(parameter, entry, low, high), points, source=source, when=when)


def _is_kind(parameter: Parameter, kind: type) -> bool:
    return type(parameter.default) is kind


def _bounds(parameter: Parameter, bounds: object) -> tuple[float, float]:
    if not isinstance(bounds, list) or len(bounds) != 2:
        raise ValueError(f"{parameter.name} has the range {bounds!r}; write [lowest, highest].")
    low, high = (float(parameter.check(bound)) for bound in bounds)
    if low >= high:
        raise ValueError(f"{parameter.name} goes from {low:g} to {high:g}; write the lower bound first, or one value.")
    return low, high


def _first(parameter: Parameter, entry: Mapping[str, object], low: float, high: float) -> float | None:
    if "first" not in entry:
        return None
    first = float(parameter.check(entry["first"]))
    if not low <= first <= high:
        raise ValueError(f"{parameter.name}: first is {first:g}, outside {low:g} to {high:g}; widen the range.")
    return first
