"""One line of a space: from what YAML says of a parameter to its range, and back."""

from __future__ import annotations

from collections.abc import Mapping

from meltpoint.adapters.hyperparameters import Parameter, Value
from meltpoint.search_spaces.ranges import Choice, Conditions, Fixed, Integer, Range, Real
from meltpoint.tasks.core.registry import unknown

KINDS = ("fixed", "choice", "integer", "uniform", "log_uniform")
EXTRAS = ("first", "grid", "source", "when")


def parse(parameter: Parameter, entry: object, allowed: Mapping[str, Parameter]) -> Range:
    """The range that an entry stands for.

    Args:
        parameter: whose line it is; gives the type and the limits.
        entry: a scalar (a fixed value), or a mapping with one of `KINDS` and any of `EXTRAS`.
        allowed: every parameter that a condition may name.

    Raises:
        ValueError: anything else; the message names the parameter and the remedy, the caller adds the file.
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
    """The condition that a trick's own parameter has by its name: `TRICK.x` acts only where the trick is on.

    A trick is on by a switch of its name (`gradual_unfreezing: true`) or by a choice (`schedule: slanted_triangular`).
    """
    trick, dot, _ = name.partition(".")
    if not dot:
        return {}
    if trick in allowed and isinstance(allowed[trick].default, bool):
        return {trick: (True,)}
    return {other: (trick,) for other, parameter in allowed.items() if trick in parameter.choices}


def entry_of(found: Range) -> object:
    """What YAML says of a range: the inverse of `parse`."""
    entry: dict[str, object] = {}
    match found:
        case Fixed():
            if not found.source and not found.when:
                return found.value
            entry["fixed"] = found.value
        case Choice():
            entry["choice"] = list(found.values)
        case Integer():
            entry["integer"] = [found.low, found.high]
        case Real():
            entry["log_uniform" if found.log else "uniform"] = [found.low, found.high]
    if isinstance(found, Choice | Integer | Real) and found.first is not None:
        entry["first"] = found.first
    if isinstance(found, Real) and found.grid:
        entry["grid"] = list(found.grid)
    if found.when:
        entry["when"] = {name: list(values) for name, values in found.when.items()}
    if found.source:
        entry["source"] = found.source
    return entry


def over(below: object, above: object) -> object:
    """An entry laid over a more general one: it replaces it, but keeps its `when` unless it has its own."""
    if above is None or not isinstance(below, Mapping) or "when" not in below:
        return above
    entry = dict(above) if isinstance(above, Mapping) else {"fixed": above}
    entry.setdefault("when", below["when"])
    return entry


def _kind(parameter: Parameter, entry: Mapping[str, object]) -> str:
    for key in entry:
        if key not in KINDS + EXTRAS:
            raise ValueError(f"{parameter.name}: {unknown(key, 'key of a range', KINDS + EXTRAS)}")
    kinds = [kind for kind in KINDS if kind in entry]
    if len(kinds) != 1:
        said = " and ".join(kinds) or "no kind of range"
        raise ValueError(f"{parameter.name} has {said}; write exactly one of {', '.join(KINDS)}.")
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
    found: dict[str, tuple[Value, ...]] = {}
    for name, said in when.items():
        if name not in allowed:
            raise ValueError(f"{parameter.name}: when: {unknown(name, 'parameter', allowed)}")
        values = said if isinstance(said, list) else [said]
        if not values:
            raise ValueError(f"{parameter.name}: when: {name} has no value; name at least one.")
        try:
            checked = {allowed[name].check(value) for value in values}
        except ValueError as error:
            raise ValueError(f"{parameter.name}: when: {error}") from None
        found[name] = tuple(sorted(checked, key=repr))
    return found


def _choice(parameter: Parameter, entry: Mapping[str, object], source: str, when: Conditions) -> Choice:
    said = entry["choice"]
    if not isinstance(said, list) or not said:
        raise ValueError(f"{parameter.name}: choice is {said!r}; write a list of values.")
    values = tuple(parameter.check(value) for value in said)
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


def _bounds(parameter: Parameter, said: object) -> tuple[float, float]:
    if not isinstance(said, list) or len(said) != 2:
        raise ValueError(f"{parameter.name} has the range {said!r}; write [lowest, highest].")
    low, high = (float(parameter.check(bound)) for bound in said)
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
