"""`train FILE`: an exported setting, trained again from nothing, to the recorded numbers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from meltpoint.adapters import catalogue, encoders, heads, modes
from meltpoint.adapters.courses import NotFiniteError
from meltpoint.adapters.hardware import seize
from meltpoint.adapters.parameters import Setting
from meltpoint.adapters.possible import check_possible
from meltpoint.adapters.results import EpochResult
from meltpoint.search_spaces import files
from meltpoint.search_spaces.space import Space, is_one_point
from meltpoint.sweeps.orders import Order
from meltpoint.sweeps.scoring import score_on_test
from meltpoint.sweeps.worker import save_weights, training
from meltpoint.tasks import get
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec


@dataclass(frozen=True)
class Retrained:
    """What training again gave.

    Attributes:
        dev: the task's metric at the best epoch.
        test: the task's metric on test, or None where it was not asked for or cannot be had.
        recorded: the dev score that the file records for this seed, or None.
    """

    metric: str
    dev: float
    test: float | None
    seed: int
    setting: Setting
    recorded: float | None

    def as_json(self) -> dict[str, Any]:
        """The document of `train --json`."""
        return {
            "metric": self.metric, "dev": self.dev, "test": self.test, "seed": self.seed, "setting": dict(self.setting),
        }  # fmt: skip


def retrain(
    path: str, seed: int | None, with_test: bool, data_dir: str | None, on_epoch: Callable[[EpochResult], None]
) -> Retrained:
    """Train the one point of a file.

    Args:
        path: an exported file, or any space with one point that names encoder, mode and task.
        seed: which seed; None for the one that the search used.
        with_test: score the test split too; opening it is the user's word.
        data_dir: where the data lie now, or None for where they lay.

    Raises:
        ValueError: bad input; one line with the remedy.
        ArithmeticError: the loss was not finite.
    """
    space = load_point(path)
    facts: Mapping[str, Any] = space.provenance
    seed = int(facts.get("seed", 0)) if seed is None else seed
    with tempfile.TemporaryDirectory(prefix="meltpoint-train-") as folder:
        order = _order(path, space, seed, data_dir, folder)
        trainer = training([order], seize(int(order.cpus), order.gpus))
        for ((_, result),) in trainer.epochs():
            if isinstance(result, NotFiniteError):
                raise result
            on_epoch(result)
        (course,) = trainer.courses
        save_weights(course.best_state, Path(order.checkpoint))
        test = score_on_test(order) if with_test else None
    recorded = recorded_dev(facts, seed)
    return Retrained(trainer.data.task.metric, course.best[0], test, seed, order.setting, recorded)


def load_point(path: str) -> Space:
    """A file's space, which must have one point and name its cell.

    Raises:
        ValueError: it has several points, or does not name its cell.
    """
    cell = files.read_cell(path)
    missing = [word for word in ("encoder", "mode", "task") if not cell.get(word)]
    if missing:
        raise ValueError(f"{path} does not name its {', '.join(missing)}; export a best setting, or add the line.")
    head = cell.get("head") or modes.get(cell["mode"]).head
    heads.get(head)
    space = files.load(path, {own.name: own for own in catalogue.parameters(cell["mode"], head)}, mode=cell["mode"])
    if not is_one_point(space):
        raise ValueError(f"{path} is a space with several points; `train` takes one setting, `sweep --space` a space.")
    return space


def recorded_dev(facts: Mapping[str, Any], seed: int) -> float | None:
    """The dev score that a file records for a seed."""
    if facts.get("seed") == seed:
        return facts.get("dev")
    return next((final["dev"] for final in facts.get("finals", []) if final["seed"] == seed), None)


def _order(path: str, space: Space, seed: int, data_dir: str | None, folder: str) -> Order:
    facts: Mapping[str, Any] = space.provenance
    data: Mapping[str, Any] = facts.get("data") or {}
    spec = DataSpec(
        data.get("task") or space.cell["task"], data_dir or data.get("data_dir"), data.get("max_train_examples"),
        data.get("test_from"),
    )  # fmt: skip
    mode, task = space.cell["mode"], get(spec.task)
    head = space.cell.get("head") or modes.get(mode).head
    if facts.get("metric") not in (None, task.metric):
        raise ValueError(
            f"{path} was found by {facts['metric']}, and the metric of {task.name} is now {task.metric}; put the old "
            "one back, or take `provenance` out of the file."
        )
    check_possible(encoders.resolve(space.cell["encoder"], task.kind), head, task.kind)
    fingerprint = load_training_data(spec).fingerprint
    if data.get("fingerprint") not in (None, fingerprint):
        raise ValueError(f"{path} was found on other data ({data['fingerprint']}, here {fingerprint}); see --data-dir.")
    hardware: Mapping[str, Any] = facts.get("hardware") or {"gpu_share": float(torch.cuda.is_available())}
    return Order(
        id="retrained", number=0, role="final", encoder=space.cell["encoder"], mode=mode, task=task.name, head=head,
        seed=seed, setting=catalogue.complete(space.first(), mode, head), data=spec, data_fingerprint=fingerprint,
        documents_fingerprint=data.get("documents") or "", encoder_fingerprint=facts.get("encoder_fingerprint") or "",
        checkpoint=folder, cpus=hardware.get("threads", 1), gpus=hardware.get("gpu_share", 0.0),
        cache=folder,
    )  # fmt: skip
