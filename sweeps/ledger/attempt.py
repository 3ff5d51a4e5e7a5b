"""One attempt at a trial, as its worker reports it: hardware, epochs, notes, peak memory and energy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from meltpoint.adapters.training.epochs import EpochResult, Seconds

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A number of bytes or parameters; a larger one is damage, and no float may hold it."""
Joules = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
MemoryKind = Literal["gpu_allocated", "process", "process_lifetime"]
"""The tensors of torch's allocator on the GPU; the worker process's resident memory while the trial ran; or the same
since that process began, earlier trials included, where the system cannot count anew."""
EnergySource = Literal["nvml", "rapl"]
"""The GPU's own counter (NVML: the whole board), or the processor packages' (RAPL: without the memory modules)."""


class HardwareRecord(BaseModel):
    """The hardware of a trial.

    Attributes:
        device: "cpu" or "cuda:0".
        name: the GPU's name, or the CPU's widest instructions ("AVX512").
        threads: CPU threads of one operation.
        gpu_share: the share of the GPU that Ray gave; 0 on a CPU.
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
    """The memory and energy of one trial, as far as the hardware tells; what cannot be read is None.

    Attributes:
        peak_memory_bytes: the most that was in use at once. Trials that trained side by side have the peak of all of
            them, and a process holds its encoder and data too, which earlier trials may have loaded.
        peak_memory_kind: what was counted.
        energy_joules: the counter's energy × `energy_share`, from when a worker took the trial up to its last event;
            of trials that trained side by side an even part each, so that their sum is the whole. Of the attempt that
            ended the trial alone.
        energy_source: the counter.
        energy_share: the part of the counter's energy that counts as the trial's: its share of the GPU, or its threads
            as a part of the machine's logical cores. The power of an idle rest of the hardware is nobody's.
    """

    model_config = ConfigDict(frozen=True)

    peak_memory_bytes: Count | None = None
    peak_memory_kind: MemoryKind | None = None
    energy_joules: Joules | None = None
    energy_source: EnergySource | None = None
    energy_share: Joules | None = None


NOTHING_KNOWN = ResourceUse()


class Attempt(ResourceUse):
    """One attempt at a trial, as far as it has come; a trial's record has the same fields (`TrialRecord`).

    Attributes:
        hardware: None where no worker came to say.
        epochs: trained and scored on dev, earlier attempts' that this one resumed among them.
        trained_together: how many trials the worker trained side by side with this one, itself counted.
        input_notes: what the length limit did to the inputs, a line each; reports print them.
        storage_notes: what became of cached hidden states and of saved epochs, a line each; no report prints them.
        task_parameters: how many numbers are learned besides the encoder's, for the head and a mix of layers; None if
            no worker built it.
        trained_parameters: how many numbers its plan trains: these, and of the encoder the layer groups that are open
            in any epoch (the whole table of subword tokens, if its group is).
        micro_batch_size: the most rows that went through the model at once, where a batch of the setting did not fit
            the GPU: the gradients are the batch's, the last bits and the masks of dropout are others. None: whole ones.
        resumed_after_epochs: how many of its epochs earlier attempts had trained and saved; it resumed after them.
        seconds_before: what these attempts took for them.
    """

    hardware: HardwareRecord | None = None
    epochs: list[EpochResult] = Field(default_factory=list)
    trained_together: int = Field(default=1, ge=1)
    input_notes: list[str] = Field(default_factory=list)
    storage_notes: list[str] = Field(default_factory=list)
    task_parameters: Count | None = None
    trained_parameters: Count | None = None
    micro_batch_size: int | None = None
    resumed_after_epochs: int = 0
    seconds_before: Seconds = 0.0
