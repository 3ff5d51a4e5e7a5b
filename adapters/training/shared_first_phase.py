"""First phases that several trials share: trained once, then continued by each (a stage tree, as in Hippo).

Two trials share a first phase if everything that it depends on is the same; it is looked up by the digest of that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from meltpoint.adapters.features.entries import locked
from meltpoint.adapters.files import replacing
from meltpoint.adapters.settings import first_phase_parameters
from meltpoint.adapters.training.epoch_result import EpochResult
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.adapters.training.trial_state import FirstPhaseCheckpoint, Outcome, without_encoder

PARTS = ("best_state", "weights", "optimiser")

ROOM_BYTES = 256 * 10**6
"""What the stages may take: ten of a bilstm's. A stage serves the trials of one search, soon after it was trained."""


class SharedFirstPhases:
    """A folder of stages, one file each; workers of several machines may share it."""

    def __init__(self, folder: Path, room_bytes: int = ROOM_BYTES) -> None:
        self.folder, self.room_bytes = folder, room_bytes

    def epochs(self, trainer: Trainer, facts: Mapping[str, object]) -> Iterator[list[Outcome]]:
        """A trial's epochs, the first phase out of the folder where another trial has trained it.

        Args:
            trainer: a bundle of one, before its first step.
            facts: what else the first phase depends on: encoder, data, documents, metric, mode, head, code.
        """
        phases = trainer.trials[0].table.plan.phases
        if len(phases) > 1 and not phases[0].encoder_trains:
            yield from self._first_phase(trainer, first_phase_key(trainer, facts))
        yield from trainer.epochs()

    def _first_phase(self, trainer: Trainer, key: str) -> Iterator[list[Outcome]]:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{key}.safetensors"
        lock = path.with_suffix(".lock")
        with locked(lock, wait=False) as mine:
            if mine:
                yield from self._made_or_read(trainer, path)
        if not mine:  # who comes second helps the first one to encode, waits, and goes on from its stage
            trainer.open_frozen_states()
            with locked(lock, wait=True):
                yield from self._made_or_read(trainer, path)

    def _made_or_read(self, trainer: Trainer, path: Path) -> Iterator[list[Outcome]]:
        """The first phase's epochs; the caller holds its lock."""
        stage = read_stage(path)
        if stage is not None:
            trainer.resume(stage)
            for result in stage.results:
                yield [(0, result)]
            return
        yield from trainer.first_phase()
        if trainer.active:
            write_stage(path, without_encoder(trainer.stage()))
            self._make_room(path)

    def _make_room(self, newest: Path) -> None:
        """Remove the oldest stages until the rest fit; the newest one stays."""
        found = []
        for path in self.folder.glob("*.safetensors"):
            with suppress(FileNotFoundError):  # another worker makes room too
                found.append((path == newest, path.stat().st_mtime, path.stat().st_size, path))
        used = sum(size for _, _, size, _ in found)
        for is_newest, _, size, path in sorted(found):
            if used <= self.room_bytes or is_newest:
                return
            used -= size
            path.unlink(missing_ok=True)


def first_phase_key(trainer: Trainer, facts: Mapping[str, object]) -> str:
    """A digest of all that a first phase depends on: its rates as numbers, so that any two ways to them share it."""
    (trial,) = trainer.trials
    table, setting = trial.table, trial.member.setting
    steps = table.plan.phases[0].epochs * table.plan.steps_per_epoch
    rates = [table.learning_rate(table.plan.groups - 1, step) for step in range(steps)]
    shaping = first_phase_parameters(str(facts["mode"]), str(facts["head"]))
    own = {parameter.name: setting.get(parameter.name, parameter.default) for parameter in shaping}
    parts = {**facts, **own, "seed": trial.member.seed, "rates": rates, "precision": trainer.precision}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def write_stage(path: Path, stage: FirstPhaseCheckpoint) -> None:
    """Write a stage, whole or not at all."""
    tensors = {f"{part}/{name}": t.contiguous().cpu() for part in PARTS for name, t in getattr(stage, part).items()}
    facts = {"results": [result.model_dump() for result in stage.results], "best": stage.best}
    with replacing(path) as beside:
        save_file(tensors, beside, {"stage": json.dumps(facts)})


def read_stage(path: Path) -> FirstPhaseCheckpoint | None:
    """A stage; None where there is none, or where the file is damaged and has to be made again."""
    parts: dict[str, dict[str, Tensor]] = {part: {} for part in PARTS}
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads(file.metadata()["stage"])
            for name in file.keys():  # noqa: SIM118 - the handle is no mapping
                part, _, own = name.partition("/")
                parts[part][own] = file.get_tensor(name)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        path.unlink(missing_ok=True)
        return None
    results = [EpochResult(**result) for result in facts["results"]]
    return FirstPhaseCheckpoint(results, (facts["best"][0], facts["best"][1]), **parts)
