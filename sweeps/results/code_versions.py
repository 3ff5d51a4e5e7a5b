"""The versions of Meltpoint's code that ran a cell's trials, in a sweep that was continued by another one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from meltpoint.sweeps.ledger.records import Role, TrialRecord
from meltpoint.tasks.core.wording import some

_begun = attrgetter("code_version", "started_at")


@dataclass(frozen=True)
class CodeUse:
    """The trials of a cell that one version of the code ran.

    Attributes:
        version: as in `TrialRecord.code_version`.
        search_trials: search trials, however they ended.
        final_seeds: the seeds of the finished finals.
        default_seeds: those of the published setting's, where it is not the best one.
    """

    version: str
    search_trials: int
    final_seeds: tuple[int, ...]
    default_seeds: tuple[int, ...] = ()

    def __str__(self) -> str:
        """`0.1.0+0a1b2c3d (12 search trials, finals of seeds 0, 1)`."""
        trials = some(self.search_trials, "search trial")
        parts = [trials] * bool(self.search_trials)
        for what, seeds in (("final", self.final_seeds), ("default final", self.default_seeds)):
            plural = "s" if len(seeds) > 1 else ""
            parts += [f"{what}{plural} of seed{plural} {', '.join(map(str, seeds))}"] * bool(seeds)
        return f"{self.version} ({', '.join(parts)})"

    def as_json(self) -> dict[str, Any]:
        """The form in `status --json`."""
        return {
            "version": self.version, "search_trials": self.search_trials, "final_seeds": list(self.final_seeds),
            **({"default_seeds": list(self.default_seeds)} if self.default_seeds else {}),
        }  # fmt: skip


def code_uses(search: Iterable[TrialRecord], finals: Iterable[TrialRecord]) -> tuple[CodeUse, ...]:
    """The versions that ran a cell's search trials and finals, the earliest first.

    Args:
        search: its search trials.
        finals: its finished finals, with those of the published setting.
    """
    finals = list(finals)

    def seeds(version: str, role: Role) -> tuple[int, ...]:
        return tuple(final.seed for final in finals if (final.code_version, final.role) == (version, role))

    begun: dict[str, list[float]] = defaultdict(list)
    for version, started_at in map(_begun, search):
        begun[version].append(started_at)
    firsts = {version: min(starts) for version, starts in begun.items()}
    for final in finals:
        firsts[final.code_version] = min(final.started_at, firsts.get(final.code_version, final.started_at))
    return tuple(
        CodeUse(version, len(begun[version]), seeds(version, "final"), seeds(version, "default"))
        for version in sorted(firsts, key=lambda version: (firsts[version], version))
    )


def mixture_in_words(uses: Sequence[CodeUse], best: TrialRecord | None) -> str:
    """That a cell's trials are of several versions, which of which; what follows for its finals."""
    text = f"mixes versions of Meltpoint's code: {'; '.join(map(str, uses))}"
    text += f"; its best setting was found by {best.code_version}" if best else ""
    if sum(bool(use.final_seeds) for use in uses) > 1:
        text += "; the spread of its finals covers the change of the code too"
    return text


def kept_in_words(records: Iterable[TrialRecord], code: str) -> str | None:
    """One line about records of other versions that count in a sweep that goes on; None where there are none."""
    found = kept_versions(records, code)
    if not found:
        return None
    kept = ", ".join(f"{some(count, 'trial')} of {version}" for version, count in found.items())
    return f"Meltpoint's code is {code}; kept: {kept}. Tables, status and exports mark the cells that mix them."


def kept_versions(records: Iterable[TrialRecord], code: str) -> dict[str, int]:
    """Version → how many of the records are of it, for each version but the one that runs now."""
    counts = Counter(record.code_version for record in records)
    return {version: count for version, count in counts.items() if version != code}
