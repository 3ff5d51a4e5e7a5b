"""The file of a sweep, `sweep.json`: its specification, its cells, the code that it was opened with."""

from __future__ import annotations

import json

from pydantic import BaseModel, ConfigDict, Field

from meltpoint.adapters.hyperparameters import Value
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.log_lines import LAST_MOMENT
from meltpoint.sweeps.ledger.records import CellKey, cell_key
from meltpoint.sweeps.specification.sweep_spec import Overflow, SweepSpec, check_name
from meltpoint.sweeps.storage.files import contents


class CellHeader(BaseModel):
    """A cell's entry in `sweep.json`.

    Attributes:
        planned: number of search trials: `--trials`, or the number of points of a smaller space.
        space: the space as YAML.
        space_fingerprint: of the searched parameters of the space; "" in files of older versions.
        data_fingerprint, documents_fingerprint, encoder_fingerprint: as in `records.CellFacts`.
        notes: notes on the data for tables.
        variant: distinguishes cells of the same encoder, mode and task; "" if there is only one.
        seeds: number of planned finals; None in files of older versions, whose cells all had the sweep's number.
        beside: metrics that tables show beside the cell's own (`Task.beside`).
        warnings: faults of the data that bear on a conclusion (`tasks.core.splits`).
        published: the space's published setting, complete; None in files of older versions.
        encoder_size: the size of a state of its encoder; 0 in files of older versions.
        work: floating-point operations of one of its trials (`cell_work.work_of`); None in files of older versions.
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
    train_examples: int
    dev_examples: int
    notes: tuple[str, ...] = ()
    variant: str = ""
    seeds: int | None = None
    beside: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    published: dict[str, Value] | None = None
    encoder_size: int = 0
    work: float | None = Field(None, gt=0)

    @property
    def key(self) -> CellKey:
        """The key that identifies the cell within the sweep."""
        return cell_key(self.encoder, self.mode, self.task, self.variant)


class Growth(BaseModel):
    """An addition to a sweep under its name (`sweep --grow`).

    Attributes:
        at: time, in seconds since 1970.
        changes: in words (`SweepSpec.growth`).
        opened: how many finalists' test splits had been opened by then.
    """

    model_config = ConfigDict(frozen=True)

    at: float = Field(ge=0, le=LAST_MOMENT)
    changes: tuple[str, ...]
    opened: int = Field(ge=0)


class SweepFile(BaseModel):
    """The contents of `sweep.json`.

    Attributes:
        spec: the specification.
        code: the version of the code that the sweep was opened with; it is part of its trials' identities.
        continued_with: the versions that it went on with (`--mix-code-versions`), the newest last.
        cells: the cells of the specification.
        cache_overflow: `--cache-overflow`, the only option of `Resources` that may round cached states.
        growth: what was added to it, the earliest first.
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
        """The versions whose trials count, in the order in which the sweep had them."""
        return (self.code, *self.continued_with)


def read_sweep(ledger: Ledger) -> SweepFile:
    """Read `sweep.json`.

    Raises:
        ValueError: there is no such sweep, or its file is damaged.
    """
    try:
        sweep = SweepFile.model_validate_json(contents(ledger.specification))
        check_name(sweep.spec.name)
        return sweep
    except FileNotFoundError:
        known = sorted(path.parent.name for path in ledger.folder.parent.glob("*/sweep.json"))
        hint = f"There is: {', '.join(known)}." if known else "There is none yet; start one with `meltpoint sweep`."
        raise ValueError(f"No sweep '{ledger.folder.name}' under {ledger.folder.parent}. {hint}") from None
    except ValueError:
        remedy = "restore it, take a new --name, or remove it with `rm`"
        raise ValueError(f"{ledger.specification} is damaged; {remedy}.") from None


def write_sweep(ledger: Ledger, sweep: SweepFile) -> None:
    """Write `sweep.json`."""
    ledger.place(ledger.specification, json.dumps(sweep.model_dump(mode="json"), indent=1) + "\n")
