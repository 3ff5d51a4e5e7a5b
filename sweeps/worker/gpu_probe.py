"""A probe of a cell's GPU memory, in a process of its own.

It runs the heaviest steps of a trial: two of training and an evaluation, with all layers thawed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.hardware import Hardware, claim_device, is_gpu_out_of_memory
from meltpoint.adapters.training.evaluation import EVALUATION_BATCH
from meltpoint.adapters.training.trial_state import EncodedData
from meltpoint.sweeps.worker.outcome import memory_error_in_short
from meltpoint.sweeps.worker.resources import release_memory
from meltpoint.sweeps.worker.work_order import WorkOrder
from meltpoint.sweeps.worker.worker import training, warm_encoder
from meltpoint.tasks.core.task import Kind


@dataclass(frozen=True)
class Need:
    """The result of a memory probe.

    Attributes:
        bytes: peak GPU memory of one trial's process.
        total_bytes: the GPU's memory.
        error: one line on why nothing was measured; None if it was.
    """

    bytes: int
    total_bytes: int
    error: str | None = None


class GpuMeter:
    """The first visible GPU's memory: the peak of torch's allocator, plus the memory in use outside it.

    Outside are the CUDA context and the memory of other programs. All of it counts as the trial's, which may be too
    much but never too little.
    """

    def begin(self) -> None:
        """Start measuring."""
        torch.cuda.reset_peak_memory_stats()

    def read(self) -> Need:
        """The peak memory since `begin`."""
        free, total = torch.cuda.mem_get_info()
        outside = total - free - torch.cuda.memory_reserved()
        return Need(torch.cuda.max_memory_reserved() + max(0, outside), total)


class ProbeOrder(BaseModel):
    """The order of one cell's probe.

    Attributes:
        bundles: the cell's largest bundles of trials that a worker may get; each is run separately.
        residents: (encoder, kind of task) that other trials of the sweep may leave on the GPU in a warm worker.
    """

    model_config = ConfigDict(frozen=True)

    bundles: tuple[WorkOrder, ...]
    residents: tuple[tuple[str, Kind], ...] = ()


def probe_gpu(document: dict[str, Any]) -> Need:
    """Run a probe on the GPU assigned by Ray; an error is returned as an answer."""
    try:
        order = ProbeOrder.model_validate(document)
        return probe(order, claim_device(int(order.bundles[0][0].cpus), 1.0), GpuMeter())
    except Exception as failure:  # noqa: BLE001 - the driver reports it in one line and ends the sweep
        if not is_gpu_out_of_memory(failure):
            return Need(0, 0, f"{type(failure).__name__}: {failure}")
        fault = memory_error_in_short(failure)
        why = f"a whole GPU is too small for the largest batches ({fault}); they train with less at a time."
        return Need(0, 0, why)


def probe(order: ProbeOrder, hardware: Hardware, meter: GpuMeter) -> Need:
    """Run the heaviest steps of each bundle; returns the need of the heaviest bundle."""
    meter.begin()
    for word, kind in order.residents:
        warm_encoder(word, kind).to(hardware.device)
    for work in order.bundles:
        _run_largest(work, hardware, meter)
        release_memory()
    return meter.read()


def _run_largest(work: WorkOrder, hardware: Hardware, meter: GpuMeter) -> None:
    """Run the heaviest steps of a bundle; if that fails, of half of it, then of a quarter, down to one trial."""
    try:
        _run_heaviest_steps(work, hardware)
        return
    except Exception:
        if len(work) == 1:
            raise
    release_memory()
    meter.begin()
    _run_largest(work[: len(work) // 2], hardware, meter)


def _run_heaviest_steps(work: WorkOrder, hardware: Hardware) -> None:
    """Run two steps of the last epoch, which has most layers thawed, an evaluation, and two copies of the weights.

    Two steps, because the first creates the optimiser's state; two copies, because the best weights so far are kept
    while better ones are copied.
    """
    trainer = training(work, hardware)
    plan = trainer.trials[0].table.plan
    trainer.data = longest_rows(trainer.data, 2 * trainer.batch_size)
    trainer.step = (plan.epochs - 1) * plan.steps_per_epoch
    next(trainer.epochs())
    trainer.evaluate(_longest(trainer.data.train, EVALUATION_BATCH)[0], [])  # as for cached states
    for _ in range(2):
        own = trainer.model.own_weights(0)
        trainer.trials[0].best_state = own | trainer.model.encoder_weights() if trainer.trains_encoder else own


def longest_rows(data: EncodedData, train_rows: int) -> EncodedData:
    """The examples with the longest rows: at least `train_rows` rows of train, and one evaluation batch of dev."""
    train, _ = _longest(data.train, train_rows)
    dev, chosen = _longest(data.dev, EVALUATION_BATCH)
    return EncodedData(data.task, train, dev, [data.dev_examples[example] for example in chosen])


def _longest(split: EncodedSplit, rows: int) -> tuple[EncodedSplit, list[int]]:
    """(the examples with the longest rows, with all their windows; their indices)."""
    order = sorted(range(len(split.rows)), key=lambda row: -sum(map(len, split.rows[row].inputs)))
    chosen = sorted({split.rows[row].example for row in order[:rows]})
    place = {example: index for index, example in enumerate(chosen)}
    kept = [replace(row, example=place[row.example]) for row in split.rows if row.example in place]
    words = [split.word_counts[example] for example in chosen] if split.word_counts else []
    return EncodedSplit(kept, len(chosen), word_counts=words), chosen
