"""First phases that several trials share: trained once, then continued by each (Hippo's "stage tree").

Two trials share a first phase if everything that it depends on is the same; it is looked up by the digest of that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from meltpoint.adapters.features.entries import locked
from meltpoint.adapters.files import replacing
from meltpoint.adapters.settings import first_phase_parameters
from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.adapters.training.trial_state import Outcome
from meltpoint.adapters.tricks import reduce_on_plateau

PARTS = ("weights", "optimiser")

MOST_BYTES = 256 * 10**6
"""Size of the folder: ten first phases of a bilstm. Each serves the trials of one search, soon after it was trained."""


@dataclass(frozen=True)
class FirstPhaseCheckpoint:
    """The end of a first phase, for other trials to continue from.

    Attributes:
        results: one an epoch.
        weights: the head's, as a bundle of one has them, that the second phase begins with.
        optimiser: the head optimiser's state with them.
    """

    results: list[EpochResult]
    weights: Mapping[str, Tensor]
    optimiser: dict[str, Tensor]


class SharedFirstPhases:
    """A folder of first-phase checkpoints, one file each; workers of several machines may share it."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder, self.most_bytes = folder, most_bytes

    def epochs(self, trainer: Trainer, facts: Mapping[str, object]) -> Iterator[list[Outcome]]:
        """A trial's epochs, those of the first phase out of the folder where another trial has trained it.

        Args:
            trainer: a bundle of one, before its first step or put where a state was taken (`training_state`).
            facts: the rest that the first phase depends on: encoder, data, documents, metric, mode, head, code.
        """
        plan = trainer.trials[0].table.plan
        is_shared = len(plan.phases) > 1 and not plan.phases[0].encoder_trains
        if is_shared and trainer.step < plan.first_phase_steps:
            yield from self._first_phase(trainer, first_phase_key(trainer, facts))
        yield from trainer.epochs()

    def _first_phase(self, trainer: Trainer, key: str) -> Iterator[list[Outcome]]:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{key}.safetensors"
        lock = path.with_suffix(".lock")
        with locked(lock, wait=False) as mine:
            if mine:
                yield from self._read_or_train(trainer, path)
        if not mine:  # a second trial helps the first one to encode, waits, and continues from its checkpoint
            open_frozen_states(trainer)
            with locked(lock, wait=True):
                yield from self._read_or_train(trainer, path)

    def _read_or_train(self, trainer: Trainer, path: Path) -> Iterator[list[Outcome]]:
        """The first phase's epochs, without those that the trainer has already; the caller holds its lock."""
        checkpoint = read_checkpoint(path)
        if checkpoint is not None:
            had = len(trainer.trials[0].results)
            resume(trainer, checkpoint)
            for result in checkpoint.results[had:]:
                yield [(0, result)]
            return
        # The gap rule may end the phase earlier than planned, so the plan is looked at after every epoch.
        while trainer.active and trainer.step < trainer.trials[0].table.plan.first_phase_steps:
            yield trainer.epoch()
        if trainer.active:
            write_checkpoint(path, checkpoint_of(trainer))
            self._make_room(path)

    def _make_room(self, newest: Path) -> None:
        """Remove the oldest checkpoints until the rest fit; the newest one stays."""
        found = []
        for path in self.folder.glob("*.safetensors"):
            with suppress(FileNotFoundError):  # another worker makes room too
                found.append((path == newest, path.stat().st_mtime, path.stat().st_size, path))
        used = sum(size for _, _, size, _ in found)
        for is_newest, _, size, path in sorted(found):
            if used <= self.most_bytes or is_newest:
                return
            used -= size
            path.unlink(missing_ok=True)


def open_frozen_states(trainer: Trainer) -> None:
    """Open the hidden states that a frozen phase reads; workers encode missing ones together."""
    for split in (trainer.data.train, trainer.data.dev):
        trainer.inputs.open(split, frozen=True)


def checkpoint_of(trainer: Trainer) -> FirstPhaseCheckpoint:
    """The checkpoint of a bundle of one that has ended its first phase; the optimiser's state is not copied."""
    (trial,) = trainer.trials
    return FirstPhaseCheckpoint(list(trial.results), trainer.model.own_weights(0), trainer.head_optimiser.state())


def resume(trainer: Trainer, checkpoint: FirstPhaseCheckpoint) -> None:
    """Put a fresh bundle of one where a checkpoint was taken."""
    (trial,) = trainer.trials
    trial.results = list(checkpoint.results)
    trainer.model.load_trained([checkpoint.weights])
    trainer.head_optimiser.load(checkpoint.optimiser)
    trainer.step = checkpoint.results[-1].step
    trial.end_first_phase(len(checkpoint.results))
    trial.follow_dev(trainer.data.task.metric)


def first_phase_key(trainer: Trainer, facts: Mapping[str, object]) -> str:
    """A digest of all that a first phase depends on: its rates as numbers, so that any two ways to them share it.

    Rates that follow dev are not known beforehand: their rule stands for them.
    """
    (trial,) = trainer.trials
    table, setting = trial.table, trial.member.setting
    rates = [table.learning_rate(table.plan.groups - 1, step) for step in range(table.plan.first_phase_steps)]
    shaping = first_phase_parameters(str(facts["mode"]), str(facts["head"]))
    own: dict[str, object] = {parameter.name: setting.get(parameter.name, parameter.default) for parameter in shaping}
    seeds = {} if trial.member.separate is None else {"seeds": asdict(trial.member.separate)}
    plateau = {own.name: setting[own.name] for own in reduce_on_plateau.TRICK.hyperparameters if own.name in setting}
    own |= {**plateau, **seeds, "seed": trial.member.seed}
    parts = {**facts, **own, "rates": rates, "precision": trainer.precision}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def write_checkpoint(path: Path, checkpoint: FirstPhaseCheckpoint) -> None:
    """Write a checkpoint, whole or not at all."""
    parts = {part: getattr(checkpoint, part) for part in PARTS}
    tensors = {f"{part}/{name}": t.contiguous().cpu() for part, own in parts.items() for name, t in own.items()}
    facts = {"results": [result.model_dump() for result in checkpoint.results]}
    with replacing(path) as temporary:
        save_file(tensors, temporary, {"first_phase": json.dumps(facts)})


def read_checkpoint(path: Path) -> FirstPhaseCheckpoint | None:
    """A checkpoint; None where there is none, or where the file is damaged and has to be made again."""
    parts: dict[str, dict[str, Tensor]] = {part: {} for part in PARTS}
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads(file.metadata()["first_phase"])
            for name in file.keys():  # noqa: SIM118 - the handle is no mapping
                part, _, own = name.partition("/")
                parts[part][own] = file.get_tensor(name)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        path.unlink(missing_ok=True)
        return None
    return FirstPhaseCheckpoint([EpochResult(**result) for result in facts["results"]], **parts)
