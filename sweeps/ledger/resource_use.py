"""The resources that a trial used: peak memory and energy, and what exactly each figure is."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt

MemoryKind = Literal["gpu_allocated", "process", "process_lifetime"]
"""The tensors of torch's allocator on the GPU; the worker process's resident memory while the trial ran; or the same
since that process began, earlier trials included, where the system cannot count anew."""
EnergySource = Literal["nvml", "rapl"]
"""The GPU's own counter (NVML: the whole board), or the processor packages' (RAPL: without the memory modules)."""


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

    peak_memory_bytes: NonNegativeInt | None = None
    peak_memory_kind: MemoryKind | None = None
    energy_joules: NonNegativeFloat | None = None
    energy_source: EnergySource | None = None
    energy_share: NonNegativeFloat | None = None


NOTHING_KNOWN = ResourceUse()
