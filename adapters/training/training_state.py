"""A trial's training state between two epochs, its file, and the first phases that trials share in such files.

Training continues from a restored state with the same bits.

Functions of seed, epoch and step are not stored, since the step determines them: the order of the data
(`data.batching`), the masks of the heads' dropout (`layers.bundle.MemberRng`), the seed of the encoder's dropout, the
schedule and its tricks (`multiplier_table`), and the frozen groups.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from meltpoint.adapters.features.cache_entries import locked
from meltpoint.adapters.files import replacing
from meltpoint.adapters.layers.compact_embedding import CompactEmbedding, Snapshot
from meltpoint.adapters.settings import first_phase_parameters
from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.adapters.training.trial_state import Outcome
from meltpoint.adapters.tricks import reduce_on_plateau


@dataclass(frozen=True)
class TrainingState:
    """A trial's state after an epoch.

    Attributes:
        tensors: name → the tensor itself, not a copy. `head/` has the head's weights and moments, `encoder/` the
            tensors that training changes in the encoder, `moments/` its optimiser's moments, `best/` the weights of the
            best epoch if they differ from the current ones, `gap/` the gap rule's state, `random/` generators.
        facts: values that JSON represents exactly.
    """

    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    @property
    def bytes(self) -> int:
        """The size of its tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def state_of(trainer: Trainer) -> TrainingState:
    """The state of a bundle of one between two epochs; valid until its next step."""
    (trial,) = trainer.trials
    parts: dict[str, Mapping[str, Tensor]] = {"head": trainer.head_optimiser.state()}
    if trainer.encoder_moved:
        assert trainer.encoder_optimiser is not None, "an optimiser has moved the encoder"
        parts |= {"encoder": changing(trainer.model.encoder), "moments": trainer.encoder_optimiser.moments()}
    if not _best_is_now(trainer):
        # If the encoder had not changed by its best epoch, its weights are the pretrained ones.
        parts["best"] = {name: trial.best_state[name] for name in trial.best_state
                         if trial.best_moved_encoder or not name.startswith("encoder.")}  # fmt: skip
    if trainer.gap_rule.within is not None and trainer.gap_rule.watches(trial.table.plan, trainer.step + 1):
        weights, optimiser = trainer.gap_rule.within
        parts |= {"gap/weights": weights, "gap/optimiser": optimiser}
    generators, words = _generators(trainer.device)
    parts["random"] = generators
    facts = {
        "step": trainer.step, "encoder_moved": trainer.encoder_moved, "random": words,
        "results": [result.model_dump() for result in trial.results],
        "best": trial.best, "best_moved_encoder": trial.best_moved_encoder,
        "first_phase_epochs": trial.table.plan.phases[0].epochs,
        "decays": {path: table.decay for path, table in _compact_tables(trainer.model.encoder)},
    }  # fmt: skip
    return TrainingState({f"{part}/{name}": own for part, all_ in parts.items() for name, own in all_.items()}, facts)


def restore(trainer: Trainer, state: TrainingState) -> None:
    """Restore a state in a fresh bundle of one."""
    (trial,), facts = trainer.trials, state.facts
    trainer.step, trainer.encoder_moved = facts["step"], facts["encoder_moved"]
    trial.results = [EpochResult(**result) for result in facts["results"]]
    if facts["first_phase_epochs"] != trial.table.plan.phases[0].epochs:
        trial.end_first_phase(facts["first_phase_epochs"])
    trial.follow_dev(trainer.data.task.metric)
    trainer.head_optimiser.load(_part(state, "head"))
    if trainer.encoder_moved:
        assert trainer.encoder_optimiser is not None, "an optimiser has moved the encoder"
        tensors = _part(state, "encoder")
        with torch.no_grad():
            for name, own in changing(trainer.model.encoder).items():
                own.copy_(tensors[name])
        for path, table in _compact_tables(trainer.model.encoder):
            table.decay = facts["decays"][path]
        trainer.encoder_optimiser.load_moments(_part(state, "moments"))
    _restore_best(trainer, state)
    if weights := _part(state, "gap/weights"):
        device = trainer.device
        optimiser = {name: own.to(device) for name, own in _part(state, "gap/optimiser").items()}
        trainer.gap_rule.within = Snapshot({name: own.to(device) for name, own in weights.items()}), optimiser
    _set_generators(trainer.device, _part(state, "random"), facts["random"])


def _restore_best(trainer: Trainer, state: TrainingState) -> None:
    (trial,), facts = trainer.trials, state.facts
    if facts["best"][1] == 0:  # the last phase has not begun
        return
    trial.best, trial.best_moved_encoder = (facts["best"][0], facts["best"][1]), facts["best_moved_encoder"]
    if _best_is_now(trainer):
        trial.best_state = trainer.weights(0, goes_on=True)
        return
    own = Snapshot({name: weight.to(trainer.device) for name, weight in _part(state, "best").items()})
    is_pretrained = trainer.trains_encoder and not trial.best_moved_encoder
    trial.best_state = trainer.model.pretrained_weights() | own if is_pretrained else own


def _best_is_now(trainer: Trainer) -> bool:
    """True if the best epoch's weights are the current weights."""
    (trial,) = trainer.trials
    return trial.best[1] == trial.results[-1].epoch


def _part(state: TrainingState, part: str) -> dict[str, Tensor]:
    prefix = f"{part}/"
    return {name.removeprefix(prefix): own for name, own in state.tensors.items() if name.startswith(prefix)}


# The encoder.


def changing(encoder: nn.Module) -> dict[str, Tensor]:
    """The tensors that training may change, by name: parameters and buffers.

    A `state_dict` does not suffice: it has the assembled embedding table, from which the decay cannot be recovered.
    """
    found: dict[str, Tensor] = {name: own.detach() for name, own in encoder.named_parameters()}
    for path, module in encoder.named_modules():
        if not isinstance(module, CompactEmbedding):  # its buffers never change
            found |= dict(module.named_buffers(path, recurse=False))
    return found


def _compact_tables(encoder: nn.Module) -> Iterator[tuple[str, CompactEmbedding]]:
    yield from ((path, own) for path, own in encoder.named_modules() if isinstance(own, CompactEmbedding))


# The generators that a plug-in may draw from; Meltpoint's own draws are seeded each epoch or step.


def _generators(device: torch.device) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The states of torch's, NumPy's and Python's own generators: tensors, and the parts that JSON holds."""
    _, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    tensors = {"torch": torch.get_rng_state(), "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64))}
    if device.type == "cuda":
        tensors["cuda"] = torch.cuda.get_rng_state(device)
    return tensors, {"numpy": [int(position), int(has_gauss), float(gauss)], "python": random.getstate()}


def _set_generators(device: torch.device, tensors: Mapping[str, Tensor], words: Mapping[str, Any]) -> None:
    torch.set_rng_state(tensors["torch"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(tensors["cuda"], device)
    keys = tensors["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, *words["numpy"]))
    version, inner, gauss = words["python"]
    random.setstate((version, tuple(inner), gauss))


# The file: safetensors with JSON in its metadata and a checksum over all of it, never a pickle.

FORMAT = 1


class DamagedStateError(ValueError):
    """A file that is not a complete training state."""


def write_state(path: Path, state: TrainingState, about: Mapping[str, Any]) -> None:
    """Write a state atomically; the file is synced before it is renamed.

    Args:
        about: further facts for the file, as JSON.
    """
    tensors = {name: own.detach().contiguous().cpu() for name, own in state.tensors.items()}
    words = json.dumps({"format": FORMAT, "facts": state.facts, "about": about})
    with replacing(path) as temporary:
        save_file(tensors, temporary, {"state": words, "sha256": _digest(tensors, words)})


def read_about(path: Path) -> dict[str, Any]:
    """The JSON next to a file's state, without reading the tensors; the file may still be damaged.

    Raises:
        DamagedStateError: its header cannot be read.
        FileNotFoundError: there is no file.
    """
    return dict(_read(path, with_tensors=False)[1])


def read_state(path: Path) -> TrainingState:
    """Read a file's state, and verify its checksum.

    Raises:
        DamagedStateError: the file is damaged.
        FileNotFoundError: there is no file.
    """
    return _read(path, with_tensors=True)[0]


def _read(path: Path, with_tensors: bool) -> tuple[TrainingState, dict[str, Any]]:
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
            words, digest = metadata["state"], metadata["sha256"]
            names = sorted(file.keys()) if with_tensors else []
            tensors = {name: file.get_tensor(name) for name in names}
        if with_tensors and _digest(tensors, words) != digest:
            raise DamagedStateError("its checksum does not match")
        document = json.loads(words)
        if document["format"] != FORMAT:
            raise DamagedStateError(f"its format is {document['format']}")
        return TrainingState(tensors, document["facts"]), document["about"]
    except (FileNotFoundError, DamagedStateError):
        raise
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DamagedStateError(" ".join(str(error).split()) or type(error).__name__) from None


def _digest(tensors: Mapping[str, Tensor], words: str) -> str:
    """sha256 over names, types, shapes, numbers and JSON."""
    digest = hashlib.sha256(words.encode())
    for name in sorted(tensors):
        own = tensors[name]
        digest.update(f"{name} {own.dtype} {tuple(own.shape)}".encode())
        digest.update(own.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# First phases that several trials share: trained once, then continued by each (Hippo's "stage tree"). Two trials share
# a first phase if all its inputs are the same; the digest of these inputs is the key.

MOST_BYTES = 256 * 10**6
"""Size limit of the folder: ten first phases of a bilstm. Each serves the trials of one search, soon after training."""


class SharedFirstPhases:
    """A folder of first-phase checkpoints, one file each; workers of several machines may share it."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder, self.most_bytes = folder, most_bytes

    def epochs(self, trainer: Trainer, facts: Mapping[str, object]) -> Iterator[list[Outcome]]:
        """A trial's epochs; the first phase's come from the folder if another trial has trained it.

        Args:
            trainer: a bundle of one, before its first step or with a restored state (`training_state`).
            facts: the first phase's other inputs: encoder, data, documents, metric, mode, head, code.
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
        """The first phase's epochs that the trainer does not have yet; the caller holds the phase's lock."""
        try:
            state, had = read_state(path), len(trainer.trials[0].results)
        except (DamagedStateError, FileNotFoundError):
            path.unlink(missing_ok=True)
        else:
            restore(trainer, state)
            for result in trainer.trials[0].results[had:]:
                yield [(0, result)]
            return
        # The gap rule may end the phase earlier than planned, so the plan is checked after every epoch.
        while trainer.active and trainer.step < trainer.trials[0].table.plan.first_phase_steps:
            yield trainer.epoch()
        if trainer.active:
            write_state(path, state_of(trainer), {})
            self._make_room(path)

    def _make_room(self, newest: Path) -> None:
        """Remove the oldest checkpoints until the rest fit; the newest one stays."""
        found = []
        for path in self.folder.glob("*.safetensors"):
            with suppress(FileNotFoundError):  # another worker may also make room
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


def first_phase_key(trainer: Trainer, facts: Mapping[str, object]) -> str:
    """A digest of all inputs of a first phase; its rates enter as numbers, so equal rates from any source share it.

    Rates that follow dev are not known beforehand, so their rule enters instead.
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
