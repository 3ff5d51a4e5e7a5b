"""The file `sweep.json`, and the versions of the code that a sweep's records name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from meltpoint.adapters.hyperparameters import Value
from meltpoint.search_spaces import documents
from meltpoint.sweeps.ledger.ledger import LAST_MOMENT, Ledger
from meltpoint.sweeps.ledger.records import CellKey, Role, TrialRecord, cell_key
from meltpoint.sweeps.search.early_ends import Entrant, scores_of
from meltpoint.sweeps.specification.sweep_options import Overflow
from meltpoint.sweeps.specification.sweep_spec import SweepSpec, check_name
from meltpoint.sweeps.storage.files import contents
from meltpoint.tasks.core.wording import some


class CellHeader(BaseModel):
    """A cell's entry in `sweep.json`.

    Attributes:
        planned: the number of search trials: `--trials`, or the number of points of a smaller space.
        space: the space as YAML.
        space_fingerprint: of the searched parameters of the space; "" in files of older versions.
        data_fingerprint, documents_fingerprint, encoder_fingerprint: as in `records.FACTS`.
        encoder_revision: `ID@COMMIT` of an encoder from the hub; "" for a folder, and in files of older versions.
        epoch_dev_examples: the number of dev examples on which each epoch is scored; 0 in files of older versions.
        notes: notes on the data for tables.
        variant: distinguishes cells of the same encoder, mode and task; "" if there is only one.
        seeds: number of planned finals; None in files of older versions, whose cells all had the sweep's number.
        beside: metrics that tables show next to the cell's own (`Task.beside`).
        also_test: the scores on further test splits that tables show: `twitter/accuracy` (`Task.also_test`).
        warnings: faults of the data that affect conclusions (`tasks.core.splits`).
        published: the space's complete published setting; None in files of older versions.
        encoder_size: the size of its encoder's hidden states; 0 in files of older versions.
        work: floating-point operations of one of its trials (`cell_progress.work_of`); None in files of older versions.
    """

    model_config = ConfigDict(frozen=True)

    encoder: str
    mode: str
    task: str
    head: str
    kind: str
    metric: str
    planned: int
    space: str
    space_fingerprint: str = ""
    data_fingerprint: str
    documents_fingerprint: str = ""
    encoder_fingerprint: str = ""
    encoder_revision: str = ""
    train_examples: int
    dev_examples: int
    epoch_dev_examples: int = 0
    notes: tuple[str, ...] = ()
    variant: str = ""
    seeds: int | None = None
    beside: tuple[str, ...] = ()
    also_test: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    published: dict[str, Value] | None = None
    encoder_size: int = 0
    work: float | None = Field(None, gt=0)

    @property
    def key(self) -> CellKey:
        """The key that identifies the cell within the sweep."""
        return cell_key(self.encoder, self.mode, self.task, self.variant)

    def space_entries(self) -> dict[str, object]:
        """Parameter → its entry in the space.

        Raises:
            ValueError: the space is not YAML.
        """
        space = documents.parse(self.space, f"the space of {'.'.join(self.key)}")
        entries = space.get("parameters") if isinstance(space, dict) else None
        return entries if isinstance(entries, dict) else {}

    def entrant(self, records: Iterable[TrialRecord], is_over: bool) -> Entrant:
        """The cell as the checks see it, from its records."""
        ended = scores_of(record for record in records if record.role == "search")
        dev = self.epoch_dev_examples or self.dev_examples
        return Entrant(self.key, self.train_examples, self.planned, self.metric, dev, ended, is_over)


class Growth(BaseModel):
    """An addition to a sweep under its name (`sweep --grow`).

    Attributes:
        at: time, in seconds since 1970.
        changes: the changes as text (`SweepSpec.growth`).
        opened: for how many finalists the test split had been opened by then.
    """

    model_config = ConfigDict(frozen=True)

    at: float = Field(ge=0, le=LAST_MOMENT)
    changes: tuple[str, ...]
    opened: int = Field(ge=0)


class SweepFile(BaseModel):
    """The contents of `sweep.json`.

    Attributes:
        spec: the specification.
        code: the version of the code that opened the sweep; it is part of its trials' identities.
        continued_with: the versions that resumed it (`--mix-code-versions`), newest last.
        cells: the cells of the specification.
        cache_overflow: `--cache-overflow`, the only option of `Resources` that may round cached states.
        growth: the additions to it, earliest first.
    """

    model_config = ConfigDict(frozen=True)

    spec: SweepSpec
    code: str
    cells: tuple[CellHeader, ...]
    cache_overflow: Overflow = "on_the_fly"
    continued_with: tuple[str, ...] = ()
    growth: tuple[Growth, ...] = ()

    @property
    def codes(self) -> tuple[str, ...]:
        """The accepted versions, in the order in which the sweep used them."""
        return (self.code, *self.continued_with)


def read_sweep(ledger: Ledger) -> SweepFile:
    """Read `sweep.json`.

    Raises:
        ValueError: the sweep does not exist, or its file is damaged.
    """
    try:
        sweep = SweepFile.model_validate_json(contents(ledger.specification))
        check_name(sweep.spec.name)
        return sweep
    except FileNotFoundError:
        known = sorted(path.parent.name for path in ledger.folder.parent.glob("*/sweep.json"))
        hint = f"Sweeps: {', '.join(known)}." if known else "It has no sweeps yet; start one with `meltpoint sweep`."
        raise ValueError(f"No sweep '{ledger.folder.name}' under {ledger.folder.parent}. {hint}") from None
    except ValueError:
        remedy = "restore it, choose a new --name, or remove it with `rm`"
        raise ValueError(f"{ledger.specification} is damaged; {remedy}.") from None


def write_sweep(ledger: Ledger, sweep: SweepFile) -> None:
    """Write `sweep.json`."""
    ledger.place(ledger.specification, json.dumps(sweep.model_dump(mode="json"), indent=1) + "\n")


@dataclass(frozen=True)
class CodeUse:
    """The trials of a cell that one version of the code ran.

    Attributes:
        version: as in `TrialRecord.code_version`.
        search_trials: the number of ended search trials, with any outcome.
        final_seeds: the seeds of the finished finals.
        default_seeds: the seeds of the published setting's finished finals, if it is not the best setting.
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
    """The versions that ran a cell's search trials and finals, earliest first.

    Args:
        search: its search trials.
        finals: its finished finals, including finals of the published setting.
    """
    search, finals = list(search), list(finals)

    def seeds(version: str, role: Role) -> tuple[int, ...]:
        return tuple(final.seed for final in finals if (final.code_version, final.role) == (version, role))

    counts = Counter(record.code_version for record in search)
    records = sorted((*search, *finals), key=lambda record: (record.started_at, record.code_version))
    return tuple(
        CodeUse(version, counts[version], seeds(version, "final"), seeds(version, "default"))
        for version in dict.fromkeys(record.code_version for record in records)
    )


def mixture_in_words(uses: Sequence[CodeUse], best: TrialRecord | None) -> str:
    """A line on the several versions that ran a cell's trials, and the consequence for its finals."""
    text = f"mixes versions of Meltpoint's code: {'; '.join(map(str, uses))}"
    text += f"; its best setting was found by {best.code_version}" if best else ""
    if sum(bool(use.final_seeds) for use in uses) > 1:
        text += "; the spread of its finals includes the change of the code"
    return text


def kept_in_words(records: Iterable[TrialRecord], code: str) -> str | None:
    """One line about accepted records of other versions in a resumed sweep; None if it has none."""
    found = kept_versions(records, code)
    if not found:
        return None
    kept = ", ".join(f"{some(count, 'trial')} of {version}" for version, count in found.items())
    return f"Meltpoint's code is {code}; kept: {kept}. Tables, status and exports mark the cells that mix them."


def kept_versions(records: Iterable[TrialRecord], code: str) -> dict[str, int]:
    """Version → the number of its records, for each version except the current one."""
    counts = Counter(record.code_version for record in records)
    return {version: count for version, count in counts.items() if version != code}
