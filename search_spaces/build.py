"""Build a space from its entries: early stopping, checks of names and conditions, overrides."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from meltpoint.adapters import heads, modes
from meltpoint.adapters.data.input_format import INPUT_FORMAT
from meltpoint.adapters.hyperparameters import OF_TARGET, Parameter, Value
from meltpoint.search_spaces import documents
from meltpoint.search_spaces.ranges import RANGE_KINDS, Fixed, Range, check_known, entry_of, parse_entry, same

STOPPING = {
    "grace_epochs": Parameter("early_stopping.grace_epochs", 1, "", 1, 1000),
    "grace_fraction": Parameter("early_stopping.grace_fraction", 0.25, "", 0.01, 0.99),
    "reduction_factor": Parameter("early_stopping.reduction_factor", 3, "", 2, 100),
}
"""The keys of `early_stopping`."""


@dataclass(frozen=True)
class EarlyStopping:
    """Asynchronous successive halving (Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning").

    Attributes:
        grace_epochs: the first rung: the number of epochs before which no trial is stopped.
        reduction_factor: one in `reduction_factor` trials continues after each rung.
        grace_fraction: if not None, the first rung as a fraction of each trial's schedule instead of epochs, so that
            trials of different lengths are compared at the same point of their learning-rate schedules.
    """

    grace_epochs: int = 1
    reduction_factor: int = 3
    grace_fraction: float | None = None

    def entry(self) -> dict[str, object]:
        """Its YAML value."""
        unused = "grace_epochs" if self.grace_fraction is not None else "grace_fraction"
        return {name: value for name, value in asdict(self).items() if name != unused}


def parse_stopping(entry: object, where: str) -> EarlyStopping | None:
    """Parse early stopping from YAML; null switches it off.

    Raises:
        ValueError: an unknown key, or a number outside its limits.
    """
    if entry is None:
        return None
    if not isinstance(entry, Mapping):
        raise ValueError(f"{where}: early_stopping is {entry!r}; write {{grace_epochs: 1, reduction_factor: 3}}.")
    check_known(entry, STOPPING, "key", f"{where}: early_stopping")
    if {"grace_epochs", "grace_fraction"} <= entry.keys():
        raise ValueError(f"{where}: early_stopping has both grace_epochs and grace_fraction; leave one out.")
    try:
        checked: dict[str, Any] = {key: STOPPING[key].check(value) for key, value in entry.items()}
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return EarlyStopping(**checked)


def reason_against(
    rule: EarlyStopping, parameters: Mapping[str, Range], allowed: Mapping[str, Parameter]
) -> str | None:
    """The reason why trials of a space cannot be compared before they end, or None.

    AllenNLP documents that early stopping "should typically be avoided" with its slanted triangular schedule: after the
    same number of epochs, runs of different lengths are at different points of the triangle. At the same share of each
    run's own schedule, they are at the same point.

    Args:
        rule: the requested rule.
        parameters: the space.
        allowed: the parameters of the cell; their names reveal a mode with two phases.
    """

    def may_be(name: str, value: object) -> bool:
        return name in parameters and parameters[name].match(value) is not None

    if any(name.startswith("stack_and_finetune.") for name in allowed):
        return "the first phase of stack_and_finetune keeps the encoder frozen, so its scores predict little"
    if rule.grace_fraction is None and may_be("schedule", "slanted_triangular"):
        return (
            "schedule may be slanted_triangular, and after an epoch its runs are at different points of the triangle; "
            "write grace_fraction for rungs at the same fraction of each trial's schedule, or leave that choice out"
        )
    if may_be("gradual_unfreezing", True):
        return "gradual_unfreezing may be on, and it makes early scores low; leave it off"
    if rule.grace_fraction is None and "epochs" in parameters and parameters["epochs"].count != 1:
        return (
            "epochs is searched, and trials of different lengths cannot be compared at the same epoch; fix epochs, or "
            "write grace_fraction for rungs at the same fraction of each trial's schedule"
        )
    return None


def ranges(
    declared: Mapping[str, object],
    allowed: Mapping[str, Parameter],
    files: Mapping[str, str],
    elsewhere: Collection[str],
) -> dict[str, Range]:
    """Parse every entry into a range, in the order of `allowed`; entries that are None are skipped.

    Raises:
        ValueError: an unknown or unavailable name, or an invalid entry.
    """
    for name in declared:
        check_name(name, allowed, elsewhere, files[name])
    given = [name for name in allowed if declared.get(name) is not None]
    return {name: _range(name, declared[name], allowed, files[name]) for name in given}


def _range(name: str, entry: object, allowed: Mapping[str, Parameter], where: str) -> Range:
    try:
        return parse_entry(allowed[name], entry, allowed)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def check_entry(name: str, entry: object, every: Mapping[str, Parameter], where: str) -> None:
    """Refuse an entry that is invalid in every cell: an unknown key, or a value outside its limits.

    Raises:
        ValueError: one line with `where` and the key.
    """
    check_name(name, every, (), where)
    if entry is not None:
        _range(name, entry, every, where)


def check_name(name: str, allowed: Collection[str], elsewhere: Collection[str], where: str) -> None:
    """Refuse a parameter that does not exist, or that this cell does not have.

    Raises:
        ValueError: with close matches, or with the reason.
    """
    if name in elsewhere:
        raise ValueError(f"{where}: {name} is not possible here: {_reason(name)}.")
    check_known([name], allowed, "key of a space", where)


OF_KIND = {one.name for declared in (INPUT_FORMAT, *OF_TARGET.values()) for one in declared}
"""The parameters that some kinds of task have."""


def _reason(name: str) -> str:
    """The reason why a cell does not have a parameter, and the remedy; all heads are imported for it."""
    owner = name.partition(".")[0]
    if owner in modes.names():
        return f"it belongs to mode {owner}; put it under `modes: {{{owner}: …}}`, or leave it out"
    declared = {head: {one.name: one for one in heads.get(head).hyperparameters} for head in heads.names()}
    if owners := [head for head, own in declared.items() if name in own]:
        where = " on pairs of sentences" if declared[owners[0]][name].of_pairs else ""
        return f"it belongs to head {' or '.join(owners)}{where}; choose that head with --head, or leave it out"
    without = [mode for mode in modes.names() if name in modes.get(mode).unused]
    if name in OF_KIND:
        besides = f", or for other modes than {' and '.join(without)}" if without else ""
        return f"it is for other kinds of task{besides} (docs/tasks.md, docs/search_spaces.md); leave it out"
    training = [mode for mode in modes.names() if modes.get(mode).trains_encoder]
    needs = f"{' and '.join(without)} does not use it" if without else "it needs an encoder that trains"
    others = [mode for mode in modes.names() if mode not in without] if without else training
    return f"{needs}; put it under `modes:` for {' or '.join(others)}, or leave it out"


def ordered(parameters: Mapping[str, Range], files: Mapping[str, str]) -> dict[str, Range]:
    """Sort the ranges so that each follows the ranges in its conditions.

    Raises:
        ValueError: a condition on a continuous range, or cyclic conditions.
    """
    for name, range_ in parameters.items():
        for other in range_.when:
            if other in parameters and parameters[other].count is None:
                raise ValueError(f"{files[name]}: {name}: when names {other}, a continuous range; make it a choice.")
    result: dict[str, Range] = {}
    while len(result) < len(parameters):
        remaining = [name for name in parameters if name not in result]
        ready = [name for name in remaining if not any(other in remaining for other in parameters[name].when)]
        if not ready:
            raise ValueError(f"{files[remaining[0]]}: the conditions of {', '.join(remaining)} are cyclic; remove one.")
        result[ready[0]] = parameters[ready[0]]
    return result


def reachable(
    parameters: Mapping[str, Range],
    allowed: Mapping[str, Parameter],
    files: Mapping[str, str],
    must_act: Collection[str],
) -> dict[str, Range]:
    """The ranges whose conditions can hold, without the conditions that always hold.

    If a specific file fixes a parameter that a general file searches, some parameters of the general file may never be
    active. A parameter that is not in the space has its default.

    Args:
        parameters: name → range, in the order of `ordered`.
        allowed: every parameter of the cell, for the defaults.
        files: name → the file or option of its entry.
        must_act: names whose range is an error if its conditions can never hold.

    Raises:
        ValueError: a range in `must_act` is never active.
    """
    kept: dict[str, Range] = {}
    for name, range_ in parameters.items():
        odds = {
            other: _odds(values, kept.get(other) if other in parameters else Fixed(allowed[other].default))
            for other, values in range_.when.items()
        }
        never = [other for other, chance in odds.items() if chance == "never"]
        if not never:
            sometimes = {other: values for other, values in range_.when.items() if odds[other] == "sometimes"}
            kept[name] = replace(range_, when=sometimes)
        elif name in must_act:
            values = " or ".join(spelled(value) for value in range_.when[never[0]])
            raise ValueError(
                f"{files[name]}: {name} has no effect: it acts only where {never[0]} is {values}, "
                f"which this space never tries; add that to {never[0]}, or leave {name} out."
            )
    return kept


def _odds(values: tuple[Value, ...], other: Range | None) -> str:
    """The share of settings in which a parameter has one of the values: `always`, `sometimes` or `never` (if None)."""
    points = (other.points() or ()) if other is not None else ()
    met = [point for point in points if any(same(point, value) for value in values)]
    if other is None or not met:
        return "never"
    return "always" if len(met) == len(points) and not other.when else "sometimes"


def stopping(
    entry: object, parameters: Mapping[str, Range], allowed: Mapping[str, Parameter], where: str
) -> EarlyStopping | None:
    """Parse early stopping, and refuse it if trials of the space cannot be compared at the rungs.

    Raises:
        ValueError: the entry is malformed, or the space rules early stopping out.
    """
    rule = parse_stopping(entry, where)
    reason = reason_against(rule, parameters, allowed) if rule is not None else None
    if reason is not None:
        raise ValueError(
            f"{where}: early_stopping is not possible here: {reason}, or switch it off with early_stopping: null."
        )
    return rule


def overrides(texts: Sequence[str]) -> dict[str, tuple[object, str]]:
    """Parse `KEY=VALUE` texts into name → (entry, the option as written).

    Raises:
        ValueError: a missing `=` or value, invalid YAML, or a repeated key.
    """
    parsed: dict[str, tuple[object, str]] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        where = f"--set {text.strip()}"
        if not name or not equals or not value:
            raise ValueError(f"{where}: write KEY=VALUE, for example --set learning_rate=3e-5.")
        if name in parsed:
            raise ValueError(f"{where}: {name} is set twice; set it once.")
        parsed[name] = (documents.parse(value, where), where)
    return parsed


def description(range_: Range) -> str:
    """A readable form of a range, for messages."""
    entry = entry_of(range_)
    bounds = entry if isinstance(entry, Mapping) else {}
    ends = next((f"{kind} {bounds[kind]}" for kind in RANGE_KINDS if isinstance(bounds.get(kind), list)), "")
    return ends or f"{spelled(range_.start)} only"


def spelled(value: Value) -> str:
    """A value as YAML writes it."""
    return str(value).lower() if isinstance(value, bool) else f"{value}"
