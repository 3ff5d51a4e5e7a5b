"""Placement of trials: shares of GPUs if Ray has some, CPUs otherwise, and the line that says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from meltpoint.sweeps.ledger.records import CellKey
from meltpoint.sweeps.on_ray import gpu_sharing
from meltpoint.sweeps.on_ray.gpu_sharing import MakeOrder
from meltpoint.sweeps.on_ray.room import slots, wait_for_room
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.sweep_spec import Resources
from meltpoint.sweeps.worker.memory_probe import Need

UNKNOWN = "an unknown kind"


@dataclass(frozen=True)
class ClusterGpus:
    """The GPUs of a Ray cluster.

    Attributes:
        count: how many.
        kinds: their kinds as Ray names them ("H100"), sorted; `UNKNOWN` for those that it has no name for.
    """

    count: int
    kinds: tuple[str, ...] = ()

    def __str__(self) -> str:
        known = () if self.kinds == (UNKNOWN,) else self.kinds
        return f"{self.count} GPU{'' if self.count == 1 else 's'}" + (f" ({', '.join(known)})" if known else "")


@dataclass(frozen=True)
class Placement:
    """The resources of a sweep's trials.

    Attributes:
        resources: those asked for; `gpus` is a number, or "auto" where each cell has its own share.
        slots: how many trials run at a time, at most.
        shares: cell → the measured share of a GPU that its trials get.
        line: all of it in one line, for the screen.
    """

    resources: Resources
    slots: int
    line: str
    shares: Mapping[CellKey, float] = field(default_factory=dict)

    @property
    def least_gpus(self) -> float:
        """The smallest number of GPUs that a trial gets."""
        gpus = self.resources.gpus
        return min(self.shares.values()) if gpus == "auto" else gpus


def place(
    planner: Planner, order: MakeOrder, resources: Resources, say: Callable[[str], None],
    probe: Callable[[dict[str, Any]], Need] | None = None,
) -> Placement:  # fmt: skip
    """Decide what trials run on, by what the joined Ray cluster has.

    Args:
        say: is told before GPUs' memory is measured, which takes a while, and where a cluster has no room yet.
        probe: measures a cell on a GPU (`gpu_sharing.measure`); None for the real one.

    Raises:
        ValueError: Ray has too little for one trial; a cell does not fit a GPU.
    """
    import ray

    found = gpus_of_nodes(ray.nodes())  # type: ignore[no-untyped-call]
    gpus, why = settle(resources, found)
    shares: dict[CellKey, float] = {}
    if resources.address is not None:
        needed = 1.0 if gpus == "auto" else gpus
        slots(resources.cpus, needed)
        wait_for_room(resources.cpus, needed, say)
    if gpus == "auto":
        each = "one of each kind" if len(found.kinds) > 1 else "one"
        say(f"Ray has {found}: each cell's heaviest setting runs on {each}, to see how many trials share it.")
        shares = gpu_sharing.measure(planner, order, resources, found.count, found.kinds, say, probe)
    least = min(shares.values()) if gpus == "auto" else gpus
    count = slots(resources.cpus, least)
    most = max(shares.values(), default=least)
    line = in_words(len(planner.cells), count, resources.cpus, (least, most), found, why)
    if least < most:
        line += f" {gpu_sharing.in_words(shares)}"
    return Placement(replace(resources, gpus=gpus), count, line, shares)


def gpus_of_nodes(nodes: Iterable[Mapping[str, Any]]) -> ClusterGpus:
    """The GPUs of a Ray cluster, by `ray.nodes()`."""
    having = [node["Resources"] for node in nodes if node["Alive"] and node["Resources"].get("GPU", 0) > 0]
    kinds = {name.partition(":")[2] for have in having for name in have if name.startswith("accelerator_type:")}
    if any(not any(name.startswith("accelerator_type:") for name in have) for have in having):
        kinds.add(UNKNOWN)
    return ClusterGpus(int(sum(have["GPU"] for have in having)), tuple(sorted(kinds)))


def settle(resources: Resources, found: ClusterGpus) -> tuple[float | Literal["auto"], str]:
    """(GPUs of one trial, "auto" where they are to be measured; why it is none or a whole one, "" where that is plain).

    The driver's torch stands for the workers' on a local cluster only: they have the same environment there.
    """
    if found.count < 1:
        why = "no GPU in this Ray cluster"
        return (0.0, why) if resources.gpus == "auto" else (resources.gpus, why)
    if resources.gpus == 0:
        return 0.0, f"--gpus-per-trial 0; Ray has {found}"
    if resources.gpus != "auto":
        return resources.gpus, ""
    if resources.address is None and not torch.cuda.is_available():
        return 0.0, f"Ray has {found}, but torch {torch.__version__} cannot use any; see `meltpoint doctor`"
    if len(found.kinds) > 1 and UNKNOWN in found.kinds:
        return 1.0, "GPUs that Ray cannot name beside others are shared only where --gpus-per-trial names it, as 0.5"
    return "auto", ""


def in_words(
    cells: int, count: int, cpus: float, shares: tuple[float, float], found: ClusterGpus, why: str = ""
) -> str:  # fmt: skip
    """`3 cells, 2 trials at a time, each on 1 CPU (no GPU in this Ray cluster).`

    Args:
        count: trials at a time.
        shares: the smallest and the largest share of a GPU that a trial gets; 0 on the CPU.
        why: what is said in parentheses.
    """
    least, most = shares
    gpu = f"{share_in_words(least, most, found)} and " if most else ""
    up_to = "up to " if least < most else ""
    each = f"{gpu}{cpus:g} CPU{'' if cpus == 1 else 's'}" + (f" ({why})" if why else "")
    return f"{_some(cells, 'cell')}, {up_to}{_some(count, 'trial')} at a time, each on {each}."


def share_in_words(least: float, most: float, found: ClusterGpus) -> str:
    """`1/4 of a GPU (H100)`, `1/8 to 1/2 of a GPU`, `a whole GPU (A100 or T4)`, `2 GPUs`."""
    known = [] if found.kinds == (UNKNOWN,) else found.kinds
    kind = f" ({' or '.join(known)})" if known else ""
    if most > 1:
        return f"{most:g} GPUs{kind}"
    if least == 1:
        return f"a whole GPU{kind}"
    parts = [_fraction(least), *([_fraction(most)] if most > least else [])]
    return f"{' to '.join(parts)} of a GPU{kind}"


def _fraction(share: float) -> str:
    """`1/6` of 0.1666; a share that is no such part as it is."""
    parts = round(1 / share)
    if parts == 1:
        return "all" if share == 1 else f"{share:g}"
    return f"1/{parts}" if abs(1 / parts - share) < 1 / gpu_sharing.RAY_UNITS else f"{share:g}"


def _some(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
