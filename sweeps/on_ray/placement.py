"""Placement of trials: on shares of GPUs if Ray has any, otherwise on CPUs; with a line for the screen.

With `--gpus-per-trial auto`, each cell's memory need is measured. A probe trains two steps of the
cell's heaviest setting, alone on a GPU. The cell's share is the smallest 1/k that holds this need and a margin, within
`machine.limits`. In a cluster with several kinds of GPU, each trial gets a whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from meltpoint.adapters import encoders, modes, settings
from meltpoint.adapters.hyperparameters import Value
from meltpoint.adapters.modes.top_k import K
from meltpoint.search_spaces.ranges import Range
from meltpoint.sweeps.ledger.records import CellKey, Trial
from meltpoint.sweeps.machine.limits import GPU_MARGIN, MOST_TRIALS_OF_A_GPU
from meltpoint.sweeps.on_ray.cluster_capacity import slots, wait_for_room
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell, cell_name
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.worker.work_order import Order, WorkOrder
from meltpoint.tasks.core.task import Kind
from meltpoint.tasks.core.wording import some

if TYPE_CHECKING:
    from meltpoint.sweeps.worker.gpu_probe import Need, ProbeOrder  # imports the training code

RAY_UNITS = 10_000  # Ray counts resources in ten-thousandths (ray 2.60, fixed_point.h) and rounds: 1/6 would be 0.1667

MakeOrder = Callable[[Trial, float], Order]
"""`SweepDriver.order`: a trial and its share of a GPU → the worker's order."""


@dataclass(frozen=True)
class ClusterGpus:
    """The GPUs of a Ray cluster.

    Attributes:
        count: number of GPUs.
        kinds: their kinds as Ray names them ("H100"), sorted.
    """

    count: int
    kinds: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{some(self.count, 'GPU')} ({', '.join(self.kinds)})"


@dataclass(frozen=True)
class Placement:
    """The resources of a sweep's trials.

    Attributes:
        resources: the command's; `gpus_per_trial` is a number, or "auto" if each cell has its own share.
        slots: most trials at a time.
        shares: cell → the measured share of a GPU that its trials get.
        line: the placement in one line, for the screen.
        least_gpus: the smallest number of GPUs that a trial gets.
    """

    resources: Resources
    slots: int
    line: str
    least_gpus: float
    shares: Mapping[CellKey, float] = field(default_factory=dict)


def place(
    planner: Planner, order: MakeOrder, resources: Resources, say: Callable[[str], None],
    probe: Callable[[dict[str, Any]], Need] | None = None,
) -> Placement:  # fmt: skip
    """Decide where trials run, from the resources of the joined Ray cluster.

    Args:
        say: receives a line before GPU memory is measured, which takes a while, and if a cluster has no room yet.
        probe: measures a cell on a GPU (`measure`); None for the real one.

    Raises:
        ValueError: Ray has too little for one trial.
    """
    import ray

    found = gpus_of_nodes(ray.nodes())  # type: ignore[no-untyped-call]
    gpus, why = settle(resources, found)
    planner.gpus = found.count if gpus else 0
    shares: dict[CellKey, float] = {}
    if resources.address is not None:
        needed = 1.0 if gpus == "auto" else gpus
        slots(resources.cpus_per_trial, needed)
        wait_for_room(resources.cpus_per_trial, needed, say)
    if gpus == "auto":
        say(f"Ray has {found}: each cell's heaviest setting runs on one, to measure how many trials share it.")
        shares = measure(planner, order, resources, found.count, say, probe)
    least = min(shares.values()) if gpus == "auto" else gpus
    count = slots(resources.cpus_per_trial, least)
    most = max(shares.values(), default=least)
    line = in_words(len(planner.cells), count, resources.cpus_per_trial, (least, most), why)
    if least < most:
        measured = (f"{cell_name(*key)} {share:g}" for key, share in shares.items())
        line += f" Measured shares of a GPU: {', '.join(measured)}."
    return Placement(replace(resources, gpus_per_trial=gpus), count, line, least, shares)


def gpus_of_nodes(nodes: Iterable[Mapping[str, Any]]) -> ClusterGpus:
    """The GPUs of a Ray cluster, by `ray.nodes()`."""
    having = [node["Resources"] for node in nodes if node["Alive"] and node["Resources"].get("GPU", 0) > 0]
    mark = "accelerator_type:"
    kinds = {next((name.removeprefix(mark) for name in have if name.startswith(mark)), "unknown") for have in having}
    return ClusterGpus(int(sum(have["GPU"] for have in having)), tuple(sorted(kinds)))


def settle(resources: Resources, found: ClusterGpus) -> tuple[float | Literal["auto"], str]:
    """(GPUs per trial, or "auto" to measure them; the reason).

    The driver's torch represents the workers' only on a local cluster, where they have the same environment.
    """
    if found.count < 1:
        why = "no GPU in this Ray cluster"
        return (0.0, why) if resources.gpus_per_trial == "auto" else (resources.gpus_per_trial, why)
    if resources.gpus_per_trial != "auto":
        return resources.gpus_per_trial, f"--gpus-per-trial {resources.gpus_per_trial:g}; Ray has {found}"
    if resources.address is None and not torch.cuda.is_available():
        return 0.0, f"Ray has {found}, but torch {torch.__version__} cannot use any; see `meltpoint doctor`"
    if len(found.kinds) > 1:
        return 1.0, f"Ray has {found}; set a number to share them, such as --gpus-per-trial 0.5"
    return "auto", f"Ray has {found}"


def in_words(cells: int, count: int, cpus: float, shares: tuple[float, float], why: str) -> str:
    """`3 cells, 2 trials at a time, each on 1 CPU (no GPU in this Ray cluster).`

    Args:
        count: trials at a time.
        shares: the smallest and the largest share of a GPU that a trial gets; 0 on the CPU.
        why: the text in parentheses.
    """
    least, most = shares
    range_, up_to = (f"{least:g} to ", "up to ") if least < most else ("", "")
    gpu = f"{range_}{some(most, 'GPU')} and " if most else ""
    return f"{some(cells, 'cell')}, {up_to}{some(count, 'trial')} at a time, each on {gpu}{some(cpus, 'CPU')} ({why})."


# Shares by measured memory.


def share_of(bytes_needed: int, total_bytes: int, most_trials: int = MOST_TRIALS_OF_A_GPU) -> float:
    """The share of a GPU that a trial gets: 1/k, rounded down to Ray's units, for the most trials k that fit.

    Any trials whose shares add up to at most 1 fit together, each with its margin. A trial alone on a GPU needs no
    margin.

    Raises:
        ValueError: a whole GPU is too small.
    """
    for trials in range(most_trials, 1, -1):
        units = RAY_UNITS // trials
        if bytes_needed * (1 + GPU_MARGIN) * RAY_UNITS <= units * total_bytes:
            return units / RAY_UNITS
    if bytes_needed <= total_bytes:
        return 1.0
    gib = 2**30
    raise ValueError(
        f"a trial needs {bytes_needed / gib:.1f} GiB of GPU memory and the GPU has {total_bytes / gib:.1f}; "
        "lower batch_size or max_pieces (for example --set batch_size=16)."
    )


def measure(
    planner: Planner, order: MakeOrder, resources: Resources, gpus: int,
    say: Callable[[str], None], probe: Callable[[dict[str, Any]], Need] | None = None,
) -> dict[CellKey, float]:  # fmt: skip
    """Probe each unfinished cell, with one probe per GPU at a time.

    Args:
        gpus: number of GPUs in Ray.
        say: receives a line for a cell that could not be measured or does not fit: its trials get a whole GPU each.
        probe: runs in a Ray worker on a `ProbeOrder` as JSON; None for `probe_gpu`.

    Returns:
        Cell → its trials' share of a GPU.
    """
    import ray

    from meltpoint.sweeps.worker.gpu_probe import probe_gpu

    slots(resources.cpus_per_trial, 1.0)
    # One process per probe: its CUDA context ends with it, so the next probe does not count its memory.
    remote = ray.remote(num_cpus=resources.cpus_per_trial, num_gpus=1, max_calls=1)(probe or probe_gpu)
    probes = probe_orders(planner, order, gpus)
    asked = {key: remote.remote(one.model_dump(mode="json")) for key, one in probes.items()}
    return {key: _share(key, reference, say) for key, reference in asked.items()}


def _share(key: CellKey, reference: Any, say: Callable[[str], None]) -> float:
    """A cell's measured share of a GPU; a whole one, with a line, if it has none."""
    import ray

    try:
        need: Need = ray.get(reference)
        if need.error is not None:
            raise ValueError(need.error)
        return share_of(need.bytes, need.total_bytes)
    except ray.exceptions.RayError as error:
        why = f"its worker died ({str(error).splitlines()[0]})."
    except ValueError as error:
        why = str(error)
    say(f"--gpus-per-trial auto: {cell_name(*key)}: {why} Its trials get a whole GPU each.")
    return 1.0


def probe_orders(planner: Planner, order: MakeOrder, gpus: int) -> dict[CellKey, ProbeOrder]:
    """The probes of all unfinished cells."""
    from meltpoint.sweeps.worker.gpu_probe import ProbeOrder

    cells = [progress.cell for progress in planner.unfinished()]
    return {
        cell.key: ProbeOrder(bundles=(_bundle(planner, cell, order, gpus),), residents=_residents(cell, cells))
        for cell in cells
    }


def _bundle(planner: Planner, cell: OpenCell, order: MakeOrder, gpus: int) -> WorkOrder:
    """The largest bundle of a cell's search trials, which read one batch for all; without cached states."""
    trials = [
        cell.trial(f"probe-{number}", number, "search", heaviest(cell), planner.spec.seed)
        for number in range(planner.search_bundle(cell, gpus))
    ]
    return tuple(order(trial, 1.0).model_copy(update={"cache": ""}) for trial in trials)


def heaviest(cell: OpenCell) -> dict[str, Value]:
    """The cell's first setting with the largest batches, inputs and layers of its space, and every layer thawed."""
    setting = dict(cell.space.first())
    for own in settings.parameters(cell.mode, cell.head, cell.task.kind):
        found = cell.space.parameters.get(own.name)
        if (own.shapes or own.name == K.name) and found is not None:
            setting[own.name] = _largest_value(found)
    if modes.get(cell.mode).trains_encoder:
        setting |= {trick.name: False for trick in settings.encoder_tricks()}
    return settings.complete(setting, cell.mode, cell.head, cell.task.kind)


def _largest_value(found: Range) -> Value:
    """A range's largest number; of words, the one that takes most memory."""
    values = found.points() or (found.start,)
    words = [word for word in ("fine_tuning", "fp32", "mix", "document", "auto", "bf16") if word in values]
    return words[0] if words else max(values)


def _residents(cell: OpenCell, cells: list[OpenCell]) -> tuple[tuple[str, Kind], ...]:
    """Encoders of frozen trials that a warm worker keeps on the GPU (`worker.warm_encoder`, two of them)."""
    frozen = [other for other in cells if not modes.get(other.mode).trains_encoder]
    sizes = {(one.located_encoder, one.task.kind): encoders.weights_without_embeddings(one.reference) for one in frozen}
    own = (cell.located_encoder, cell.task.kind)
    others = sorted((size, entry) for entry, size in sizes.items() if entry != own)
    return tuple([own] * (own in sizes) + [entry for _, entry in others[-1:]])
