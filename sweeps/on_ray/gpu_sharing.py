"""Sharing of GPUs by trials: with `--gpus-per-trial auto`, each cell's need of memory is measured.

A probe (`memory_probe`) trains two steps of each cell's heaviest setting, alone on a GPU, once on each kind that the
cluster has. The cell's share is the smallest 1/k that holds what was needed and a margin on every kind, within
`machine.gpu_limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meltpoint.adapters import encoders, modes, settings
from meltpoint.adapters.hyperparameters import Value
from meltpoint.search_spaces.ranges import Range
from meltpoint.sweeps.ledger.records import CellKey
from meltpoint.sweeps.machine.gpu_limits import BUNDLES_FINALS, MARGIN, MOST_TRIALS
from meltpoint.sweeps.on_ray.room import slots
from meltpoint.sweeps.search.cell_progress import Proposal
from meltpoint.sweeps.search.cell_work import can_bundle
from meltpoint.sweeps.search.planner import LARGEST_BUNDLE, Planner
from meltpoint.sweeps.specification.cells import OpenCell, cell_name
from meltpoint.sweeps.specification.sweep_spec import Resources
from meltpoint.sweeps.worker.memory_probe import Need, ProbeOrder, probe_gpu
from meltpoint.sweeps.worker.work_order import Order, WorkOrder
from meltpoint.tasks.core.task import Kind

RAY_UNITS = 10_000  # Ray counts resources in ten-thousandths (ray 2.60, fixed_point.h) and rounds: 1/6 would be 0.1667

MakeOrder = Callable[[Proposal, float], Order]
"""`SweepDriver.order`: a proposal and its share of a GPU → what a worker is told."""


def share_of(bytes_needed: int, total_bytes: int, most_trials: int = MOST_TRIALS) -> float:
    """The share of a GPU that a trial gets: 1/k, rounded down to Ray's units, for the most trials k that fit.

    Any trials whose shares add up to at most 1 fit together, each with its margin. A trial that has the GPU to itself
    needs none.

    Raises:
        ValueError: a whole GPU is too small.
    """
    for trials in range(most_trials, 1, -1):
        units = RAY_UNITS // trials
        if bytes_needed * (1 + MARGIN) * RAY_UNITS <= units * total_bytes:
            return units / RAY_UNITS
    if bytes_needed <= total_bytes:
        return 1.0
    gib = 2**30
    raise ValueError(
        f"a trial needs {bytes_needed / gib:.1f} GiB of GPU memory and the GPU has {total_bytes / gib:.1f}; "
        "a smaller batch_size or max_pieces (--set batch_size=16) needs less."
    )


def measure(
    planner: Planner, order: MakeOrder, resources: Resources, gpus: int, kinds: Sequence[str],
    say: Callable[[str], None], probe: Callable[[dict[str, Any]], Need] | None = None,
) -> dict[CellKey, float]:  # fmt: skip
    """Probe each cell that has something left to do on each kind of GPU, as many at a time as there are GPUs.

    Args:
        gpus: how many Ray has.
        kinds: their kinds by Ray's names, where there are several; a trial may run on any, so the largest share counts.
        say: is told of a cell that could not be measured, or does not fit a GPU: its trials get a whole GPU each.
        probe: what runs in Ray's worker, a `ProbeOrder` as JSON in; None is `probe_gpu`.

    Returns:
        Cell → its trials' share of a GPU.

    Raises:
        ValueError: no cell fits, or none could be measured.
    """
    import ray

    slots(resources.cpus, 1.0)
    # A process a probe: it ends with its context, and leaves nothing for the next one to count.
    remote = ray.remote(num_cpus=resources.cpus, num_gpus=1, max_calls=1)(probe or probe_gpu)
    told = {key: one.model_dump(mode="json") for key, one in probe_orders(planner, order, gpus).items()}
    where = [{"accelerator_type": kind} for kind in kinds] if len(kinds) > 1 else [{}]
    asked = {key: [remote.options(**one).remote(document) for one in where] for key, document in told.items()}
    found = {key: [_share(key, reference, say) for reference in references] for key, references in asked.items()}
    return settled({key: largest(shares) for key, shares in found.items()}, say)


def largest(shares: Sequence[float | str]) -> float | str:
    """The share that is enough on every kind of GPU, or why there is none on one of them."""
    troubles = [share for share in shares if isinstance(share, str)]
    return troubles[0] if troubles else max(share for share in shares if not isinstance(share, str))


def settled(found: Mapping[CellKey, float | str], say: Callable[[str], None]) -> dict[CellKey, float]:
    """Cell → its trials' share of a GPU; a whole one where it could not be measured.

    Args:
        found: cell → the measured share, or why there is none.

    Raises:
        ValueError: none could be measured.
    """
    troubles = [share for share in found.values() if isinstance(share, str)]
    if found and len(troubles) == len(found):
        raise ValueError(f"{troubles[0]} (--gpus-per-trial 0 trains on the CPU.)")
    for trouble in troubles:
        say(f"{trouble} The cell's trials get a whole GPU each; the other cells are not touched by it.")
    return {key: 1.0 if isinstance(share, str) else share for key, share in found.items()}


def _share(key: CellKey, reference: Any, say: Callable[[str], None]) -> float | str:
    """A cell's share of a GPU, or why there is none, in one line; a whole one where even that is too small."""
    import ray

    try:
        need: Need = ray.get(reference)
        if need.is_too_large:  # trials that do not fit train in micro-batches
            say(f"--gpus-per-trial auto: {cell_name(*key)}: {need.error}")
            return 1.0
        if need.error is not None:
            raise ValueError(need.error)
        return share_of(need.bytes, need.total_bytes)
    except ray.exceptions.RayError as error:
        why = f"its worker died ({str(error).splitlines()[0]}); a number, as --gpus-per-trial 1, is not measured."
    except ValueError as error:
        why = str(error)
    return f"--gpus-per-trial auto: {cell_name(*key)}: {why}"


def in_words(shares: Mapping[CellKey, float]) -> str:
    """The shares, for the screen."""
    each = (f"{cell_name(*key)} {'all' if share == 1 else f'1/{round(1 / share)}'}" for key, share in shares.items())
    return f"Of a GPU, measured: {', '.join(each)}."


# The probes.


def probe_orders(planner: Planner, order: MakeOrder, gpus: int) -> dict[CellKey, ProbeOrder]:
    """The probes of all cells that have something left to do."""
    cells = [progress.cell for progress in planner.unfinished()]
    return {
        cell.key: ProbeOrder(bundles=_bundles(planner, cell, order, gpus), residents=_residents(cell, cells))
        for cell in cells
    }


def _bundles(planner: Planner, cell: OpenCell, order: MakeOrder, gpus: int) -> tuple[WorkOrder, ...]:
    """The largest bundles of a cell: search trials read one batch for all, finals read one for each seed."""
    spec = planner.spec
    bundles = [[spec.seed] * planner.search_bundle(cell, gpus)]
    if BUNDLES_FINALS and can_bundle(cell) and cell.seeds > 1:
        bundles.append([spec.seed + number for number in range(min(LARGEST_BUNDLE, cell.seeds))])
    return tuple(
        WorkOrder(orders=tuple(_order(cell, order, number, seed) for number, seed in enumerate(seeds)))
        for seeds in bundles
    )


def _order(cell: OpenCell, order: MakeOrder, number: int, seed: int) -> Order:
    proposal = Proposal(f"probe-{number}", number, "search", cell, heaviest(cell), seed)
    return order(proposal, 1.0).model_copy(update={"cache": ""})  # without cached states the encoder runs: the most


def heaviest(cell: OpenCell) -> dict[str, Value]:
    """The cell's first setting with the largest batches, inputs and layers of its space, and every layer thawed."""
    setting = dict(cell.space.first())
    for own in settings.parameters(cell.mode, cell.head, cell.task.kind):
        found = cell.space.parameters.get(own.name)
        if own.shapes and found is not None:
            setting[own.name] = _largest(found)
    if modes.get(cell.mode).trains_encoder:
        setting |= {trick.name: False for trick in settings.encoder_tricks()}
    return settings.complete(setting, cell.mode, cell.head, cell.task.kind)


def _largest(found: Range) -> Value:
    """A range's largest number; of the words of `precision` the one with the largest values."""
    values = found.points() or (found.start,)
    words = [word for word in ("fp32", "auto", "bf16") if word in values]
    return words[0] if words else max(values)


def _residents(cell: OpenCell, cells: list[OpenCell]) -> tuple[tuple[str, Kind], ...]:
    """Encoders that a warm worker keeps (`worker.warm_encoder`, two of them) and a frozen trial has put on the GPU."""
    frozen = [other for other in cells if not modes.get(other.mode).trains_encoder]
    sizes = {(one.located_encoder, one.task.kind): encoders.weights_without_embeddings(one.reference) for one in frozen}
    own = (cell.located_encoder, cell.task.kind)
    others = sorted((size, entry) for entry, size in sizes.items() if entry != own)
    return tuple([own] * (own in sizes) + [entry for _, entry in others[-1:]])
