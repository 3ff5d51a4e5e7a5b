"""A search space: the possible settings of a cell's trials, the first one to try, and sampling.

A setting has a value for every active parameter of the space and nothing else. An exported setting is a space with one
point.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from meltpoint.adapters.hyperparameters import Parameter, Setting, Value
from meltpoint.adapters.settings import CONSTANT, LEFT_OUT, SCHEDULE
from meltpoint.search_spaces import build, documents, ranges
from meltpoint.search_spaces.build import EarlyStopping
from meltpoint.search_spaces.ranges import Range, active

if TYPE_CHECKING:
    import numpy as np
    import optuna
    from optuna.distributions import BaseDistribution

__all__ = ["EarlyStopping", "Space"]


@dataclass(frozen=True)
class Space:
    """The possible settings of a cell.

    Attributes:
        parameters: name → range; a parameter follows the parameters in its conditions.
        early_stopping: the rule for stopping trials, or None.
        cell: the `encoder`, `mode`, `task` and `head` that the file names; any may be missing.
        provenance: the origin of an exported setting, which is kept but not interpreted.
        sources: name → the file or option that defines the range.
        allowed: every parameter that a setting of the cell may have.
        elsewhere: the parameters that exist but that it may not have.
        unreachable: the entries whose conditions never hold, which an override may make reachable.
    """

    parameters: Mapping[str, Range]
    early_stopping: EarlyStopping | None = None
    cell: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, object] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    allowed: Mapping[str, Parameter] = field(default_factory=dict, compare=False, repr=False)
    elsewhere: Collection[str] = field(default=(), compare=False, repr=False)
    unreachable: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(
        cls, declared: Mapping[str, object], allowed: Mapping[str, Parameter], *,
        sources: Mapping[str, str] | None = None, early_stopping: object = None, where: str = "space",
        elsewhere: Collection[str] = (), must_act: Sequence[str] = (),
    ) -> Space:  # fmt: skip
        """Create a space from the entries of YAML files; an entry None omits the parameter.

        Args:
            declared: name → entry.
            allowed: every parameter that a setting of the cell may have.
            sources: name → the file or option of its entry, for messages; `where` for the others.
            early_stopping: the YAML value of `early_stopping`.
            where: the file or option, for messages.
            elsewhere: parameters that exist but not for this cell, for messages.
            must_act: names whose entry is an error if its conditions can never hold.

        Raises:
            ValueError: an invalid entry; one line with the file, the key and the remedy.
        """
        files = {name: (sources or {}).get(name, where) for name in declared}
        every = build.ranges(declared, allowed, files, elsewhere)
        parameters = build.reachable(build.ordered(every, files), allowed, files, must_act)
        stopping = build.stopping(early_stopping, parameters, allowed, where)
        unreachable = {name: ranges.entry_of(range_) for name, range_ in every.items() if name not in parameters}
        files = {name: files[name] for name in parameters}
        return cls(parameters, stopping, sources=files, allowed=allowed, elsewhere=elsewhere, unreachable=unreachable)

    def first(self) -> Setting:
        """The setting of the first trial: the published one, if the space names it."""
        return self._fill(lambda name, range_: range_.start)

    def sample(self, rng: np.random.Generator) -> Setting:
        """Draw a setting at random."""
        return self._fill(lambda name, range_: range_.sample(rng))

    def suggest(self, trial: optuna.trial.BaseTrial) -> Setting:
        """Suggest a setting by Optuna's define-by-run interface: only active parameters are suggested."""
        return self._fill(lambda name, range_: range_.suggest(name, trial))

    @property
    def is_finite(self) -> bool:
        """True if no range is continuous."""
        return all(range_.count is not None for range_ in self.parameters.values())

    def points(self) -> Iterator[Setting]:
        """Yield every setting of a finite space, or of its grid, without repeats and starting with `first()`.

        Raises:
            ValueError: a continuous range has no grid.
        """
        continuous = [name for name, range_ in self.parameters.items() if range_.points() is None]
        if continuous:
            name = continuous[0]
            raise ValueError(
                f"{self.sources.get(name, 'space')}: {', '.join(continuous)} cannot be enumerated; "
                "add `grid: [...]` to each, or search with --searcher tpe or random."
            )
        return self._points(tuple(self.parameters), {})

    def from_params(self, setting: Setting) -> tuple[dict[str, Value], dict[str, BaseDistribution]]:
        """The arguments (params, distributions) of `optuna.trial.create_trial` for a setting, without fixed values.

        Names that are not active parameters of the space are ignored, so that a completed setting is accepted.

        Raises:
            ValueError: an active parameter is missing or outside its range.
        """
        kept = self.trimmed(setting)
        found = {name: self.parameters[name].distribution() for name in kept}
        searched = {name: distribution for name, distribution in found.items() if distribution is not None}
        return {name: kept[name] for name in searched}, searched

    def trimmed(self, setting: Setting) -> Setting:
        """A (completed) setting without the names that are not active parameters of the space.

        Raises:
            ValueError: an active parameter is missing or outside its range.
        """
        return self._fill(lambda name, range_: self._value(name, range_, setting))

    def fixed(
        self, setting: Setting, *,
        cell: Mapping[str, str] | None = None, provenance: Mapping[str, object] | None = None,
    ) -> Space:  # fmt: skip
        """The space whose only point is a setting of the cell; it need not belong to this space.

        Raises:
            ValueError: a key or a value that the cell cannot have.
        """
        one = Space.of(setting, self.allowed, where="setting", elsewhere=self.elsewhere)
        return replace(one, cell=dict(cell or self.cell), provenance=dict(provenance or {}))

    def with_overrides(self, overrides: Sequence[str]) -> Space:
        """The space with ranges replaced, as by `--set KEY=VALUE`.

        Args:
            overrides: `KEY=VALUE` each; VALUE is YAML: a scalar fixes the parameter, a mapping replaces its range
                (its conditions stay unless the mapping has others), null resets it to its default.

        Raises:
            ValueError: an invalid override, or one that could never have an effect.
        """
        declared = {**self.unreachable, **{name: ranges.entry_of(one) for name, one in self.parameters.items()}}
        stopping: object = self.early_stopping and self.early_stopping.entry()
        new = build.overrides(overrides)
        for name, (entry, _) in new.items():
            if name == "early_stopping":
                stopping = entry
            else:
                declared[name] = ranges.merged(declared.get(name), entry)
        sources = {**self.sources, **{name: where for name, (_, where) in new.items()}}
        space = Space.of(
            declared, self.allowed, sources=sources, early_stopping=stopping, where="--set", elsewhere=self.elsewhere,
            must_act=list(new),
        )  # fmt: skip
        return replace(space, cell=self.cell, provenance=self.provenance)

    def dump(self) -> str:
        """The space as YAML, one line per parameter; loading it gives an equal space."""
        declared = {name: ranges.entry_of(range_) for name, range_ in self.parameters.items()}
        data: dict[str, object] = dict(self.cell)
        data["parameters"] = {
            name: documents.Flow(entry) if isinstance(entry, dict) else entry for name, entry in declared.items()
        }
        if self.early_stopping is not None:
            data["early_stopping"] = documents.Flow(self.early_stopping.entry())
        if self.provenance:
            data["provenance"] = dict(self.provenance)
        return documents.write(data)

    def fingerprint(self) -> str:
        """sha256 (hex, 16 characters) over the ranges and early stopping, without sources and the order of lines."""
        declared = {name: ranges.entry_of(replace(range_, source="")) for name, range_ in self.parameters.items()}
        stopping = self.early_stopping and self.early_stopping.entry()
        text = json.dumps({"parameters": declared, "early_stopping": stopping}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _fill(self, value: Callable[[str, Range], Value]) -> dict[str, Value]:
        """Build a setting parameter by parameter, each only if its conditions hold."""
        setting: dict[str, Value] = {}
        for name, range_ in self.parameters.items():
            if active(range_.when, setting):
                setting[name] = value(name, range_)
        return setting

    def _value(self, name: str, range_: Range, setting: Setting) -> Value:
        """A setting's value of an active parameter, in the parameter's type; `LEFT_OUT` has values for missing ones."""
        setting = {**LEFT_OUT, **setting}
        if name not in setting and setting.get(SCHEDULE) == CONSTANT:
            return range_.start  # `settings.complete` leaves out what a constant rate makes idle
        if name not in setting:
            raise ValueError(f"{name} is missing from the setting; it takes {build.description(range_)}.")
        value = range_.match(setting[name])
        if value is None:
            raise ValueError(f"{name} is {setting[name]!r}; the space has {build.description(range_)}.")
        return value

    def _points(self, names: tuple[str, ...], setting: dict[str, Value]) -> Iterator[Setting]:
        if not names:
            yield dict(setting)
            return
        range_ = self.parameters[names[0]]
        if not active(range_.when, setting):
            yield from self._points(names[1:], setting)
            return
        for value in range_.points() or ():
            yield from self._points(names[1:], {**setting, names[0]: value})
