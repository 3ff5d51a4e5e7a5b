"""The training state of a trial between two epochs: all that its next epochs depend on, taken and put back bit for bit.

What is a function of seed, epoch and step is not kept: the order of the data (`data.batching`), the masks of heads'
dropout (`layers.dropout.MemberRng`), the seed of the encoder's dropout, the schedule and its tricks
(`multiplier_table`), which groups are frozen. The step says it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from meltpoint.adapters.layers.compact_embedding import CompactEmbedding
from meltpoint.adapters.snapshot import Snapshot
from meltpoint.adapters.training.epoch_result import EpochResult
from meltpoint.adapters.training.trainer import Trainer


@dataclass(frozen=True)
class TrainingState:
    """A trial's state after an epoch.

    Attributes:
        tensors: name → the tensor itself, not a copy. `head/` weights and moments of the head, `encoder/` what training
            changes in the encoder, `moments/` its optimiser's, `best/` the weights of the best epoch where there is one
            and they are others, `gap/` what the gap rule keeps, `random/` generators.
        facts: values that JSON holds exactly.
    """

    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    @property
    def bytes(self) -> int:
        """The size of its tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def state_of(trainer: Trainer) -> TrainingState:
    """The state of a bundle of one that has ended an epoch and goes on; valid until its next step."""
    (trial,) = trainer.trials
    parts: dict[str, Mapping[str, Tensor]] = {"head": trainer.head_optimiser.state()}
    if trainer.encoder_moved:
        assert trainer.encoder_optimiser is not None, "an optimiser has moved the encoder"
        parts |= {"encoder": changing(trainer.model.encoder), "moments": trainer.encoder_optimiser.moments()}
    if not _best_is_now(trainer):
        # The weights of an encoder that had not moved by its best epoch are the pretrained ones.
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
    """Put a fresh bundle of one where a state was taken."""
    (trial,), facts = trainer.trials, state.facts
    trainer.step, trainer.encoder_moved = facts["step"], facts["encoder_moved"]
    trial.results = [EpochResult(**result) for result in facts["results"]]
    if facts["first_phase_epochs"] != trial.table.plan.phases[0].epochs:
        trial.end_first_phase(facts["first_phase_epochs"])
    trial.follow_dev(trainer.data.task.metric)
    trainer.head_optimiser.load(_part(state, "head"))
    if trainer.encoder_moved:
        assert trainer.encoder_optimiser is not None, "an optimiser has moved the encoder"
        _load_encoder(trainer.model.encoder, _part(state, "encoder"), facts["decays"])
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
    """True if the best epoch's weights are those of now."""
    (trial,) = trainer.trials
    return trial.best[1] == trial.results[-1].epoch


def _part(state: TrainingState, part: str) -> dict[str, Tensor]:
    prefix = f"{part}/"
    return {name.removeprefix(prefix): own for name, own in state.tensors.items() if name.startswith(prefix)}


# The encoder.


def changing(encoder: nn.Module) -> dict[str, Tensor]:
    """The tensors that training may change, by name: parameters, and buffers such as float32 masters.

    A `state_dict` would not do: it has an embedding table put together, whose decay cannot be told from it.
    """
    found: dict[str, Tensor] = {name: own.detach() for name, own in encoder.named_parameters()}
    for path, module in encoder.named_modules():
        if not isinstance(module, CompactEmbedding):  # its buffers never change
            found |= dict(module.named_buffers(path, recurse=False))
    return found


def _compact_tables(encoder: nn.Module) -> Iterator[tuple[str, CompactEmbedding]]:
    yield from ((path, own) for path, own in encoder.named_modules() if isinstance(own, CompactEmbedding))


@torch.no_grad()
def _load_encoder(encoder: nn.Module, tensors: Mapping[str, Tensor], decays: Mapping[str, float]) -> None:
    for name, own in changing(encoder).items():
        own.copy_(tensors[name])
    for path, table in _compact_tables(encoder):
        table.decay = decays[path]


# The generators that a plug-in may draw from; Meltpoint's own draws are seeded each epoch or step.


def _generators(device: torch.device) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The states of torch's, NumPy's and Python's own generators: tensors, and what JSON holds of them."""
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
