"""Trials, attempts at them, and their records in the ledger: documents that other programs may read."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, field_validator, model_validator

from meltpoint.adapters.hyperparameters import Value
from meltpoint.adapters.training.epochs import EpochResult, Number, Seconds, best_epoch
from meltpoint.tasks.core.metrics import limits
from meltpoint.tasks.core.scoring import score_text
from meltpoint.tasks.core.wording import some

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A number of bytes or parameters. A larger one means damage, and may not fit in a float."""
MemoryKind = Literal["gpu_allocated", "process", "process_lifetime"]
"""The tensors of torch's allocator on the GPU; the worker process's resident memory while the trial ran; or that memory
since the process began, earlier trials included, where the system cannot reset the count."""


class HardwareRecord(BaseModel):
    """The hardware of a trial.

    Attributes:
        device: "cpu" or "cuda:0".
        name: the GPU's name, or the CPU's widest instruction set ("AVX512").
        threads: CPU threads per operation.
        gpu_share: the share of the GPU that Ray assigned; 0 on a CPU.
        precision: "bf16" or "fp32", as resolved on that hardware.
        host: the machine's name.
    """

    model_config = ConfigDict(frozen=True)

    device: str
    name: str
    threads: int
    gpu_share: FiniteFloat
    precision: str
    host: str


class ResourceUse(BaseModel):
    """The memory of one trial. A value that the hardware does not report is None.

    Attributes:
        peak_memory_bytes: the most memory in use at once. Trials that trained side by side share one peak. A process
            also holds its encoder and data, which earlier trials may have loaded.
        peak_memory_kind: the kind of memory counted.
    """

    model_config = ConfigDict(frozen=True)

    peak_memory_bytes: Count | None = None
    peak_memory_kind: MemoryKind | None = None


NOTHING_KNOWN = ResourceUse()


class Attempt(ResourceUse):
    """One attempt at a trial, up to its latest event. A trial's record has the same fields (`TrialRecord`).

    Attributes:
        hardware: None if no worker reported it.
        epochs: trained and scored on dev, including the epochs of earlier attempts that this one resumed.
        trained_together: how many trials the worker trained side by side, this one included.
        input_notes: the effects of the length limit on the inputs, one line each; reports print them.
        storage_notes: the use of cached hidden states and saved epochs, one line each; no report prints them.
        task_parameters: the number of parameters learned outside the encoder, for the head and a mix of layers; None if
            no worker built the model.
        trained_parameters: the number of parameters that its plan trains: the task parameters, and the encoder's layer
            groups that are open in any epoch (the whole subword embedding table, if its group is).
        model_parameters: the number of all parameters, of encoder and head; None in records of older versions.
        micro_batch_size: the most rows that went through the model at once, if a batch of the setting did not fit the
            GPU. The gradients are those of the full batch; the last bits and the dropout masks differ. None: batches
            were not split.
        gradient_checkpointing: whether the encoder's activations were recomputed in the backward pass, because a batch
            did not fit the GPU otherwise. A GPU's last bits may differ, since it then records no CUDA graphs.
        resumed_after_epochs: how many epochs earlier attempts had trained and saved; this one resumed after them.
        seconds_before: the time that those attempts took for these epochs.
        versions: package → its version where the attempt ran; empty in records of older versions.
    """

    hardware: HardwareRecord | None = None
    epochs: list[EpochResult] = Field(default_factory=list)
    trained_together: int = Field(default=1, ge=1)
    input_notes: list[str] = Field(default_factory=list)
    storage_notes: list[str] = Field(default_factory=list)
    task_parameters: Count | None = None
    trained_parameters: Count | None = None
    model_parameters: Count | None = None
    micro_batch_size: int | None = None
    gradient_checkpointing: bool = False
    resumed_after_epochs: int = 0
    seconds_before: Seconds = 0.0
    versions: dict[str, str] = Field(default_factory=dict)


TrialId = Annotated[str, Field(pattern=r"^[^./\x00][^/\x00]{0,199}$")]
"""A trial's identity. It names files and folders, so the pattern rules out path traversal."""
Role = Literal["search", "final", "default"]
"""A trial of the search; the best setting with a finals seed; or the published setting with a finals seed."""
FINAL_ROLES: tuple[Role, ...] = ("final", "default")
"""The roles scored on test, in the order in which a cell runs them."""
SuggestedBy = Literal["first", "random", "gp", "tpe", "sibling", "grid"]
"""The source of a search trial's setting. `sibling`: the best one of a cell with the same mode and head."""
STATES = "state.*"
"""The files in a trial's checkpoint folder that hold its saved epochs (`worker.epoch_checkpoints`)."""
GPU_TOLERANCE = 0.02
"""The largest accepted difference between scores of the same weights on a GPU, where other trials affect rounding."""
ROUNDING = 1e-6
"""The most that a score may exceed its metric's range: a correlation of 1 may be computed as slightly more."""
CellKey = tuple[str, ...]
"""A cell's key within a sweep: (encoder, mode, task), or (encoder, mode, task, variant) if it has a variant."""
CELL = ("encoder", "mode", "task", "variant")
"""The names of a key's parts in records, orders and tags."""
Status = Literal["finished", "stopped", "failed"]
Cause = Literal["setting", "worker", "memory", "disk", "input"]
"""The cause of a failure: the setting, or the environment (every other value), which says nothing about the setting."""


def reason(error: ValueError) -> str:
    """The reason for refusing a file, in one line: the first validation error, or the error's first line."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))[:60]
        text = str(first["msg"]).removeprefix("Value error, ")
        return f"{place}: {text}" if place else text
    return (str(error).splitlines() or [type(error).__name__])[0]


def check_scores(metric: str, scores: Iterable[Mapping[str, float]]) -> None:
    """Check that scores contain a task's metric and are possible (`check_possible`).

    Raises:
        ValueError: the first such score.
    """
    found = list(scores)
    if any(metric not in one for one in found):
        raise ValueError(f"a score lacks its metric {metric}")
    check_possible(found)


def check_possible(scores: Iterable[Mapping[str, float]]) -> None:
    """Check that scores are finite and within their metric's range.

    Raises:
        ValueError: the first such score.
    """
    for one in scores:  # in plain loops: a large ledger has a million scores
        for name, value in one.items():
            lowest, highest = limits(name)
            if not (math.isfinite(value) and lowest - ROUNDING <= value <= highest + ROUNDING):
                raise ValueError(f"{name} is {value}, outside the range of that metric")


def cell_key(encoder: str, mode: str, task: str, variant: str = "") -> CellKey:
    """The key of a cell."""
    return (encoder, mode, task, variant) if variant else (encoder, mode, task)


class Trial(BaseModel):
    """A trial: its cell, setting, seed and role. Orders and records extend it.

    Only these fields are read from `started/ID.json`. That note also holds the paths of the checkpoint, cache and data
    at the time; a resumed sweep uses its current paths instead.

    Attributes:
        id: its identity (`identity`).
        number: its index in the cell's order, from 0.
        variant: distinguishes its cell from others of the same encoder, mode and task; "" if there are none.
        setting: a complete setting.
        suggested_by: the source of its setting; None for finals, and in files older than this field.
    """

    model_config = ConfigDict(frozen=True)

    id: TrialId
    number: int
    encoder: str
    mode: str
    task: str
    variant: str = ""
    role: Role
    seed: int
    setting: dict[str, Value]
    suggested_by: SuggestedBy | None = None

    @field_validator("setting")
    @classmethod
    def _fits_numbers(cls, setting: dict[str, Value]) -> dict[str, Value]:
        for name, value in setting.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} is not a finite number")
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise ValueError(f"{name} does not fit in 64 bits")
        return setting

    @property
    def cell(self) -> CellKey:
        """The key of its cell."""
        return cell_key(self.encoder, self.mode, self.task, self.variant)

    @classmethod
    def of(cls, other: Trial) -> Trial:
        """The trial's own fields, taken from an order or a record."""
        return Trial(**{name: getattr(other, name) for name in Trial.model_fields})


def trial_label(trial: Trial) -> str:
    """A trial's name within its cell: `trial 3` (from 1, as `show` counts), `final, seed 1`, `default, seed 1`."""
    return f"trial {trial.number + 1}" if trial.role == "search" else f"{trial.role}, seed {trial.seed}"


class TrialRecord(Trial, Attempt):
    """One trial, as `trials/ID.json`: its description, its last attempt, and its result.

    Attributes:
        status: `finished`; `stopped` early by the space's rule or the time budget; `failed` with an `error`.
        dev: the task's metric on dev at `best_epoch`; for a scored final, on all of dev.
        dev_metrics: every metric at that epoch, on the same examples.
        dev_examples: the size of all of dev, for a scored final whose epochs read a sample of dev; otherwise None.
        test: every metric on test, once it is scored; always None for a search trial.
        test_fingerprint: of the test split that it was scored on (`locked.TestData`).
        data_fingerprint, documents_fingerprint, encoder_fingerprint: as in `FACTS`.
        started_at: when a worker started it; equal for all trials of one order.
        seconds: the time from `started_at` to its end, by its worker's clock and without waits for the driver; by the
            driver's clock if the trial was lost with its worker. Trials of one order share that time.
        answered_by: the trial whose run this one shares because setting and seed are the same.
        cause: the cause of a failure; otherwise None.
        attempts: how often it started within the command that ended it, lost attempts included.
        code_version: the version of the code that ran it; its identity contains the version that opened the sweep.
        driver_attempt: the number of the driver that wrote this file (`lease`); 0 in records older than this field.
    """

    head: str
    status: Status
    metric: str
    dev: Number | None = None
    dev_metrics: dict[str, Number] = Field(default_factory=dict)
    dev_examples: Count | None = None
    best_epoch: int | None = None
    test: dict[str, Number] | None = None
    test_fingerprint: str | None = None
    error: str | None = None
    answered_by: str | None = None
    mlflow_run_id: str | None = None
    data_fingerprint: str
    documents_fingerprint: str = ""
    encoder_fingerprint: str = ""
    code_version: str
    started_at: Seconds
    seconds: Seconds
    cause: Cause | None = None
    attempts: int = 1
    driver_attempt: int = 0

    @model_validator(mode="after")
    def _has_possible_scores(self) -> Self:
        if self.best_epoch not in {None, *(epoch.epoch for epoch in self.epochs)}:
            raise ValueError(f"its best epoch, {self.best_epoch}, is not one of its epochs")
        if self.status == "finished" and self.epochs and self.dev is None:
            raise ValueError("it is finished but has no dev score")
        check_scores(self.metric, [*(epoch.dev for epoch in self.epochs), *([self.test] if self.test else [])])
        own = {} if self.dev is None else {self.metric: self.dev}
        check_possible([own, self.dev_metrics, *(epoch.train for epoch in self.epochs)])
        for epoch in self.epochs:
            if not (math.isfinite(epoch.train_loss) and math.isfinite(epoch.learning_rate)):
                raise ValueError(f"epoch {epoch.epoch} has a train_loss or learning_rate that is not finite")
        return self

    @property
    def dev_of_epoch(self) -> float | None:
        """The score that chose its epoch: `dev`, or the sample's score if a final was scored on all of dev."""
        best = (epoch.dev[self.metric] for epoch in self.epochs if epoch.epoch == self.best_epoch)
        return self.dev if self.dev_examples is None else next(best, self.dev)

    def is_its_dev(self, found: float) -> bool:
        """True if a score of the saved weights equals the recorded one, within `dev_tolerance`.

        Args:
            found: a score on the same dev examples that the epochs were scored on.
        """
        return (own := self.dev_of_epoch) is not None and abs(found - own) <= self.dev_tolerance

    @property
    def dev_tolerance(self) -> float:
        """The largest accepted difference in dev if the same weights are evaluated again together with other trials."""
        return GPU_TOLERANCE if self.hardware is not None and self.hardware.device != "cpu" else 0.0

    def result_notes(self) -> list[str]:
        """Notes on its epochs that a reader of its score needs, one line each; most finished trials have none."""
        result = next((one for one in self.epochs if one.epoch == self.best_epoch), None)
        if result is None or self.status != "finished":
            return []
        notes, last = [], self.epochs[-1]
        best = best_epoch(self.epochs, self.metric) or result
        if result.phase != last.phase:
            notes.append(f"its result is epoch {result.epoch} of {_phase(result)}, chosen by an earlier version")
        elif best.phase != last.phase and best.dev[self.metric] != result.dev[self.metric]:
            notes.append(
                f"{_phase(best)} was better: {score_text(best.dev[self.metric], self.metric)} in epoch {best.epoch}"
            )
        if result.frozen_groups:
            never = f", and {last.frozen_groups} never thawed" if last.frozen_groups else ""
            notes.append(
                f"its result is epoch {result.epoch}, in which {some(result.frozen_groups, 'layer group')} of the "
                f"encoder had not thawed{never}: more epochs or a smaller gradual_unfreezing.epochs_per_group thaw all"
            )
        return notes

    @property
    def epoch_count(self) -> int:
        """The number of its epochs."""
        return len(self.epochs)

    @property
    def gpu_share(self) -> float | None:
        """The share of a GPU that Ray assigned to it; 0 on a CPU; None if no worker reported it."""
        return self.hardware.gpu_share if self.hardware is not None else None

    @property
    def is_lost(self) -> bool:
        """True if it failed for a reason other than its setting, so that it says nothing about the setting."""
        return self.status == "failed" and self.cause not in (None, "setting")


def _phase(epoch: EpochResult) -> str:
    return "the frozen phase" if epoch.encoder_frozen else f"the phase {epoch.phase}"


FACTS = ("head", "metric", "data_fingerprint", "documents_fingerprint", "encoder_fingerprint")
"""The inputs of a trial's result besides cell, setting and seed; they are part of its identity.

Attributes of a record, of an opened cell, and of a cell in `sweep.json`. The fingerprints are of the train and dev
split, of its grouping into documents ("" if the cell's trials do not read it), and of the encoder's files.
"""
facts_of: Callable[[object], tuple[str, ...]] = attrgetter(*FACTS)


def by_cell(
    records: Iterable[TrialRecord], facts: Mapping[CellKey, tuple[str, ...]], codes: Collection[str]
) -> tuple[dict[CellKey, list[TrialRecord]], list[TrialRecord]]:
    """The records of each cell, and the records that match no current cell.

    Args:
        facts: cell → its facts (`facts_of`).
        codes: the accepted versions of the code (`SweepFile.codes`).
    """
    own: dict[CellKey, list[TrialRecord]] = {key: [] for key in facts}
    strays: list[TrialRecord] = []
    for record in records:
        fits = record.code_version in codes and facts.get(record.cell) == facts_of(record)
        (own[record.cell] if fits else strays).append(record)
    return own, strays


def strays_in_words(strays: Sequence[TrialRecord]) -> str:
    """One line about records that were left out."""
    names = ", ".join(f"{record.id}.json" for record in strays[:3]) + (", …" if len(strays) > 3 else "")
    return (
        f"Left out: {len(strays)} of the ledger's records ({names}), whose metric, head, encoder, data or code differs "
        "from their cell's."
    )


def identity(parts: Mapping[str, object]) -> str:
    """A trial's identity: 16 hex characters of the sha256 over (cell, its facts, setting, seed, role, code).

    Args:
        parts: values that JSON can represent; the order of keys does not matter.
    """
    canonical = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
