"""From entries to the ranges of a space: keys that exist, conditions that can hold, early stopping that makes sense."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from meltpoint.adapters.hyperparameters import Parameter, Value
from meltpoint.search_spaces import documents, early_stopping, entries
from meltpoint.search_spaces.early_stopping import EarlyStopping
from meltpoint.search_spaces.ranges import Fixed, Range, same
from meltpoint.tasks.core.registry import unknown

Filler = Callable[[str, Range], Value]
"""(name, its range) → the value that a setting gets."""


def ranges(
    said: Mapping[str, object], allowed: Mapping[str, Parameter], files: Mapping[str, str], elsewhere: Mapping[str, str]
) -> dict[str, Range]:
    """Every entry's range, in the order of `allowed`; entries that are None are left out.

    Raises:
        ValueError: an unknown or impossible name, or a wrong entry.
    """
    for name in said:
        check_name(name, allowed, elsewhere, files[name])
    found: dict[str, Range] = {}
    for name, parameter in allowed.items():
        if said.get(name) is None:
            continue
        try:
            found[name] = entries.parse(parameter, said[name], allowed)
        except ValueError as error:
            raise ValueError(f"{files[name]}: {error}") from None
    return found


def check_entry(name: str, entry: object, every: Mapping[str, Parameter], where: str) -> None:
    """Refuse an entry that is wrong in every cell: a key that nobody has, or a value outside its limits.

    Raises:
        ValueError: one line with `where` and the key.
    """
    check_name(name, every, {}, where)
    try:
        _ = None if entry is None else entries.parse(every[name], entry, every)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def check_name(name: str, allowed: Collection[str], elsewhere: Mapping[str, str], where: str) -> None:
    """Refuse a parameter that nobody has, or that exists but not for this cell.

    Raises:
        ValueError: with near misses, or with the reason.
    """
    if name in elsewhere:
        raise ValueError(f"{where}: {name} is not possible here: {elsewhere[name]}.")
    if name not in allowed:
        raise ValueError(f"{where}: {unknown(name, 'key of a space', allowed)}")


def ordered(found: Mapping[str, Range], files: Mapping[str, str]) -> dict[str, Range]:
    """The same ranges, each after those that its conditions name.

    Raises:
        ValueError: a condition names a continuous range, or conditions go round in a circle.
    """
    for name, own in found.items():
        for other in own.when:
            if other in found and found[other].count is None:
                raise ValueError(f"{files[name]}: {name}: when names {other}, a continuous range; make it a choice.")
    done: dict[str, Range] = {}
    while len(done) < len(found):
        left = [name for name in found if name not in done]
        ready = [name for name in left if not any(other in left for other in found[name].when)]
        if not ready:
            raise ValueError(f"{files[left[0]]}: the conditions of {', '.join(left)} go round in a circle; drop one.")
        done[ready[0]] = found[ready[0]]
    return done


def possible(
    found: Mapping[str, Range], allowed: Mapping[str, Parameter], files: Mapping[str, str], must_act: Collection[str]
) -> dict[str, Range]:
    """The ranges whose conditions can hold, without the conditions that always do.

    A specific file may fix what a general one tries, and so rule out some of the general one's parameters. A
    parameter that the space does not name has its default.

    Args:
        found: in the order of `ordered`.
        allowed: every parameter of the cell, for the defaults.
        files: name → where its entry was found.
        must_act: names whose range is a mistake where its conditions can never hold.

    Raises:
        ValueError: a range among `must_act` never acts.
    """
    kept: dict[str, Range] = {}
    for name, own in found.items():
        odds = {
            other: _odds(values, kept.get(other) if other in found else Fixed(allowed[other].default))
            for other, values in own.when.items()
        }
        never = [other for other, chance in odds.items() if chance == "never"]
        if not never:
            sometimes = {other: values for other, values in own.when.items() if odds[other] == "sometimes"}
            kept[name] = replace(own, when=sometimes)
        elif name in must_act:
            values = " or ".join(spelled(value) for value in own.when[never[0]])
            raise ValueError(
                f"{files[name]}: {name} has no effect: it acts only where {never[0]} is {values}, "
                f"which this space never tries; add that to {never[0]}, or leave {name} out."
            )
    return kept


def _odds(values: tuple[Value, ...], other: Range | None) -> str:
    """Whether another parameter (None: it never acts) has one of the values `always`, `sometimes` or `never`."""
    points = (other.points() or ()) if other is not None else ()
    met = [point for point in points if any(same(point, value) for value in values)]
    if other is None or not met:
        return "never"
    return "always" if len(met) == len(points) and not other.when else "sometimes"


def stopping(
    said: object, parameters: Mapping[str, Range], allowed: Mapping[str, Parameter], where: str
) -> EarlyStopping | None:
    """Early stopping, refused where the trials' rungs cannot be compared.

    Raises:
        ValueError: it is malformed or makes no sense in this space.
    """
    try:
        found = early_stopping.parse(said)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    reason = early_stopping.hindrance(found, parameters, allowed) if found is not None else None
    if reason is not None:
        raise ValueError(
            f"{where}: early_stopping is not possible here: {reason}, or switch it off with early_stopping: null."
        )
    return found


def overrides(texts: Sequence[str]) -> dict[str, tuple[object, str]]:
    """`KEY=VALUE` texts as name → (entry, the option as written).

    Raises:
        ValueError: no `=`, no value, broken YAML, or a key given twice.
    """
    found: dict[str, tuple[object, str]] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        where = f"--set {text.strip()}"
        if not name or not equals or not value:
            raise ValueError(f"{where}: write KEY=VALUE, for example --set learning_rate=3e-5.")
        if name in found:
            raise ValueError(f"{where}: {name} is set twice; set it once.")
        found[name] = (documents.parse(value, where), where)
    return found


def told(found: Range) -> str:
    """A range in words, for a message."""
    entry = entries.entry_of(found)
    if not isinstance(entry, Mapping):
        return f"{spelled(found.start)} only"
    kind = next(kind for kind in entries.KINDS if kind in entry)
    said = entry[kind]
    return f"{kind} {said}" if isinstance(said, list) else f"{spelled(found.start)} only"


def spelled(value: Value) -> str:
    """A value as YAML writes it."""
    return str(value).lower() if isinstance(value, bool) else f"{value}"
