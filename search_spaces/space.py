"""A search space: the settings that a cell's trials may have, which comes first, and how they are drawn.

A setting holds every active parameter of the space and nothing else. A best setting is a space with one point.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from meltpoint.adapters.hyperparameters import Parameter, Setting, Value
from meltpoint.search_spaces import build, documents, entries
from meltpoint.search_spaces.early_stopping import EarlyStopping
from meltpoint.search_spaces.ranges import Range, active

if TYPE_CHECKING:
    import numpy as np
    import optuna
    from optuna.distributions import BaseDistribution

__all__ = ["EarlyStopping", "Space", "is_one_point"]


@dataclass(frozen=True)
class Space:
    """The settings that may be tried.

    Attributes:
        parameters: name → range; a parameter comes after those that its conditions name.
        early_stopping: when a trial may be stopped, or None for never.
        cell: `encoder`, `mode`, `task` and `head`, as far as the file names them.
        provenance: what an exported setting says of its origin; nothing here reads it.
        sources: name → the file or option that gave the range.
        allowed: every parameter that a setting of the cell may hold.
        elsewhere: the parameters that it may not hold → why.
    """

    parameters: Mapping[str, Range]
    early_stopping: EarlyStopping | None = None
    cell: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, object] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    allowed: Mapping[str, Parameter] = field(default_factory=dict, compare=False, repr=False)
    elsewhere: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(
        cls, said: Mapping[str, object], allowed: Mapping[str, Parameter], *,
        sources: Mapping[str, str] | None = None, early_stopping: object = None, where: str = "space",
        elsewhere: Mapping[str, str] | None = None, must_act: Sequence[str] = (),
    ) -> Space:  # fmt: skip
        """The space of entries as YAML has them; None as an entry leaves the parameter out.

        Args:
            said: name → entry.
            allowed: every parameter that a setting of the cell may hold.
            sources: name → where its entry was found, for messages; `where` for the others.
            early_stopping: as YAML has it.
            where: the file or option, for messages.
            elsewhere: parameters that exist but not for this cell → why, for messages.
            must_act: names whose entry is a mistake where its conditions can never hold.

        Raises:
            ValueError: any mistake; one line with the file, the key and the remedy.
        """
        files = {name: (sources or {}).get(name, where) for name in said}
        parameters = build.ranges(said, allowed, files, elsewhere or {})
        parameters = build.possible(build.ordered(parameters, files), allowed, files, must_act)
        stopping = build.stopping(early_stopping, parameters, allowed, where)
        files = {name: files[name] for name in parameters}
        return cls(parameters, stopping, sources=files, allowed=allowed, elsewhere=elsewhere or {})

    def first(self) -> Setting:
        """The setting of the first trial: the published one."""
        return self._fill(lambda name, found: found.start)

    def sample(self, rng: np.random.Generator) -> Setting:
        """A setting drawn at random."""
        return self._fill(lambda name, found: found.sample(rng))

    def suggest(self, trial: optuna.trial.BaseTrial) -> Setting:
        """A setting asked of Optuna, define-by-run: only the parameters that are active are asked for."""
        return self._fill(lambda name, found: found.suggest(name, trial))

    def size(self) -> int | None:
        """How many settings there are; None where a range is continuous."""
        if any(found.count is None for found in self.parameters.values()):
            return None
        switches = {name for found in self.parameters.values() for name in found.when}
        return self._count(tuple(self.parameters), {}, switches)

    def points(self) -> Iterator[Setting]:
        """Every setting of a finite space, or of its grid, without repeats and `first()` before all others.

        Raises:
            ValueError: a continuous range has no grid.
        """
        blind = [name for name, found in self.parameters.items() if found.points() is None]
        if blind:
            name = blind[0]
            raise ValueError(
                f"{self.sources.get(name, 'space')}: {', '.join(blind)} cannot be enumerated; "
                "add `grid: [...]` to each, or search with --searcher tpe or random."
            )
        return self._points(tuple(self.parameters), {})

    def contains(self, setting: Setting) -> bool:
        """Whether a setting is one of the space's: every active parameter in its range, and nothing else."""
        try:
            self.check(setting)
        except ValueError:
            return False
        return True

    def check(self, setting: Setting) -> Setting:
        """The setting, its values in the parameters' own types and order.

        Raises:
            ValueError: a value outside its range, an active parameter missing, or one that is not active here.
        """
        kept = self._fill(lambda name, found: self._value(name, found, setting))
        for name in setting:
            if name not in kept:
                why = "is not active in this setting" if name in self.parameters else "is not in the space"
                raise ValueError(f"{name} {why}; leave it out.")
        return kept

    def distributions(self, setting: Setting | None = None) -> dict[str, BaseDistribution]:
        """Optuna's distributions of what is searched: of all parameters, or of those active in a setting."""
        found = {name: found.distribution() for name, found in self.parameters.items()}
        names = found if setting is None else [name for name in found if name in setting]
        return {name: kept for name in names if (kept := found[name]) is not None}

    def from_params(self, setting: Setting) -> tuple[dict[str, Value], dict[str, BaseDistribution]]:
        """A setting as `optuna.trial.create_trial` wants it: (params, distributions), without fixed values.

        Names that are not active parameters of the space are passed over, so a completed setting will do.

        Raises:
            ValueError: an active parameter is missing or outside its range.
        """
        kept = self.trimmed(setting)
        distributions = self.distributions(kept)
        return {name: kept[name] for name in distributions}, distributions

    def trimmed(self, setting: Setting) -> Setting:
        """A setting without the names that are no active parameters of the space, as a completed one has them.

        Raises:
            ValueError: an active parameter is missing or outside its range.
        """
        return self._fill(lambda name, found: self._value(name, found, setting))

    def fixed(
        self, setting: Setting, *,
        cell: Mapping[str, str] | None = None, provenance: Mapping[str, object] | None = None,
    ) -> Space:  # fmt: skip
        """The space whose only point is a setting, which may hold anything that the cell's settings may.

        Raises:
            ValueError: a key or a value that the cell cannot have.
        """
        one = Space.of(setting, self.allowed, where="setting", elsewhere=self.elsewhere)
        return replace(one, cell=dict(cell or self.cell), provenance=dict(provenance or {}))

    def with_overrides(self, overrides: Sequence[str]) -> Space:
        """The space with ranges replaced, as `--set KEY=VALUE` asks.

        Args:
            overrides: `KEY=VALUE` each; VALUE is YAML: a scalar fixes the parameter, a mapping replaces its range
                (its conditions stay unless the mapping names others), null returns it to its default.

        Raises:
            ValueError: any mistake, or an override that could never have an effect.
        """
        said: dict[str, object] = {name: entries.entry_of(found) for name, found in self.parameters.items()}
        stopping: object = self.early_stopping and self.early_stopping.entry()
        new = build.overrides(overrides)
        for name, (entry, _) in new.items():
            if name == "early_stopping":
                stopping = entry
            else:
                said[name] = entries.over(said.get(name), entry)
        sources = {**self.sources, **{name: where for name, (_, where) in new.items()}}
        space = Space.of(
            said, self.allowed, sources=sources, early_stopping=stopping, where="--set", elsewhere=self.elsewhere,
            must_act=list(new),
        )  # fmt: skip
        return replace(space, cell=self.cell, provenance=self.provenance)

    def dump(self) -> str:
        """The space as YAML, one line a parameter; loading it gives an equal space."""
        said = {name: entries.entry_of(found) for name, found in self.parameters.items()}
        data: dict[str, object] = dict(self.cell)
        data["parameters"] = {
            name: documents.Flow(entry) if isinstance(entry, dict) else entry for name, entry in said.items()
        }
        if self.early_stopping is not None:
            data["early_stopping"] = documents.Flow(self.early_stopping.entry())
        if self.provenance:
            data["provenance"] = dict(self.provenance)
        return documents.write(data)

    def fingerprint(self) -> str:
        """sha256 (hex, 16 characters) over what is searched; sources and the order of lines do not count."""
        said = {name: entries.entry_of(replace(found, source="")) for name, found in self.parameters.items()}
        stopping = self.early_stopping and self.early_stopping.entry()
        text = json.dumps({"parameters": said, "early_stopping": stopping}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _fill(self, value: build.Filler) -> dict[str, Value]:
        """A setting, parameter by parameter, each only where its conditions hold."""
        setting: dict[str, Value] = {}
        for name, found in self.parameters.items():
            if active(found.when, setting):
                setting[name] = value(name, found)
        return setting

    def _value(self, name: str, found: Range, setting: Setting) -> Value:
        """A setting's value of an active parameter, in its own type."""
        if name not in setting:
            raise ValueError(f"{name} is missing from the setting; it takes {build.told(found)}.")
        value = found.match(setting[name])
        if value is None:
            raise ValueError(f"{name} is {setting[name]!r}; the space has {build.told(found)}.")
        return value

    def _points(self, names: tuple[str, ...], setting: dict[str, Value]) -> Iterator[Setting]:
        if not names:
            yield dict(setting)
            return
        found = self.parameters[names[0]]
        if not active(found.when, setting):
            yield from self._points(names[1:], setting)
            return
        for value in found.points() or ():
            yield from self._points(names[1:], {**setting, names[0]: value})

    def _count(self, names: tuple[str, ...], setting: dict[str, Value], switches: set[str]) -> int:
        if not names:
            return 1
        found = self.parameters[names[0]]
        if not active(found.when, setting):
            return self._count(names[1:], setting, switches)
        if names[0] not in switches:
            return (found.count or 0) * self._count(names[1:], setting, switches)
        each = found.points() or ()
        return sum(self._count(names[1:], {**setting, names[0]: value}, switches) for value in each)


def is_one_point(space: Space) -> bool:
    """Whether nothing is left to search, as in an exported setting."""
    return space.size() == 1
