"""One attempt at a trial, as its worker reports it: hardware, epochs, notes, peak memory."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from meltpoint.adapters.training.epochs import EpochResult, Seconds

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
        resumed_after_epochs: how many epochs earlier attempts had trained and saved; this one resumed after them.
        seconds_before: the time that those attempts took for these epochs.
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
    resumed_after_epochs: int = 0
    seconds_before: Seconds = 0.0
